"""The rules a controller works by, as values. Files and command lines are read elsewhere (`gateway.config`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from longproof.domain.units import NS_PER_S
from longproof.policy.admission import AdmissionRule
from longproof.policy.claim_gate import ProvenLimits
from longproof.policy.ledger import Pool
from longproof.policy.prefill_cost import PrefillCost


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaRule:
    """One replica: what it holds, and how fast it works.

    `pools`: its stages, each with capacity and block need; `admission`: its sequence limit and how it reserves.
    `block_tokens`: tokens per block of `Arrival.blocks`. `pool`: the pool (short, long …) it belongs to and the SKU it
    is sold under. `prefill_window_tokens`: uncached tokens that may be in prefill at once; more of them wait here,
    where their order can still change (None = no bound). One request alone may exceed it. `step_tokens`: the engine's
    batch of prefill tokens per step, what a prefill costs running streams at each step. `prefill_stages`: stages that
    are free again at the first token (a prefill/decode pair). `learn_prefill`, `learn_decode`: `prefill` and
    `decode_ns_per_token` are assumed; go by what first tokens and streams show.
    """

    name: str
    models: tuple[str, ...]
    pools: tuple[Pool, ...]
    admission: AdmissionRule
    prefill: PrefillCost
    decode_ns_per_token: int = 20_000_000
    block_tokens: int = 16
    pool: str = "default"
    prefill_window_tokens: int | None = None
    step_tokens: int | None = None
    prefill_stages: tuple[str, ...] = ()
    learn_prefill: bool = False
    learn_decode: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WatermarkRule:
    """Shares of a stage's capacity. A stage that gets fuller than `stop` takes nothing new until it is down to
    `resume`. Admission never fills beyond `stop`; what runs may grow beyond it."""

    stop: float = 0.95
    resume: float = 0.90

    def __post_init__(self) -> None:
        if not 0 <= self.resume <= self.stop <= 1:
            raise ValueError(f"not watermarks: {self}")


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRule:
    """How requests wait.

    `age_bound_ns`: who has waited longer is overdue: its size no longer counts against it, and if it does not fit, a
    replica is emptied for it. `overdue_share`: of the work that is let in while others wait, the share the overdue get
    at most (all of it when nobody else waits). `longest_wait_ns`: who has waited this long is refused. `most_waiting`,
    `most_waiting_per_tenant`: beyond it arrivals are refused at once. `count_from_tokens`: below this upper bound the
    exact length is of no use and is not asked for. `engine_backoff_ns`: a Retry-After of engines up to this long is
    waited out here, a longer one is passed on. The figures behind the defaults: docs/concepts/routing.md, "Overload".
    """

    age_bound_ns: int = 30 * NS_PER_S
    overdue_share: float = 0.25
    longest_wait_ns: int = 120 * NS_PER_S
    most_waiting: int = 10_000
    most_waiting_per_tenant: int | None = None
    count_from_tokens: int = 256
    engine_backoff_ns: int = NS_PER_S

    def __post_init__(self) -> None:
        times = self.age_bound_ns, self.longest_wait_ns, self.engine_backoff_ns
        if min(*times, self.most_waiting, self.most_waiting_per_tenant or 0) < 0:
            raise ValueError("a bound of the queue is negative")
        if not 0 <= self.overdue_share <= 1:
            raise ValueError(f"an overdue share of {self.overdue_share} is not within 0 and 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class SloRule:
    """What was promised: the first token within `ttft_ns` + `ttft_ns_per_token` · uncached input; between tokens of a
    running stream `itl_ns`; and `tpot_ns` per token of a whole answer. An arrival whose prediction misses the first is
    refused at once; a prefill that would break the second waits while streams run, up to the age bound; and so does
    whatever would be one stream too many for the third. None = nothing was promised.

    `min_hit` by model: a request is refused when a smaller share of its input is expected to be in some replica's
    cache, so that a cold one goes elsewhere instead of taking minutes of prefill here."""

    ttft_ns: int | None = None
    ttft_ns_per_token: int = 0
    itl_ns: int | None = None
    tpot_ns: int | None = None
    min_hit: Mapping[str, float] = field(default_factory=dict[str, float])

    def __post_init__(self) -> None:
        if self.tpot_ns is not None and self.tpot_ns <= 0:
            raise ValueError(f"{self.tpot_ns} ns per token is no promise")
        wrong = [f"{model} {share}" for model, share in self.min_hit.items() if not 0 <= share <= 1]
        if wrong:
            raise ValueError(f"a share of cache hits is not within 0 and 1: {', '.join(wrong)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class KvBudget:
    """KV token-seconds of one tenant: a bucket of `burst_token_seconds` that fills at `token_seconds_per_s`."""

    token_seconds_per_s: float
    burst_token_seconds: float

    def __post_init__(self) -> None:
        if self.token_seconds_per_s <= 0 or self.burst_token_seconds <= 0:
            raise ValueError(f"not a budget: {self}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantRule:
    """One tenant. A tenant of weight 2 gets twice the service of one of weight 1 when both wait."""

    name: str
    weight: float = 1.0
    budget: KvBudget | None = None
    most_running: int | None = None
    most_waiting: int | None = None

    def __post_init__(self) -> None:
        if self.weight <= 0:
            raise ValueError(f"tenant {self.name} has a weight of {self.weight}")


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerRule:
    """After `failures` in a row a replica is left alone for `open_ns`, twice as long each time, at most
    `longest_ns`."""

    failures: int = 5
    open_ns: int = NS_PER_S
    longest_ns: int = 60 * NS_PER_S


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerConfig:
    """Everything a controller is told before its first arrival. `tenants` holds those with rules of their own; any
    other name is a tenant of `other_tenants`. `proven` is by model."""

    replicas: tuple[ReplicaRule, ...]
    watermark: WatermarkRule = WatermarkRule()
    queue: QueueRule = QueueRule()
    slo: SloRule = SloRule()
    breaker: BreakerRule = BreakerRule()
    tenants: tuple[TenantRule, ...] = ()
    other_tenants: TenantRule = TenantRule(name="")
    proven: Mapping[str, ProvenLimits] = field(default_factory=dict[str, ProvenLimits])

    def __post_init__(self) -> None:
        names = [replica.name for replica in self.replicas]
        if len(set(names)) != len(names):
            raise ValueError(f"two replicas have one name: {', '.join(names)}")
