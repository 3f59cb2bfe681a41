"""What one request used and what that costs. Pure and exact: integers, rounded once per line.

    quantity                              unit             price                       amount
    input cold    computed for it         tokens           ┐                           ┐
    input cached  taken from a cache      tokens           ├ micro-USD per million     ├ nano-USD
    output        generated               tokens           │ of the unit               │
    residency     cache it occupied       token-seconds    ┘                           ┘

    micro-USD per million is pico-USD each; x quantity / 1,000 → nano-USD, half to even.

Residency is sold because at long contexts memory, not arithmetic, limits the batch (`plan.cost`): a request of 200,000
tokens that idles for a minute keeps out 12,000,000 token-seconds of others. It is what a request's tokens occupied, not
what was reserved for it: reservations depend on the engine's policy and on upper bounds of ours, tokens and times do
not, and anybody can recompute the line from them.

What is not known is not a number: a request whose cache hits nobody reported has `cached_tokens` None and is billed as
cold; a line without a price has the amount None, and so has the whole bill.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum

from longproof.domain.units import NS_PER_MS
from longproof.frozen import frozen

DEAREST = 10**9
"""Micro-USD per million: no price is above it, so that amounts stay within 64 bits."""


class Kind(StrEnum):
    """What a line of a bill counts."""

    INPUT_COLD = "input_cold"
    INPUT_CACHED = "input_cached"
    OUTPUT = "output"
    RESIDENCY = "kv_token_seconds"


class UsageSource(StrEnum):
    """Who counted."""

    ENGINE = "engine"
    """The engine's own usage object."""
    GATEWAY = "gateway"
    """Our count of the prompt and of the tokens passed on: the engine sent no usage, or did not live to."""
    BOUND = "bound"
    """As GATEWAY, but nobody had counted the prompt when it ended: its input is an upper bound, and a bill does not
    rest on that."""


class CacheSource(StrEnum):
    """Who said how much of the input was cached."""

    ENGINE = "engine"
    PREDICTED = "predicted"
    """The router's block index at the moment of dispatch."""
    UNKNOWN = "unknown"


class Ending(StrEnum):
    """How a metered request ended, as far as its bill is concerned."""

    COMPLETED = "completed"
    CANCELLED = "cancelled"
    """The client left; what it had used by then is its own."""
    FAILED = "failed"
    """The engine or the connection to it broke."""
    REJECTED = "rejected"
    """The engine would not begin with it."""
    INTERRUPTED = "interrupted"
    """The gateway itself was killed while the request ran."""


CHARGED = frozenset({Ending.COMPLETED, Ending.CANCELLED})
"""Endings that are billed unless a price book says otherwise. The others are metered, with every amount 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Micro-USD per million tokens (per million token-seconds for residency); None = no price is set.

    125_000 is 0.125 USD per million tokens.
    """

    input_cold: int | None = None
    input_cached: int | None = None
    output: int | None = None
    residency: int | None = None

    def __post_init__(self) -> None:
        if any(price is not None and not 0 <= price <= DEAREST for price in map(self.of, Kind)):
            raise ValueError(f"a price is negative, or above 1,000 USD per million: {self}")

    def of(self, kind: Kind) -> int | None:
        """The price of one kind of line."""
        match kind:
            case Kind.INPUT_COLD:
                return self.input_cold
            case Kind.INPUT_CACHED:
                return self.input_cached
            case Kind.OUTPUT:
                return self.output
            case Kind.RESIDENCY:
                return self.residency


def micro_usd(usd: Decimal | str | int) -> int:
    """USD per million as people write it → micro-USD per million. Raises ValueError beyond a micro-dollar's
    precision."""
    micros = Decimal(usd) * 1_000_000
    if micros != micros.to_integral_value():
        raise ValueError(f"{usd} USD per million is finer than 0.000001 USD")
    return int(micros)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sku:
    """Something that is sold: requests to `models` served by `pools`; an empty tuple means any."""

    name: str
    prices: Prices
    models: tuple[str, ...] = ()
    pools: tuple[str, ...] = ()

    def covers(self, model: str, pool: str) -> bool:
        """Whether a request to `model` served by `pool` is sold as this."""
        return (not self.models or model in self.models) and (not self.pools or pool in self.pools)


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceBook:
    """What is sold, the first match deciding, and which endings are charged."""

    skus: tuple[Sku, ...] = ()
    charged: frozenset[Ending] = CHARGED

    def sku_of(self, model: str, pool: str) -> Sku | None:
        """The SKU of a request; None when nothing on the list covers it."""
        return next((sku for sku in self.skus if sku.covers(model, pool)), None)


def residency_token_ms(input_tokens: int, output_tokens: int, ran_ns: int, ttft_ns: int | None) -> int:
    """The cache a request's tokens occupied, integrated over time, in token-milliseconds, rounded down.

        tokens │        ___----┐        the input from being sent to the end,
               │ ┌---¯¯¯░░░░░░░│        the output growing evenly from the first token to the end
               │ │░░░░░░░░░░░░░│
               └─┴───┴─────────┴─▶ time
               sent  ttft     ran

    Cached input counts too: it occupies the cache like any other. `ttft_ns` None = no output came.
    """
    grew_ns = 0 if ttft_ns is None else max(0, ran_ns - ttft_ns)
    return (2 * input_tokens * max(0, ran_ns) + output_tokens * grew_ns) // (2 * NS_PER_MS)


@frozen(kw_only=True)
class RequestUsage:
    """What one request used. `kv_token_ms`: its residency in token-milliseconds; None = nobody kept track."""

    input_tokens: int
    output_tokens: int
    cached_tokens: int | None
    cached_from: CacheSource
    kv_token_ms: int | None
    counted_by: UsageSource

    def __post_init__(self) -> None:
        if min(self.input_tokens, self.output_tokens, self.cached_tokens or 0, self.kv_token_ms or 0) < 0:
            raise ValueError(f"a count is negative: {self}")
        if (self.cached_tokens or 0) > self.input_tokens:
            raise ValueError(f"more is cached than there is: {self}")

    @property
    def cold_tokens(self) -> int:
        """Input that is billed as computed."""
        return self.input_tokens - (self.cached_tokens or 0)


@frozen(kw_only=True)
class Line:
    """One line of a bill. `quantity` in tokens, for residency in token-milliseconds; `amount_nano_usd` None = no price
    is set for something that was used, or the quantity is unknown though it has a price."""

    kind: Kind
    quantity: int | None
    price: int | None
    amount_nano_usd: int | None


@frozen(kw_only=True)
class Bill:
    """What a request costs. `sku` None = nothing on the price list covers it."""

    sku: str | None
    lines: tuple[Line, ...]
    charged: bool

    @property
    def total_nano_usd(self) -> int | None:
        """The sum; None where a line has no amount."""
        return total([line.amount_nano_usd for line in self.lines]) if self.lines else None

    def line(self, kind: Kind) -> Line:
        """The line of one kind."""
        return next(line for line in self.lines if line.kind is kind)


def bill(usage: RequestUsage, *, model: str, pool: str, ending: Ending, book: PriceBook) -> Bill:
    """The four lines of a request, in the order of `Kind`, whatever is zero or unknown among them.

    What rests on a mere bound of the input is listed and costs nothing.
    """
    sku = book.sku_of(model, pool)
    charged = ending in book.charged
    prices = _NO_PRICES if sku is None else sku.prices
    counted = charged and usage.counted_by is not UsageSource.BOUND
    lines = (
        _line(Kind.INPUT_COLD, usage.cold_tokens, prices.input_cold, charged=counted),
        _line(Kind.INPUT_CACHED, usage.cached_tokens or 0, prices.input_cached, charged=counted),
        _line(Kind.OUTPUT, usage.output_tokens, prices.output, charged=charged),
        _line(Kind.RESIDENCY, usage.kv_token_ms, prices.residency, charged=counted),
    )
    return Bill(sku=None if sku is None else sku.name, lines=lines, charged=charged)


_NO_PRICES = Prices()


def _line(kind: Kind, quantity: int | None, price: int | None, *, charged: bool) -> Line:
    return Line(kind=kind, quantity=quantity, price=price, amount_nano_usd=_amount(kind, quantity, price, charged))


def _amount(kind: Kind, quantity: int | None, price: int | None, charged: bool) -> int | None:
    if not charged or quantity == 0 or price == 0:
        return 0
    if price is None and kind is Kind.RESIDENCY:
        return 0  # selling residency is a choice: a SKU without a price for it sells tokens alone
    if quantity is None or price is None:
        return None
    per_nano = 1_000_000 if kind is Kind.RESIDENCY else 1_000  # token-milliseconds are a thousandth of the unit
    whole, rest = divmod(quantity * price, per_nano)
    return whole + (2 * rest > per_nano or (2 * rest == per_nano and whole % 2 == 1))


def total(amounts: Iterable[int | None]) -> int | None:
    """The sum of amounts; None as soon as one of them is."""
    summed = 0
    for amount in amounts:
        if amount is None:
            return None
        summed += amount
    return summed
