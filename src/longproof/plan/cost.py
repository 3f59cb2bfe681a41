"""From $/device-hour to a price per million tokens that carries a long context's real cost.

    devices x $/hour ──▶ $/second ──▶ input   (cold)    prefill seconds / tokens
                                      input   (cached)  restore seconds, or nothing where the cache stayed
                                      output            the step's seconds x the larger of
                                                        compute share     1 / sequences in the batch
                                                        memory share      this session's cache bytes / all cache bytes

Residency: while a session decodes, or its cache waits for the next turn, its bytes keep others out. One byte of cache
costs ($/second) / capacity per second; a session's residency is its integral over time, in GB·s. Decode is sold by
that integral because at long contexts memory, not arithmetic, limits the batch.

Everything is at full load: `utilisation` below 1 divides through. Prices are Readings because device prices are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from longproof.domain.measure import Measured, Reading, Unknown, derived
from longproof.errors import UsageError
from longproof.hardware.device import Device
from longproof.plan.capacity import Layout
from longproof.plan.perf_decode import Batch, decode_time
from longproof.plan.perf_estimate import Precision, Rates
from longproof.plan.perf_prefill import Prompt, prefill_time
from longproof.plan.perf_transfer import Tier, restore_time
from longproof.plan.perf_work import ModelWork

MILLION = 1_000_000
GIGABYTE = 1e9
_SECONDS_PER_HOUR = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """A price with its low and high end, in USD."""

    low: float
    typical: float
    high: float

    def times(self, factor: float) -> Band:
        """Every end times a factor."""
        return Band(low=self.low * factor, typical=self.typical * factor, high=self.high * factor)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """What is rented. `usd_per_hour` for one device; `cache_bytes` all devices together hold for sessions;
    `utilisation`: share of the time they earn money."""

    device: Device
    layout: Layout
    usd_per_hour: Band
    cache_bytes: float
    utilisation: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.utilisation <= 1:
            raise UsageError(
                f"a utilisation of {self.utilisation} makes no sense", advice="give a share above 0 and up to 1"
            )
        if self.cache_bytes <= 0:
            raise UsageError(
                "the devices hold no cache: nothing can be sold", advice="choose a layout whose weights leave room"
            )

    @property
    def devices(self) -> int:
        """Devices rented. Under DP attention the replicas share the tensor-parallel group."""
        replicas = 1 if self.layout.dp_attention else self.layout.dp
        return self.layout.tp * self.layout.pp * self.layout.pcp * replicas

    @property
    def usd_per_second(self) -> Band:
        """What a second of all devices costs, with idle time spread over the busy one."""
        return self.usd_per_hour.times(self.devices / _SECONDS_PER_HOUR / self.utilisation)

    @property
    def usd_per_gigabyte_second(self) -> Band:
        """What one GB of cache costs for a second when cache is all that limits the load."""
        return self.usd_per_second.times(GIGABYTE / self.cache_bytes)


def price_band(device: Device) -> Reading[Band]:
    """The device's price range. Unknown when no typical price was found; a missing end is the typical price."""
    typical = device.price.typical
    if not isinstance(typical, Measured):
        return Unknown(reason=f"no typical price of {device.title} was found: give --usd-per-hour")
    low, high = device.price.low, device.price.high
    return derived(
        Band(
            low=low.value if isinstance(low, Measured) else typical.value,
            typical=typical.value,
            high=high.value if isinstance(high, Measured) else typical.value,
        ),
        typical.source,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """One kind of request: `input_tokens` of which `cached_tokens` were computed before, then `output_tokens`.

    `idle_seconds`: how long the session keeps its cache without decoding (between turns).
    """

    input_tokens: int
    output_tokens: int
    cached_tokens: int = 0
    idle_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenPrices:
    """USD per million tokens at one context. `sessions`: how many fit at once. `residency_gigabyte_seconds`: of one
    request, decoding and idle. `memory_bound`: the cache, not `max_sequences`, limits the batch. `band`: how far the
    times can be off, relative."""

    context_tokens: int
    sessions: int
    memory_bound: bool
    input_cold: Band
    input_cached: Band
    output: Band
    residency_gigabyte_seconds: float
    request_usd: Band
    band: float


def token_prices(
    work: ModelWork,
    fleet: Fleet,
    traffic: Traffic,
    *,
    tier: Tier | None = None,
    max_sequences: int = 256,
    precision: Precision | None = None,
    rates: Rates | None = None,
    narrow_cache: bool = False,
) -> TokenPrices:
    """What a request costs at full load, per million tokens of each kind.

    A cached token costs its share of the fetch from `tier`, or nothing but residency where it stayed on the device
    (`tier` None). Idle residency is charged to output tokens: the session that waits pays for its place. At full load
    a pipeline's bubble is filled by other prompts, so it is not charged. Raises UsageError when not one session fits,
    or when cached tokens are not fewer than input tokens.
    """
    session_bytes = _session_bytes(work, traffic)
    fitting = _fitting(fleet, session_bytes, traffic, max_sequences)
    sessions = min(fitting, max_sequences)
    new_tokens = traffic.input_tokens - traffic.cached_tokens
    cold = prefill_time(
        work,
        fleet.device,
        Prompt(new_tokens=new_tokens, cached_tokens=traffic.cached_tokens),
        layout=fleet.layout,
        precision=precision,
        rates=rates,
    )
    middle = traffic.input_tokens + traffic.output_tokens / 2
    step = decode_time(
        work,
        fleet.device,
        Batch(sequences=math.ceil(sessions / fleet.layout.pp), context_tokens=middle),
        layout=fleet.layout,
        precision=precision,
        rates=rates,
        narrow_cache=narrow_cache,
    )
    decoding = step.seconds * traffic.output_tokens
    busy = (cold.seconds - cold.part("bubble")) / fleet.layout.dp
    input_cold = fleet.usd_per_second.times(busy / new_tokens * MILLION)
    input_cached = _fetched(work, fleet, traffic.cached_tokens, tier)
    output = _output(fleet, traffic, sessions, session_bytes, decoding)
    return TokenPrices(
        context_tokens=traffic.input_tokens + traffic.output_tokens,
        sessions=sessions,
        memory_bound=fitting <= max_sequences,
        input_cold=input_cold,
        input_cached=input_cached,
        output=output,
        residency_gigabyte_seconds=session_bytes / GIGABYTE * (decoding + traffic.idle_seconds),
        request_usd=_sum(
            input_cold.times(new_tokens / MILLION),
            input_cached.times(traffic.cached_tokens / MILLION),
            output.times(traffic.output_tokens / MILLION),
        ),
        band=max(cold.band, step.band),
    )


def _session_bytes(work: ModelWork, traffic: Traffic) -> float:
    if not 0 <= traffic.cached_tokens < traffic.input_tokens or traffic.output_tokens < 1:
        raise UsageError(
            f"{traffic.cached_tokens} cached of {traffic.input_tokens} input and {traffic.output_tokens} output tokens "
            "make no request",
            advice="give fewer cached than input tokens and at least one output token",
        )
    return work.sequence_bytes(traffic.input_tokens + traffic.output_tokens)


def _fitting(fleet: Fleet, session_bytes: float, traffic: Traffic, otherwise: int) -> int:
    if session_bytes == 0:
        return otherwise
    fitting = int(fleet.cache_bytes // session_bytes)
    if fitting < 1:
        raise UsageError(
            f"one session of {traffic.input_tokens + traffic.output_tokens:,} tokens takes "
            f"{session_bytes / GIGABYTE:.2f} GB of cache, the devices hold {fleet.cache_bytes / GIGABYTE:.2f} GB",
            advice="shorten the request, narrow the cache dtype, or rent more devices",
        )
    return fitting


def _fetched(work: ModelWork, fleet: Fleet, cached_tokens: int, tier: Tier | None) -> Band:
    """Per million cached tokens. A fetch occupies the link and the place it fills, not the arithmetic: its residency is
    what it costs."""
    if tier is None or not cached_tokens:
        return fleet.usd_per_second.times(0.0)
    held = work.sequence_bytes(cached_tokens)
    seconds = restore_time(held, tier).seconds
    return fleet.usd_per_gigabyte_second.times(held / GIGABYTE * seconds * MILLION / cached_tokens)


def _output(fleet: Fleet, traffic: Traffic, sessions: int, session_bytes: float, decoding_seconds: float) -> Band:
    """Per million output tokens: the larger of a session's place in the batch and its place in memory, and idling."""
    share = max(1 / sessions, session_bytes / fleet.cache_bytes)
    decoding = fleet.usd_per_second.times(decoding_seconds * share)
    idle = fleet.usd_per_gigabyte_second.times(session_bytes / GIGABYTE * traffic.idle_seconds)
    return _sum(decoding, idle).times(MILLION / traffic.output_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class BandPrice:
    """Prices at one context band, or why there are none. `name`: ≤32k, 128k, 1M …"""

    name: str
    prices: Reading[TokenPrices]


STANDARD_BANDS = (("≤32k", 32_000), ("128k", 128_000), ("1M", 1_000_000))
"""The bands long-context APIs sell."""


def prices_by_band(
    work: ModelWork,
    fleet: Fleet,
    *,
    output_tokens: int = 1000,
    cached_share: float = 0.0,
    bands: Sequence[tuple[str, int]] = STANDARD_BANDS,
    tier: Tier | None = None,
    max_sequences: int = 256,
    precision: Precision | None = None,
    rates: Rates | None = None,
) -> tuple[BandPrice, ...]:
    """`token_prices` at the top of each band; a band that does not fit is Unknown with the reason."""
    found: list[BandPrice] = []
    for name, tokens in bands:
        traffic = Traffic(
            input_tokens=tokens, output_tokens=output_tokens, cached_tokens=min(int(tokens * cached_share), tokens - 1)
        )
        try:
            prices: Reading[TokenPrices] = derived(
                token_prices(
                    work, fleet, traffic, tier=tier, max_sequences=max_sequences, precision=precision, rates=rates
                ),
                "compute time plus cache residency at full load",
            )
        except UsageError as refused:
            prices = Unknown(reason=refused.problem)
        found.append(BandPrice(name=name, prices=prices))
    return tuple(found)


def _sum(*bands: Band) -> Band:
    return Band(low=sum(b.low for b in bands), typical=sum(b.typical for b in bands), high=sum(b.high for b in bands))
