"""The plan, in a straight line: a model, an engine, a layout and a device in, everything that follows out.

    geometry + launch ─▶ memory per rank (given, or estimated term by term)
                      ─▶ capacity by the engine's own rules ─▶ pools ─▶ limit? every stage? now?
    geometry + device ─▶ prefill and decode time ─▶ price by context band
    mix + pools       ─▶ how many sessions run together

Pure: files are read before, texts are written after. What cannot be known is Unknown with its reason; nothing is filled
in by a model's size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from longproof.domain.measure import Measured, Reading, Unknown, derived, given, value_or_none
from longproof.domain.shapes import RequestShape
from longproof.domain.units import format_bytes
from longproof.errors import LayoutError, UsageError
from longproof.geometry.model import ModelGeometry
from longproof.geometry.weights import ByteEstimate
from longproof.hardware.device import Device as Hardware
from longproof.plan.capacity import Capacity, Device, Launch, PlanEngine, PoolCapacity, RankBudget
from longproof.plan.cautions import cautions
from longproof.plan.concurrency import MixPlan, PoolOffer, plan_mix
from longproof.plan.cost import Band, BandPrice
from longproof.plan.layouts import require_layout
from longproof.plan.llamacpp_rules import plan_llamacpp
from longproof.plan.memory import (
    MemoryChoices,
    RankMemory,
    estimate_memory,
    estimated_budgets,
    given_budgets,
)
from longproof.plan.mix import Growth, SessionMix
from longproof.plan.perf_estimate import Rates
from longproof.plan.pools import admission_pools, admission_rule
from longproof.plan.questions import Judgement, RunningSessions, judge
from longproof.plan.sglang_rules import plan_sglang
from longproof.plan.speeds import Speeds, prices_of, speeds_of
from longproof.plan.summary import ModelSummary, known_dtype, summarize
from longproof.plan.trtllm_rules import plan_trtllm
from longproof.plan.vllm_capacity import plan_vllm
from longproof.policy.admission import AdmissionRule
from longproof.policy.ledger import Pool

_NO_CAPACITY = "the capacity is not known: "


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanChoices:
    """What is asked beside model, launch and device.

    `available_bytes`: KV memory that was measured or given, one amount for all ranks or one per stage; it wins over any
    estimate. `risk`: probability with which a mix may exceed its limit. `watermark`: share of each pool admission
    leaves free. `rates`: calibrated efficiencies, None = the device's. `usd_per_hour`: of one device, None = the
    device's range.
    """

    available_bytes: tuple[int, ...] = ()
    available_source: str = "given"
    load: tuple[RunningSessions, ...] = ()
    mix: SessionMix | None = None
    risk: float = 0.01
    watermark: float = 0.0
    eager: bool = False
    rates: Rates | None = None
    usd_per_hour: Band | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlan:
    """One rank of one stage: what stands there, and how much of the cache. `memory` None: its KV memory was given, or
    no device is named. `cache_bytes`: what the pools take of `available`."""

    stage: int
    rank: int
    first_layer: int
    last_layer: int
    available: Reading[ByteEstimate]
    weights: Reading[ByteEstimate]
    memory: RankMemory | None
    pools: tuple[PoolCapacity, ...]

    @property
    def cache_bytes(self) -> int:
        """Bytes of all pools."""
        return sum(pool.total_bytes for pool in self.pools)


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """How many requests of `tokens` run at once."""

    tokens: int
    sessions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything the planner says. `judgement`: the three answers. `at_once`: requests of the asked length together.
    `capacity.report` is what the engine will print, which is not always what it can hold."""

    model: ModelSummary
    launch: Launch
    device: str
    request: RequestShape
    ranks: tuple[RankPlan, ...]
    capacity: Capacity
    rule: AdmissionRule
    judgement: Reading[Judgement]
    at_once: Reading[int]
    curve: tuple[CurvePoint, ...]
    speeds: Reading[Speeds]
    prices: Reading[tuple[BandPrice, ...]]
    mix: Reading[MixPlan]
    notes: tuple[str, ...] = field(default=())

    @property
    def unknowns(self) -> tuple[str, ...]:
        """What could not be said, and why, one sentence each."""
        named: list[tuple[str, Reading[object]]] = [
            ("KV memory", self.ranks[0].available),
            ("capacity", self.capacity.concurrency),
            ("speed", self.speeds),
            ("price", self.prices),
        ]
        return tuple(f"{name}: {reading.reason}" for name, reading in named if isinstance(reading, Unknown))


def make_plan(
    geometry: ModelGeometry,
    launch: Launch,
    request: RequestShape,
    device: Hardware | None = None,
    choices: PlanChoices | None = None,
) -> Plan:
    """The whole plan for one launch on one kind of device.

    Raises LayoutError: the layout cannot be, or the weights exceed a rank's memory (the message gives every stage's
    amounts). UsageError: an option cannot be meant. GeometryError: the model does not settle what is asked.
    """
    choices = choices or PlanChoices()
    launch = on_device(launch, device)
    require_layout(geometry, launch.engine, launch.layout, platform=launch.device, speculation=launch.speculation)
    total: Reading[int] = Unknown(reason="no device is named") if device is None else device.memory_bytes()
    memory = estimate_memory(geometry, launch, MemoryChoices(eager=choices.eager, total_bytes=total))
    if choices.available_bytes:
        budgets = given_budgets(launch, choices.available_bytes, choices.available_source)
    elif launch.engine is PlanEngine.SGLANG and launch.sglang.max_total_tokens is not None:
        budgets = ()  # the pool is given in tokens
    else:
        check_weights(memory)
        budgets = estimated_budgets(memory)
    capacity = capacity_of(geometry, launch, budgets)
    rule = admission_rule(geometry, launch, capacity)
    pools = admission_pools(geometry, launch, capacity, watermark=choices.watermark)
    speeds = speeds_of(geometry, launch, request, device, _sequences(launch, pools, request), choices.rates)
    return Plan(
        model=summarize(geometry, known_dtype(launch.kv_dtype, value_or_none(geometry.dtype))),
        launch=launch,
        device="" if device is None else device.name,
        request=request,
        ranks=_ranks(memory, capacity, choices),
        capacity=capacity,
        rule=rule,
        judgement=_judged(request, pools, rule, capacity, choices),
        at_once=_at_once(launch, pools, request, capacity),
        curve=_curve(launch, pools, rule),
        speeds=speeds,
        prices=prices_of(geometry, launch, device, capacity, choices.rates, choices.usd_per_hour, request),
        mix=_mixed(launch, pools, rule, capacity, choices),
        notes=tuple(
            dict.fromkeys((*geometry.notes, *capacity.notes, *cautions(geometry, launch), *_data_parallel(launch)))
        ),
    )


def whole_window(geometry: ModelGeometry, launch: Launch, output_tokens: int) -> RequestShape:
    """The longest request the launch's limit takes, with so many tokens of output.

    Raises UsageError when nothing says what the limit is, or the output alone exceeds it.
    """
    window = launch.max_model_len_tokens or value_or_none(geometry.max_position_tokens)
    if window is None:
        raise UsageError(
            f"neither the launch nor {geometry.name} says how long a request may be", advice="give --context"
        )
    if launch.engine is PlanEngine.SGLANG:
        window -= 1  # tp_worker: max_req_len = context_len - 1
    if output_tokens >= window:
        raise UsageError(
            f"an output of {output_tokens:,} tokens leaves no room for input in a window of {window:,}",
            advice="give a larger --context or a smaller --output",
        )
    return RequestShape(content_tokens=window - output_tokens, output_tokens=output_tokens)


def on_device(launch: Launch, device: Hardware | None) -> Launch:
    """The launch with what the engine's defaults need to know of the device."""
    if device is None:
        return launch
    return replace(
        launch,
        device=device_kind(device),
        device_name=launch.device_name or device.name,
        device_memory_bytes=launch.device_memory_bytes or value_or_none(device.memory_bytes()),
    )


def device_kind(device: Hardware) -> Device:
    """What the engine's defaults call the device."""
    vendor = device.vendor.lower()
    if device.name == "cpu":
        return Device.CPU
    return Device.ROCM if vendor == "amd" else Device.TPU if vendor == "google" else Device.CUDA


def capacity_of(geometry: ModelGeometry, launch: Launch, budgets: tuple[RankBudget, ...]) -> Capacity:
    """The capacity by the launch's engine's rules."""
    match launch.engine:
        case PlanEngine.VLLM:
            return plan_vllm(geometry, launch, budgets)
        case PlanEngine.SGLANG:
            return plan_sglang(geometry, launch, budgets)
        case PlanEngine.LLAMACPP:
            return plan_llamacpp(geometry, launch, budgets)
        case PlanEngine.TENSORRT_LLM:
            return plan_trtllm(geometry, launch, budgets)


def check_weights(memory: Sequence[RankMemory]) -> None:
    """Raises LayoutError with the amounts of every stage that has no memory left for a cache."""
    over = [m for m in memory if isinstance(m.available, Measured) and m.available.value.best_bytes <= 0]
    if not over:
        return
    ranks = sum(1 for m in memory if m.stage == over[0].stage)
    lines = "; ".join(_amounts(m, ranks) for m in over if m.rank == 0)
    raise LayoutError(
        f"nothing is left for a KV cache: {lines}",
        advice="use more tensor-parallel ranks or pipeline stages, a larger device, smaller weights, or a higher memory"
        " fraction",
        rule="weights, activations and buffers of a rank fit its share of the device",
    )


def _amounts(memory: RankMemory, ranks: int) -> str:
    taken = ", ".join(
        f"{term.name} {format_bytes(term.amount.value.best_bytes)}"
        for term in memory.terms
        if isinstance(term.amount, Measured)
    )
    asked = memory.requested_bytes
    has = format_bytes(asked.value) if isinstance(asked, Measured) else "unknown"
    each = "" if ranks == 1 else f" on each of {ranks} ranks"
    assert isinstance(memory.available, Measured)  # the caller asked
    missing = format_bytes(-memory.available.value.best_bytes)
    return f"stage {memory.stage}{each} may use {has} and takes {taken}: {missing} too much"


def _ranks(memory: Sequence[RankMemory], capacity: Capacity, choices: PlanChoices) -> tuple[RankPlan, ...]:
    held = {(stage.stage, stage.rank): stage for stage in capacity.stages}
    found: list[RankPlan] = []
    for one in memory:
        stage = held.get((one.stage, one.rank))
        available = one.available
        if choices.available_bytes and stage is not None:
            exact = ByteEstimate(
                best_bytes=stage.available_bytes, low_bytes=stage.available_bytes, high_bytes=stage.available_bytes
            )
            available = given(exact, choices.available_source)
        found.append(
            RankPlan(
                stage=one.stage,
                rank=one.rank,
                first_layer=one.first_layer,
                last_layer=one.last_layer,
                available=available,
                weights=one.term("weights"),
                memory=None if choices.available_bytes or isinstance(one.available, Unknown) else one,
                pools=() if stage is None else stage.pools,
            )
        )
    return tuple(found)


def _data_parallel(launch: Launch) -> tuple[str, ...]:
    if launch.layout.dp == 1:
        return ()
    note = (
        f"each of the {launch.layout.dp} data-parallel ranks has its own pool: the three answers, the load and a mix"
        " are about one of them, requests at once, speed and price about all"
    )
    return (note,)


def _judged(
    request: RequestShape, pools: Sequence[Pool], rule: AdmissionRule, capacity: Capacity, choices: PlanChoices
) -> Reading[Judgement]:
    if not pools:
        return Unknown(reason=_reason(capacity))
    return derived(judge(request, pools, rule, choices.load), "policy.admission on the stages' pools")


def sessions_at_once(launch: Launch, pools: Sequence[Pool], tokens: int) -> int:
    """Requests of `tokens` that run together on all data-parallel ranks, each of which has such pools and takes at most
    the configured number of sequences."""
    held = min((pool.capacity_blocks // max(1, pool.need.blocks(tokens)) for pool in pools), default=0)
    each = held if launch.max_num_seqs is None else min(held, launch.max_num_seqs)
    return each * launch.layout.dp


def _at_once(launch: Launch, pools: Sequence[Pool], request: RequestShape, capacity: Capacity) -> Reading[int]:
    if not pools:
        return Unknown(reason=_reason(capacity))
    count = sessions_at_once(launch, pools, max(1, request.total_tokens))
    return derived(count, f"requests of {request.total_tokens:,} tokens on the tightest pool")


def _sequences(launch: Launch, pools: Sequence[Pool], request: RequestShape) -> int | None:
    return sessions_at_once(launch, pools, max(1, request.total_tokens)) if pools else None


def _curve(launch: Launch, pools: Sequence[Pool], rule: AdmissionRule) -> tuple[CurvePoint, ...]:
    """Lengths from 1,024 tokens in powers of the square root of two up to the limit."""
    limit = rule.limit_tokens
    if not pools or limit is None:
        return ()
    lengths = {limit}
    step = 0
    while (tokens := round(1024 * 2 ** (step / 2))) < limit:
        lengths.add(tokens)
        step += 1
    return tuple(CurvePoint(tokens=n, sessions=sessions_at_once(launch, pools, n)) for n in sorted(lengths))


def _mixed(
    launch: Launch, pools: Sequence[Pool], rule: AdmissionRule, capacity: Capacity, choices: PlanChoices
) -> Reading[MixPlan]:
    if choices.mix is None:
        return Unknown(reason="no mix of sessions was given")
    if not pools:
        return Unknown(reason=_reason(capacity))
    growth = Growth.UPFRONT if rule.reservation.output_share == 1.0 else Growth.INCREMENTAL
    plans = [
        plan_mix(
            choices.mix,
            PoolOffer(
                capacity_blocks=pool.capacity_blocks,
                need=pool.need,
                growth=growth,
                longest_tokens=rule.limit_tokens,
                most_sessions=launch.max_num_seqs,
            ),
            choices.risk,
            watermark_blocks=pool.watermark_blocks or None,
        )
        for pool in pools
    ]
    return derived(min(plans, key=lambda plan: plan.sessions), "the tightest pool")


def _reason(capacity: Capacity) -> str:
    known = capacity.concurrency
    return _NO_CAPACITY + (known.reason if isinstance(known, Unknown) else "no pool holds anything")
