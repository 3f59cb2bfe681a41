"""The usage ledger as tables: every request, or sums, as CSV, JSON lines or Parquet.

Money is exact: a decimal number of USD with nine places, never a float. Times are UTC.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from importlib import import_module
from typing import Any, TextIO

import orjson

from longproof.errors import UsageError
from longproof.gateway.ledger_rows import Intent, Settlement
from longproof.gateway.ledger_sql import Settled
from longproof.gateway.takings import Sum

NANO = Decimal(1_000_000_000)
Value = str | int | Decimal | datetime | bool | None
Read = Callable[[Intent, Settlement], Value]


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column: its name and how it is read from the two rows of a request."""

    name: str
    read: Read


def _usd(nano: int | None) -> Decimal | None:
    return None if nano is None else Decimal(nano) / NANO


def _at(unix_ns: int) -> datetime:
    return datetime.fromtimestamp(unix_ns // 1_000_000_000, UTC).replace(microsecond=unix_ns % 1_000_000_000 // 1_000)


def _columns(**reads: Read) -> tuple[Column, ...]:
    return tuple(Column(name=name, read=read) for name, read in reads.items())


REQUEST_COLUMNS = _columns(
    entry=lambda i, _: i.entry,
    request_id=lambda i, _: i.request_id,
    gateway=lambda i, _: i.gateway,
    started_at=lambda i, _: _at(i.at_unix_ns),
    ended_at=lambda _, s: _at(s.at_unix_ns),
    tenant=lambda i, _: i.tenant,
    key=lambda i, _: i.key,
    model=lambda i, _: i.model,
    sku=lambda _, s: s.sku,
    pool=lambda i, _: i.pool,
    replica=lambda i, _: i.replica,
    ending=lambda _, s: s.ending,
    status=lambda _, s: s.status,
    charged=lambda _, s: s.charged,
    input_cold_tokens=lambda _, s: s.input_cold_tokens,
    input_cached_tokens=lambda _, s: s.input_cached_tokens,
    output_tokens=lambda _, s: s.output_tokens,
    kv_token_ms=lambda _, s: s.kv_token_ms,
    held_token_ms=lambda _, s: s.held_token_ms,
    counted_by=lambda _, s: s.counted_by,
    cached_from=lambda _, s: s.cached_from,
    input_cold_usd=lambda _, s: _usd(s.input_cold_nano_usd),
    input_cached_usd=lambda _, s: _usd(s.input_cached_nano_usd),
    output_usd=lambda _, s: _usd(s.output_nano_usd),
    residency_usd=lambda _, s: _usd(s.residency_nano_usd),
    total_usd=lambda _, s: _usd(s.total_nano_usd),
)
"""Every request, one row each."""

GROUPS: dict[str, Read] = {
    "tenant": lambda i, _: i.tenant,
    "key": lambda i, _: i.key,
    "model": lambda i, _: i.model,
    "sku": lambda _, s: s.sku,
    "pool": lambda i, _: i.pool,
    "gateway": lambda i, _: i.gateway,
    "ending": lambda _, s: s.ending,
    "day": lambda _, s: _at(s.at_unix_ns).strftime("%Y-%m-%d"),
    "month": lambda _, s: _at(s.at_unix_ns).strftime("%Y-%m"),
}
"""What sums can be made by. Days and months are those of a request's end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """A table: column names and rows of equal length."""

    columns: tuple[str, ...]
    rows: Iterator[tuple[Value, ...]]


def requests_sheet(settled: Iterable[Settled]) -> Sheet:
    """Every request, in the order given."""
    rows = (tuple(column.read(intent, end) for column in REQUEST_COLUMNS) for intent, end in settled)
    return Sheet(columns=tuple(column.name for column in REQUEST_COLUMNS), rows=rows)


def sums_sheet(settled: Iterable[Settled], by: Sequence[str]) -> Sheet:
    """Sums over requests that have the same values of `by`, sorted by them. UsageError for an unknown one.

    `usd` has what could be priced; `unpriced_requests` says how many could not.
    """
    unknown = [name for name in by if name not in GROUPS]
    if unknown:
        raise UsageError(f"there are no sums by '{unknown[0]}'", advice=f"choose from {', '.join(GROUPS)}")
    sums: dict[tuple[Value, ...], Sum] = {}
    for intent, end in settled:
        key = tuple(GROUPS[name](intent, end) for name in by)
        sums.setdefault(key, Sum()).add(end)
    ordered = sorted(sums.items(), key=lambda item: tuple(str(part or "") for part in item[0]))
    rows = (
        (
            *key,
            one.requests,
            one.input_cold_tokens,
            one.input_cached_tokens,
            one.output_tokens,
            Decimal(one.kv_token_ms) / 1000,
            _usd(one.nano_usd),
            one.unpriced,
        )
        for key, one in ordered
    )
    figures = ("requests", "input_cold_tokens", "input_cached_tokens", "output_tokens", "kv_token_seconds", "usd")
    return Sheet(columns=(*by, *figures, "unpriced_requests"), rows=rows)


def write_csv(sheet: Sheet, target: TextIO) -> None:
    """RFC 4180 with a header. Empty = not known; times as ISO 8601; a text that a spreadsheet would take for a formula
    has an apostrophe before it."""
    writer = csv.writer(target, lineterminator="\n")
    writer.writerow(sheet.columns)
    for row in sheet.rows:
        writer.writerow([_cell(value) for value in row])


def write_json_lines(sheet: Sheet, target: TextIO) -> None:
    """One object per line; decimals as text, so that no reader rounds them."""
    for row in sheet.rows:
        target.write(orjson.dumps(dict(zip(sheet.columns, row, strict=True)), default=_plain).decode() + "\n")


def parquet_bytes(sheet: Sheet) -> bytes:
    """One Parquet file: amounts as decimal128(38, 9), times in microseconds UTC. UsageError without pyarrow."""
    try:
        arrow: Any = import_module("pyarrow")  # optional, and 170 MB: looked for only when it is wanted
        parquet: Any = import_module("pyarrow.parquet")
    except ImportError as problem:
        raise UsageError("Parquet needs pyarrow", advice="pip install 'longproof[parquet]', or write CSV") from problem
    types: dict[type, Any] = {
        bool: arrow.bool_(),
        int: arrow.int64(),
        str: arrow.string(),
        Decimal: arrow.decimal128(38, 9),
        datetime: arrow.timestamp("us", tz="UTC"),
    }
    rows = list(sheet.rows)
    columns: list[Any] = []
    for number, name in enumerate(sheet.columns):
        values = [row[number] for row in rows]
        kind = next((type(value) for value in values if value is not None), _kind_of(name))
        columns.append(arrow.array(values, type=types[kind]))
    table: Any = arrow.table(dict(zip(sheet.columns, columns, strict=True)))
    buffer = io.BytesIO()
    parquet.write_table(table, buffer)
    return buffer.getvalue()


def _kind_of(name: str) -> type:
    """The type of a column without a value."""
    if name.endswith(("_tokens", "_ms", "requests", "status")):
        return int
    if name.endswith(("usd", "_seconds")):
        return Decimal
    return datetime if name.endswith("_at") else bool if name == "charged" else str


def _cell(value: Value) -> str:
    if value is None:
        return ""
    if isinstance(value, datetime):
        return value.isoformat(timespec="microseconds")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r"):
        return "'" + value
    return f"{value:f}" if isinstance(value, Decimal) else str(value)


def _plain(value: object) -> str:
    if isinstance(value, Decimal):
        return f"{value:f}"
    raise TypeError(f"{type(value)} in a sheet")
