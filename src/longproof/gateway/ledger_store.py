"""Where the usage ledger is kept: SQLite by default, PostgreSQL by URL. Append-only in both, by triggers.

Writing is idempotent: a row whose key is there already is left alone, so that a segment may be folded twice.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from operator import attrgetter
from pathlib import Path
from typing import Any, Protocol

from longproof.errors import UsageError
from longproof.gateway.ledger_rows import TABLES, Intent, Row
from longproof.gateway.ledger_sql import (
    FOR_EVER_NS,
    Settled,
    by_table,
    intent_of,
    settled_of,
    settled_query,
    unsettled_query,
)

_SCHEMA_VERSION = 1


class LedgerStore(Protocol):
    """One ledger. All of it blocks: call it from a thread. `place` names it for people, without a password."""

    place: str

    def write(self, rows: Iterable[Row]) -> None:
        """All rows in one transaction, on disk when it returns; rows that are there already are left alone."""
        ...

    def unsettled(self, gateway: str) -> list[Intent]:
        """Intents of one gateway that have no settlement, oldest first."""
        ...

    def settled(self, since_unix_ns: int = 0, until_unix_ns: int = FOR_EVER_NS) -> Iterator[Settled]:
        """Requests that ended in [since, until), oldest first."""
        ...

    def close(self) -> None:
        """Ends the connection."""
        ...


def open_ledger(address: str | Path, *, must_exist: bool = False) -> LedgerStore:
    """A file's path, ``sqlite:///path`` or ``postgresql://user:password@host/database``. `must_exist`: a file that is
    not there is an error, not a new ledger.

    Raises UsageError for another address, or for a PostgreSQL one without its driver.
    """
    text = str(address)
    if text.startswith(("postgresql://", "postgres://")):
        from longproof.gateway.ledger_postgres import PostgresLedger  # noqa: PLC0415 - it needs an optional driver

        return PostgresLedger(text)
    scheme, colon, rest = text.partition("://")
    if colon and scheme != "sqlite":
        raise UsageError(
            f"'{scheme}' is no kind of ledger", advice="name a file, sqlite:///path or postgresql://user@host/database"
        )
    path = Path(rest if colon else text)
    if must_exist and not path.is_file():
        raise UsageError(f"there is no ledger {path}", advice="name the file 'ledger' is set to, or its PostgreSQL URL")
    return SqliteLedger(path)


class SqliteLedger:
    """A file beside the gateway. Write-ahead log, synced at every commit; readers are never in the way."""

    def __init__(self, path: Path) -> None:
        self.place = str(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._db = sqlite3.connect(path, timeout=30, isolation_level=None, check_same_thread=False)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=FULL")
            self._prepare()
        except sqlite3.DatabaseError as problem:
            raise UsageError(f"{path} cannot be used as a ledger: {problem}", advice="name another file") from problem

    def write(self, rows: Iterable[Row]) -> None:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            for table, batch in by_table(rows):
                marks = ", ".join("?" * len(table.columns))
                insert = f"INSERT INTO {table.name} VALUES ({marks}) ON CONFLICT DO NOTHING"  # noqa: S608 - our names
                self._db.executemany(insert, map(attrgetter(*table.names), batch))
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise

    def unsettled(self, gateway: str) -> list[Intent]:
        return [intent_of(row) for row in self._rows(unsettled_query("?"), gateway)]

    def settled(self, since_unix_ns: int = 0, until_unix_ns: int = FOR_EVER_NS) -> Iterator[Settled]:
        yield from map(settled_of, self._rows(settled_query("?", "?"), since_unix_ns, until_unix_ns))

    def close(self) -> None:
        self._db.close()

    def _rows(self, query: str, *values: object) -> Iterator[Sequence[Any]]:
        with closing(self._db.execute(query, values)) as cursor:
            yield from cursor

    def _prepare(self) -> None:
        version = self._db.execute("PRAGMA user_version").fetchone()[0]
        if version not in (0, _SCHEMA_VERSION):
            raise UsageError(
                f"{self.place} is a ledger of version {version}, this longproof writes version {_SCHEMA_VERSION}",
                advice="name another file, or use the longproof that wrote it",
            )
        for table in TABLES:
            self._db.execute(table.ddl())
            for change in ("UPDATE", "DELETE"):
                self._db.execute(
                    f"CREATE TRIGGER IF NOT EXISTS {table.name}_no_{change.lower()} BEFORE {change} ON {table.name}"
                    " BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END"
                )
        self._db.execute("CREATE INDEX IF NOT EXISTS settlements_at ON settlements (at_unix_ns)")
        self._db.execute(f"PRAGMA user_version = {_SCHEMA_VERSION}")
