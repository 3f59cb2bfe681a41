"""The two facts the usage ledger keeps about a request, as rows of two append-only tables.

    intent        before it is sent: who asked what of which replica           ┐ one `entry` joins them;
    settlement    at its end: how it ended, what it used, what it costs        ┘ each stands at most once

An intent without a settlement is a request that is still running, or one whose gateway was killed. Token counts are
tokens, `kv_token_ms` token-milliseconds, prices micro-USD per million, amounts nano-USD; None is "not known", never 0.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import get_type_hints

from longproof.frozen import frozen
from longproof.policy.metering import Bill, CacheSource, Ending, RequestUsage, UsageSource


@frozen(kw_only=True)
class Intent:
    """A request that is about to be sent to a replica. `entry` is unique among all gateways for ever; `request_id` is
    what the client sees and may repeat. `key`: the API key's name, never the key. `at_unix_ns`: UTC. `slot`: where its
    progress is counted, None = nowhere."""

    entry: str
    gateway: str
    request_id: str
    tenant: str
    key: str
    model: str
    replica: str
    pool: str
    input_tokens: int
    allowance_tokens: int
    at_unix_ns: int
    slot: int | None = None


@frozen(kw_only=True)
class Settlement:
    """How a request ended. `status`: of the answer the client got, 0 = none. `kv_token_ms`: what its tokens occupied,
    which is billed; `held_token_ms`: what the controller's ledger held for it, reservations included, which budgets are
    spent by. The prices are those of that moment."""

    entry: str
    ending: str
    status: int
    at_unix_ns: int
    ran_ns: int
    ttft_ns: int | None
    sku: str | None
    charged: bool
    input_cold_tokens: int
    input_cached_tokens: int | None
    output_tokens: int
    kv_token_ms: int | None
    held_token_ms: int | None
    counted_by: str
    cached_from: str
    input_cold_price: int | None
    input_cached_price: int | None
    output_price: int | None
    residency_price: int | None
    input_cold_nano_usd: int | None
    input_cached_nano_usd: int | None
    output_nano_usd: int | None
    residency_nano_usd: int | None
    total_nano_usd: int | None


Row = Intent | Settlement


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table of the ledger: its row type and its columns with their SQL types. The first column is the key."""

    name: str
    row: type[Row]
    columns: tuple[tuple[str, str], ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The columns' names, in order."""
        return tuple(name for name, _ in self.columns)

    def ddl(self) -> str:
        """CREATE TABLE, in the SQL that SQLite and PostgreSQL share."""
        first, *others = self.columns
        parts = [f"{first[0]} {first[1]} PRIMARY KEY", *(f"{name} {kind}" for name, kind in others)]
        return f"CREATE TABLE IF NOT EXISTS {self.name} ({', '.join(parts)})"


def _columns(row: type[Row]) -> tuple[tuple[str, str], ...]:
    hints = get_type_hints(row)
    return tuple((f.name, _sql_type(hints[f.name])) for f in fields(row))


def _sql_type(hint: object) -> str:
    kind = {str: "TEXT", int: "BIGINT", bool: "BOOLEAN"}
    if isinstance(hint, type):
        return f"{kind[hint]} NOT NULL"
    inner = next(t for t in getattr(hint, "__args__", ()) if t is not type(None))
    return kind[inner]


INTENTS = Table(name="intents", row=Intent, columns=_columns(Intent))
SETTLEMENTS = Table(name="settlements", row=Settlement, columns=_columns(Settlement))
TABLES = (INTENTS, SETTLEMENTS)


@frozen(kw_only=True)
class Timing:
    """When a request ended. `ran_ns`: from being sent to its end; `ttft_ns`: to its first output token;
    `held_token_ms`: what was held for it meanwhile."""

    at_unix_ns: int
    ran_ns: int
    ttft_ns: int | None = None
    held_token_ms: int | None = None


def settlement(
    entry: str, ending: Ending, status: int, timing: Timing, usage: RequestUsage, priced: Bill
) -> Settlement:
    """The row for a bill."""
    cold, cached, output, residency = priced.lines  # in the order of `Kind`
    return Settlement(
        entry=entry,
        ending=str(ending),
        status=status,
        at_unix_ns=timing.at_unix_ns,
        ran_ns=timing.ran_ns,
        ttft_ns=timing.ttft_ns,
        sku=priced.sku,
        charged=priced.charged,
        input_cold_tokens=usage.cold_tokens,
        input_cached_tokens=usage.cached_tokens,
        output_tokens=usage.output_tokens,
        kv_token_ms=usage.kv_token_ms,
        held_token_ms=timing.held_token_ms,
        counted_by=str(usage.counted_by),
        cached_from=str(usage.cached_from),
        input_cold_price=cold.price,
        input_cached_price=cached.price,
        output_price=output.price,
        residency_price=residency.price,
        input_cold_nano_usd=cold.amount_nano_usd,
        input_cached_nano_usd=cached.amount_nano_usd,
        output_nano_usd=output.amount_nano_usd,
        residency_nano_usd=residency.amount_nano_usd,
        total_nano_usd=priced.total_nano_usd,
    )


def usage_left_by(intent: Intent, output_tokens: int) -> RequestUsage:
    """The usage of a request whose gateway was killed: what was known before it was sent (perhaps a bound of its input
    only), and the output passed on."""
    return RequestUsage(
        input_tokens=intent.input_tokens,
        output_tokens=output_tokens,
        cached_tokens=None,
        cached_from=CacheSource.UNKNOWN,
        kv_token_ms=None,
        counted_by=UsageSource.BOUND,
    )
