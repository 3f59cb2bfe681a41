"""Lies that show only under load, over time, after a restart, or between two engines. `lies` has all in one table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from longproof.testing.lie import Lie


@dataclass(frozen=True, slots=True, kw_only=True)
class LeakKv(Lie):
    """`blocks` of the KV pool are lost for ever with each request that is cancelled, that finishes, or either."""

    name: ClassVar[str] = "leak_kv"
    blocks: int = 4
    on: Literal["cancel", "finish", "both"] = "cancel"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowCancel(Lie):
    """What a cancelled request held, its slot too, comes back only `for_s` later."""

    name: ClassVar[str] = "slow_cancel"
    for_s: float = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LostAbortCounter(Lie):
    """Cancelled requests are counted nowhere."""

    name: ClassVar[str] = "lost_abort_counter"


@dataclass(frozen=True, slots=True, kw_only=True)
class StaleGauges(Lie):
    """The KV usage in the metrics stays what it was when it was first asked for."""

    name: ClassVar[str] = "stale_gauges"


@dataclass(frozen=True, slots=True, kw_only=True)
class StarveShort(Lie):
    """While a prompt of more than `above_tokens` is prefilled nobody else makes any progress, and its prefill takes
    `stretch` times as long."""

    name: ClassVar[str] = "starve_short"
    above_tokens: int = 1024
    stretch: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StarveLong(Lie):
    """A prompt of more than `above_tokens` waits until nobody else has been there for `calm_s`."""

    name: ClassVar[str] = "starve_long"
    above_tokens: int = 1024
    calm_s: float = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmitThenHang(Lie):
    """Headers and the role chunk come, the gauges say that it runs, and never a token, when it is admitted next to at
    least `beside` others."""

    name: ClassVar[str] = "admit_then_hang"
    beside: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Degrade(Lie):
    """Every request makes all later work slower by `per_request`, up to `most`; or, with `after_s` set, all is `most`
    times slower from so long after the start on."""

    name: ClassVar[str] = "degrade"
    per_request: float = 1.02
    most: float = 8.0
    after_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeakMemory(Lie):
    """The process grows by `bytes` with every request."""

    name: ClassVar[str] = "leak_memory"
    bytes: int = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowRecovery(Lie):
    """After more than `over_waiting` requests waited together, all is `factor` times slower until `for_s` after that
    was last so."""

    name: ClassVar[str] = "slow_recovery"
    over_waiting: int = 4
    for_s: float = 2.0
    factor: float = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Thrash(Lie):
    """A request loses its blocks after every `every_tokens` tokens of output, whether the pool is full or not, and is
    computed again, when at least `running` requests run."""

    name: ClassVar[str] = "thrash"
    every_tokens: int = 8
    running: int = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class NoRetryAfter(Lie):
    """With `limit` requests in the engine a further one is refused: 503, without a word on when to come again."""

    name: ClassVar[str] = "no_retry_after"
    limit: int = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class BusyInStream(Lie):
    """With `limit` requests in the engine a further streaming request gets 200, then the refusal inside the stream, as
    vLLM 0.32 does it; others get 503 without Retry-After."""

    name: ClassVar[str] = "busy_in_stream"
    limit: int = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartChanges(Lie):
    """From the second start on it is another engine: window and KV pool are scaled, `cache` "off" means that prefixes
    are no longer cached, and all work takes `slower` times as long."""

    name: ClassVar[str] = "restart_changes"
    window_scale: float = 1.0
    kv_scale: float = 0.5
    cache: Literal["as before", "off"] = "as before"
    slower: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PdBootstrapFail(Lie):
    """The decode side cannot reach the prefill side's KV: it gives up after `after_s` with an error."""

    name: ClassVar[str] = "pd_bootstrap_fail"
    after_s: float = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class PdTransferSlow(Lie):
    """The transfer from the prefill side takes `factor` times as long, and at least `least_s`."""

    name: ClassVar[str] = "pd_transfer_slow"
    factor: float = 20.0
    least_s: float = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class PdRecompute(Lie):
    """The decode side computes the prompt again; the answer's usage says that it was transferred, the metrics tell the
    truth."""

    name: ClassVar[str] = "pd_recompute"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecDecodeOutputChanges(Lie):
    """With speculation the answer is another one from token `after_tokens` on."""

    name: ClassVar[str] = "spec_decode_output_changes"
    after_tokens: int = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmDamage(Lie):
    """The answer is wrong when at least `cached_tokens` of the prompt came from the cache."""

    name: ClassVar[str] = "warm_damage"
    cached_tokens: int = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class WrongWhenBusy(Lie):
    """A request that runs beside others gets the answer to another one's prompt."""

    name: ClassVar[str] = "wrong_when_busy"


LIES_OF_LOAD: tuple[type[Lie], ...] = (
    LeakKv,
    SlowCancel,
    LostAbortCounter,
    StaleGauges,
    StarveShort,
    StarveLong,
    AdmitThenHang,
    Degrade,
    LeakMemory,
    SlowRecovery,
    Thrash,
    NoRetryAfter,
    BusyInStream,
    RestartChanges,
    PdBootstrapFail,
    PdTransferSlow,
    PdRecompute,
    SpecDecodeOutputChanges,
    WarmDamage,
    WrongWhenBusy,
)
LIES_OF_SCHEDULING: tuple[type[Lie], ...] = (StarveShort, StarveLong, Thrash)
"""Those that need requests to share steps."""
