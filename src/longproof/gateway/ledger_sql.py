"""The queries on the usage ledger, in the SQL that SQLite and PostgreSQL share, and rows back into values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from longproof.gateway.ledger_rows import INTENTS, SETTLEMENTS, TABLES, Intent, Row, Settlement, Table

FOR_EVER_NS = 2**63 - 1
_OF_INTENT = ", ".join(f"i.{name}" for name in INTENTS.names)
_OF_SETTLEMENT = ", ".join(f"s.{name}" for name in SETTLEMENTS.names)

Settled = tuple[Intent, Settlement]
"""An ended request: both its rows."""


def unsettled_query(mark: str) -> str:
    """Intents without a settlement; `mark` stands for the gateway's name."""
    return (
        f"SELECT {_OF_INTENT} FROM intents i LEFT JOIN settlements s ON s.entry = i.entry"  # noqa: S608 - our names
        f" WHERE s.entry IS NULL AND i.gateway = {mark} ORDER BY i.at_unix_ns, i.entry"
    )


def settled_query(since: str, until: str) -> str:
    """Both rows of ended requests; the marks stand for Unix nanoseconds."""
    return _settled(f"s.at_unix_ns >= {since} AND s.at_unix_ns < {until}")


def settled_page_query(after: int, until: int, entry: str, rows: int) -> str:
    """The next rows after the one of a time and an entry, for which the mark `entry` stands; "" = from that time on."""
    later = f"(s.at_unix_ns > {after} OR (s.at_unix_ns = {after} AND s.entry > {entry}))"
    return f"{_settled(f'{later} AND s.at_unix_ns < {until}')} LIMIT {rows}"


def _settled(where: str) -> str:
    return (
        f"SELECT {_OF_INTENT}, {_OF_SETTLEMENT} FROM settlements s"  # noqa: S608 - our names
        f" JOIN intents i ON i.entry = s.entry WHERE {where} ORDER BY s.at_unix_ns, s.entry"
    )


def by_table(rows: Iterable[Row]) -> list[tuple[Table, list[Row]]]:
    """Rows by the table they belong to, intents first."""
    batches: dict[type[Row], list[Row]] = {}
    for row in rows:
        batches.setdefault(type(row), []).append(row)
    return [(table, batches[table.row]) for table in TABLES if table.row in batches]


def intent_of(row: Sequence[Any]) -> Intent:
    """A row of the unsettled query."""
    return Intent(**dict(zip(INTENTS.names, row, strict=True)))


def settled_of(row: Sequence[Any]) -> Settled:
    """A row of the settled query."""
    count = len(INTENTS.names)
    settled = dict(zip(SETTLEMENTS.names, row[count:], strict=True))
    settled["charged"] = bool(settled["charged"])  # SQLite has no booleans
    return intent_of(row[:count]), Settlement(**settled)
