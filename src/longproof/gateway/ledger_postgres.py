"""The usage ledger in a PostgreSQL database, which several gateways may share."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Iterator
from contextlib import suppress
from importlib import import_module
from typing import Any
from urllib.parse import unquote, urlsplit

import orjson

from longproof.errors import TargetError, UsageError
from longproof.gateway.ledger_rows import TABLES, Intent, Row, Table
from longproof.gateway.ledger_sql import (
    FOR_EVER_NS,
    Settled,
    by_table,
    intent_of,
    settled_of,
    settled_page_query,
    unsettled_query,
)

PAGE_ROWS = 5_000
_START_LOCK = 7_305_812
"""Two gateways may start at once, and IF NOT EXISTS alone races."""


class PostgresLedger:
    """A database that several gateways share. A batch is one statement; the connection is made anew after an error."""

    def __init__(self, url: str) -> None:
        self._parts = urlsplit(url)
        host = self._parts.hostname or "localhost"
        self.place = f"postgresql://{host}:{self._parts.port or 5432}{self._parts.path}"
        try:
            self._db: Any = self._connect()
        except UsageError:
            raise
        except Exception as problem:  # the driver's own errors have no common base that is not Exception
            raise TargetError(
                f"the ledger at {self.place} cannot be used: {problem}",
                advice="start the database, or mend its address, user and password",
            ) from problem

    def write(self, rows: Iterable[Row]) -> None:
        inserts = [(_insert(table), orjson.dumps(batch).decode()) for table, batch in by_table(rows)]
        self._within([("BEGIN", None), *inserts, ("COMMIT", None)])

    def unsettled(self, gateway: str) -> list[Intent]:
        return [intent_of(row) for row in self._within([(unsettled_query(":value"), gateway)])]

    def settled(self, since_unix_ns: int = 0, until_unix_ns: int = FOR_EVER_NS) -> Iterator[Settled]:
        after, entry = int(since_unix_ns), ""
        while True:  # page by page: a year of requests is more than fits into memory
            page = self._within([(settled_page_query(after, int(until_unix_ns), ":value", PAGE_ROWS), entry)])
            for row in page:
                intent, end = settled_of(row)
                after, entry = end.at_unix_ns, end.entry
                yield intent, end
            if len(page) < PAGE_ROWS:
                return

    def close(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None
            _let_go(self._socket)

    def _within(self, statements: Iterable[tuple[str, str | None]]) -> list[Any]:
        db: Any = self._connect() if self._db is None else self._db
        self._db = None  # whatever state an error leaves it in, the next call starts afresh
        answer: Any = None
        try:
            for sql, value in statements:
                answer = db.run(sql) if value is None else db.run(sql, value=value)
        except BaseException:
            with suppress(Exception):  # closing a broken connection may fail in any way
                db.close()
            _let_go(self._socket)
            raise
        self._db = db
        return answer or []

    def _connect(self) -> Any:
        try:
            driver: Any = import_module("pg8000.native")  # optional: looked for only when it is wanted
        except ImportError as problem:
            raise UsageError(
                "a PostgreSQL ledger needs its driver", advice="pip install 'longproof[postgres]'"
            ) from problem
        parts = self._parts
        self._socket = socket.create_connection((parts.hostname or "localhost", parts.port or 5432), timeout=30)
        db: Any = driver.Connection(
            unquote(parts.username or "postgres"),
            password=None if parts.password is None else unquote(parts.password),
            database=parts.path.lstrip("/") or None,
            sock=self._socket,
        )
        for statement in _postgres_schema():
            db.run(statement)
        return db


def _let_go(connection: socket.socket) -> None:
    """Closes a socket at once: pg8000 leaves that to the garbage collector after an error."""
    fd = connection.detach()
    if fd >= 0:
        os.close(fd)


def _postgres_schema() -> Iterator[str]:
    yield f"SELECT pg_advisory_lock({_START_LOCK})"
    yield (
        "CREATE OR REPLACE FUNCTION longproof_append_only() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE EXCEPTION 'the ledger is append-only'; END $$"
    )
    for table in TABLES:
        yield table.ddl()
        yield (
            f"CREATE OR REPLACE TRIGGER {table.name}_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON {table.name}"
            " FOR EACH STATEMENT EXECUTE FUNCTION longproof_append_only()"
        )
    yield "CREATE INDEX IF NOT EXISTS settlements_at ON settlements (at_unix_ns)"
    yield f"SELECT pg_advisory_unlock({_START_LOCK})"


def _insert(table: Table) -> str:
    """A whole batch in one statement and one parameter: a round trip, not one per row."""
    names, types = ", ".join(table.names), ", ".join(f"{n} {kind.partition(' ')[0]}" for n, kind in table.columns)
    return (
        f"INSERT INTO {table.name} ({names}) SELECT {names}"  # noqa: S608 - our names
        f" FROM jsonb_to_recordset(CAST(:value AS jsonb)) AS r({types}) ON CONFLICT DO NOTHING"
    )
