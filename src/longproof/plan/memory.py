"""Memory left for the KV cache on each rank, where nobody measured it: the engine's own subtraction, term by term.

    vLLM          device x fraction - weights - activation - outside - graphs (counted from 0.21 on)
    SGLang        (device - context) x fraction - weights; activations and graphs lie in what the fraction leaves
    TensorRT-LLM  (device - weights - activation - outside) x fraction
    llama.cpp     device - weights - compute buffer; it has no fraction

Every term says where it came from and how far it can be off; the bands add up at their worst. A measured or given value
always wins: `given_budgets`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from longproof.domain.measure import Measured, Provenance, Reading, Unknown, derived, given
from longproof.errors import UsageError
from longproof.geometry.model import ModelGeometry
from longproof.geometry.sharding import PartitionRule, stage_bounds, stage_partition
from longproof.geometry.weights import ByteEstimate, stage_weight_bytes
from longproof.plan.capacity import Device, Launch, Layout, PlanEngine, RankBudget
from longproof.plan.memory_terms import (
    GIB,
    activation_bytes,
    communication_bytes,
    compute_buffer_bytes,
    estimate,
    graph_bytes,
)
from longproof.plan.vllm_defaults import default_batched_tokens
from longproof.plan.vllm_release import rules_for

_NO_DEVICE = Unknown(reason="no device is named")
_CONTEXT_GIB = (0.5, 0.3, 0.8)
_NEWEST_FRACTION, _OLD_FRACTION = 0.92, 0.90  # vLLM 0.32 config/cache.py; 0.9 in the releases before 0.21
_TRTLLM_FRACTION = 0.90
_RULES = {
    PlanEngine.VLLM: PartitionRule.VLLM,
    PlanEngine.SGLANG: PartitionRule.SGLANG,
    PlanEngine.TENSORRT_LLM: PartitionRule.TENSORRT_LLM,
    PlanEngine.LLAMACPP: PartitionRule.TENSORRT_LLM,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryTerm:
    """One thing that takes memory. `name`: weights, activation, outside, graphs, context, compute, reserve."""

    name: str
    amount: Reading[ByteEstimate]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMemory:
    """One rank's memory. `first_layer` inclusive, `last_layer` exclusive. `requested_bytes`: what the engine may use
    at all (device x fraction). `available`: what is left for the cache; Unknown when a term is."""

    stage: int
    rank: int
    first_layer: int
    last_layer: int
    device_bytes: Reading[int]
    fraction: Reading[float]
    requested_bytes: Reading[int]
    terms: tuple[MemoryTerm, ...]
    available: Reading[ByteEstimate]

    def term(self, name: str) -> Reading[ByteEstimate]:
        """The amount of a term, or Unknown when the engine's rule has none of that name."""
        missing = Unknown(reason=f"{name} is no part of this engine's rule")
        return next((term.amount for term in self.terms if term.name == name), missing)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryChoices:
    """What decides memory beside the launch. `eager`: no CUDA graphs. `total_bytes`: the device's memory when the
    user says it, else the device file's."""

    eager: bool = False
    total_bytes: Reading[int] = _NO_DEVICE


def estimate_memory(
    geometry: ModelGeometry, launch: Launch, choices: MemoryChoices | None = None
) -> tuple[RankMemory, ...]:
    """Every rank of every stage, in order. The ranks of a stage are alike. Raises LayoutError for a layout that cannot
    be, UsageError for a fraction outside (0, 1]."""
    choices = choices or MemoryChoices()
    bounds = stage_layers(geometry, launch)
    found: list[RankMemory] = []
    for stage, (first, last) in enumerate(bounds):
        one = _stage_memory(geometry, launch, choices, first, last)
        found += [
            RankMemory(
                stage=stage, rank=rank, first_layer=first, last_layer=last, device_bytes=choices.total_bytes,
                fraction=one.fraction, requested_bytes=one.requested, terms=one.terms, available=one.available,
            )
            for rank in range(ranks_of(launch))
        ]  # fmt: skip
    return tuple(found)


def stage_layers(geometry: ModelGeometry, launch: Launch) -> tuple[tuple[int, int], ...]:
    """(first layer, one past the last) of each stage, by the engine's rule. Raises LayoutError."""
    layout = launch.layout
    return stage_bounds(stage_partition(len(geometry.layers), layout.pp, _RULES[launch.engine], given=layout.partition))


def ranks_of(launch: Launch) -> int:
    """Ranks of one pipeline stage. A llama.cpp device is a stage of its own."""
    return 1 if launch.engine is PlanEngine.LLAMACPP else launch.layout.tp


def given_budgets(launch: Launch, available_bytes: Sequence[int], source: str) -> tuple[RankBudget, ...]:
    """Budgets the user or a log gives: one for all ranks, or one per pipeline stage. Raises UsageError otherwise."""
    stages = launch.layout.pp
    if len(available_bytes) not in (1, stages) or min(available_bytes, default=0) < 0:
        raise UsageError(
            f"{len(available_bytes)} amounts of KV memory are given for {stages} pipeline stages",
            advice="give one amount for all ranks, or one per stage, none negative",
        )
    each = list(available_bytes) * (stages if len(available_bytes) == 1 else 1)
    return tuple(
        RankBudget(stage=stage, rank=rank, available_bytes=each[stage], source=source)
        for stage in range(stages)
        for rank in range(ranks_of(launch))
    )


def estimated_budgets(memory: Sequence[RankMemory]) -> tuple[RankBudget, ...]:
    """The best estimates as budgets; empty when any rank's is unknown."""
    found: list[RankBudget] = []
    for one in memory:
        if isinstance(one.available, Unknown):
            return ()
        best = one.available.value.best_bytes
        found.append(
            RankBudget(stage=one.stage, rank=one.rank, available_bytes=max(0, best), source=one.available.source)
        )
    return tuple(found)


def rank_weights(
    geometry: ModelGeometry, layout: Layout, first: int, last: int, *, drafts: bool = False
) -> Reading[ByteEstimate]:
    """Weights of one rank of the stage that has layers `first` to `last` (exclusive). Raises LayoutError."""
    attention = max(1, layout.tp // layout.dp) if layout.dp_attention else layout.tp
    return stage_weight_bytes(
        geometry, first_layer=first, last_layer=last, attention_ranks=attention, mlp_ranks=layout.tp,
        expert_ranks=layout.ep if layout.ep > 1 else layout.tp, drafts=drafts,
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stage:
    fraction: Reading[float]
    requested: Reading[int]
    terms: tuple[MemoryTerm, ...]
    available: Reading[ByteEstimate]


def _stage_memory(geometry: ModelGeometry, launch: Launch, choices: MemoryChoices, first: int, last: int) -> _Stage:
    total = choices.total_bytes
    fraction = _fraction(launch, total)
    terms = _terms(geometry, launch, choices, first, last)
    if isinstance(total, Unknown):
        return _Stage(fraction=fraction, requested=total, terms=terms, available=Unknown(reason=total.reason))
    if isinstance(fraction, Unknown):
        return _Stage(fraction=fraction, requested=fraction, terms=terms, available=Unknown(reason=fraction.reason))
    requested = derived(int(total.value * fraction.value), f"{fraction.value:g} of {total.value:,} B")
    return _Stage(fraction=fraction, requested=requested, terms=terms, available=_rest(launch, total, fraction, terms))


def _rest(
    launch: Launch, total: Measured[int], fraction: Measured[float], terms: tuple[MemoryTerm, ...]
) -> Reading[ByteEstimate]:
    best = low = high = 0.0
    for term in terms:
        if isinstance(term.amount, Unknown):
            return Unknown(reason=f"{term.name}: {term.amount.reason}")
        # SGLang takes the fraction of what is free before loading, so the context counts by that share
        share = fraction.value if term.name == "context" else 1.0
        best += share * term.amount.value.best_bytes
        low += share * term.amount.value.low_bytes
        high += share * term.amount.value.high_bytes
    names = " - ".join(term.name for term in terms)
    if launch.engine is PlanEngine.TENSORRT_LLM:
        scale, base, formula = fraction.value, float(total.value), f"({total.value:,} B - {names}) x {fraction.value:g}"
    else:
        scale, base = 1.0, total.value * fraction.value
        formula = f"{fraction.value:g} x {total.value:,} B - {names}"
    value = ByteEstimate(
        best_bytes=int(scale * (base - best)),
        low_bytes=int(scale * (base - high)),
        high_bytes=int(scale * (base - low)),
    )
    return derived(value, formula)


def _terms(
    geometry: ModelGeometry, launch: Launch, choices: MemoryChoices, first: int, last: int
) -> tuple[MemoryTerm, ...]:
    drafts = launch.speculation is not None and launch.speculation.method.endswith(("mtp", "nextn"))
    weights = MemoryTerm(name="weights", amount=rank_weights(geometry, launch.layout, first, last, drafts=drafts))
    if launch.engine is PlanEngine.SGLANG:
        best, low, high = (gib * GIB for gib in _CONTEXT_GIB)
        return weights, MemoryTerm(name="context", amount=estimate(best, low, high, "a CUDA context, assumed"))
    if launch.engine is PlanEngine.LLAMACPP:
        return weights, MemoryTerm(name="compute", amount=compute_buffer_bytes(geometry, launch))
    rules = rules_for(launch.version)
    activation = activation_bytes(
        geometry, launch, batched_tokens=default_batched_tokens(launch, rules), sequences=default_sequences(launch),
        old=launch.engine is PlanEngine.VLLM and rules.release < (0, 17), last_stage=last == len(geometry.layers),
    )  # fmt: skip
    terms = [
        weights,
        MemoryTerm(name="activation", amount=activation),
        MemoryTerm(name="outside", amount=communication_bytes(launch)),
    ]
    if launch.engine is PlanEngine.VLLM and rules.release >= (0, 21):
        amount = graph_bytes(last - first, eager=choices.eager, device=launch.device)
        terms.append(MemoryTerm(name="graphs", amount=amount))
    return tuple(terms)


def default_sequences(launch: Launch) -> int:
    """max_num_seqs: given, else vLLM's 1,024 on devices of 70 GiB and more (A100 excepted), 256 elsewhere
    (0.32, engine/arg_utils.py)."""
    if launch.max_num_seqs is not None:
        return launch.max_num_seqs
    large = (launch.device_memory_bytes or 0) >= 70 * GIB and "a100" not in launch.device_name.lower()
    return 1024 if large else 256


def _fraction(launch: Launch, total: Reading[int]) -> Reading[float]:
    """Share of the device the engine may take: given, else its default."""
    if launch.memory_fraction is not None:
        if not 0 < launch.memory_fraction <= 1:
            raise UsageError(
                f"a memory fraction of {launch.memory_fraction} is not within 0 and 1", advice="give e.g. 0.9"
            )
        return given(launch.memory_fraction, "memory fraction")
    if launch.engine is PlanEngine.VLLM:
        if launch.device is Device.CPU:
            return Unknown(reason="vLLM on CPU takes VLLM_CPU_KVCACHE_SPACE: give the available KV memory")
        new = rules_for(launch.version).release >= (0, 21)
        value = _NEWEST_FRACTION if new else _OLD_FRACTION
        return _assumed(value, f"--gpu-memory-utilization is {value} by default")
    if launch.engine is PlanEngine.TENSORRT_LLM:
        return _assumed(_TRTLLM_FRACTION, "free_gpu_memory_fraction is 0.9 by default")
    if launch.engine is PlanEngine.LLAMACPP:
        return _assumed(1.0, "llama.cpp has no fraction")
    return total if isinstance(total, Unknown) else _sglang_fraction(launch, total.value)


def _sglang_fraction(launch: Launch, total: int) -> Measured[float]:
    """--mem-fraction-static as SGLang 0.5.23 chooses it (arg_groups/memory_hook.py), graphs of the prefill left out.

    Builds that size the pool after graph capture reserve 1.5 GiB only and come out higher.
    """
    mib = total / (1 << 20)
    layout = launch.layout
    chunk = 2048 if mib < 20 * 1024 else 4096 if mib < 60 * 1024 else 8192 if mib < 160 * 1024 else 16384
    if mib < 60 * 1024:
        batch = 8 if mib < 20 * 1024 else 160 if layout.tp >= 4 else 48 if mib < 35 * 1024 else 32
    else:
        batch = 256 if mib < 160 * 1024 and layout.tp < 4 else 512
    batch = min(batch, launch.max_num_seqs or batch)
    tokens = max(2048, launch.max_num_batched_tokens or chunk)
    reserved = 512 + tokens * 1.5 + layout.tp * layout.pp / 8 * 1024 + batch * 2
    if mib > 60 * 1024:
        reserved = max(reserved, 10 * 1024)
    value = round((mib - reserved) / mib, 3)
    return _assumed(value, f"--mem-fraction-static as SGLang 0.5.23 chooses it: {reserved:,.0f} MiB reserved")


def _assumed(value: float, source: str) -> Measured[float]:
    return Measured(value=value, provenance=Provenance.ASSUMED, source=source)
