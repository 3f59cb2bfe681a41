"""What an engine tells of itself, and what its section of the configuration says, as the controller's rule for it.

    engine        stage "kv"                                     stage "slots"              reserved at entry
    llama.cpp     one block per slot's window                    —                          the whole window
      unified     cells that the slots share                     one block per request      input + output
    vLLM          its blocks                                     max_num_seqs               input + measured output
    SGLang        its tokens, in pages                           max_running_requests       input + 0.7 · output
      pair        "prefill": the input until the decode side has read it; "decode": as vLLM; slots of either
    other         kv_capacity of the configuration, else no bound

A stage whose size nobody tells has no bound, and a note says so: an invented number would refuse or admit by chance.
"""

from __future__ import annotations

from dataclasses import dataclass

from longproof.domain.deployment import Deployment, EngineKind
from longproof.domain.measure import Measured, Reading
from longproof.domain.units import format_tokens
from longproof.engines.pd_deployment import side_number
from longproof.gateway.config import ReplicaSection, ServedSection
from longproof.policy.admission import INCREMENTAL, MEASURED, SGLANG, UPFRONT, AdmissionRule, Reservation
from longproof.policy.controller_config import ReplicaRule
from longproof.policy.ledger import Pool
from longproof.policy.need import BlockNeed
from longproof.policy.prefill_cost import PrefillCost

_RESERVATIONS = {"upfront": UPFRONT, "incremental": INCREMENTAL, "sglang": SGLANG, "measured": MEASURED}
# vLLM itself takes the input alone and preempts when outputs grow beyond its blocks: that is what is to be avoided
_BY_KIND = {EngineKind.VLLM: MEASURED, EngineKind.SGLANG: SGLANG}
_UNBOUNDED_BLOCKS = 1 << 50
_PREFILL_STAGES = ("prefill", "prefill slots")
"""Of a pair: free again once the decode side has read the input."""
_ONE_EACH = BlockNeed(full_groups=0, fixed_blocks=1)
"""A pool that counts requests: whatever its length, a request takes one place, and nobody grows into more."""
_INDEX_BLOCK_TOKENS = 16
_GUESSED_BLOCK_TOKENS = 64
"""Where nobody's events have to be matched, longer blocks cost a quarter to name and to look up."""
_ASSUMED_PREFILL_TOKENS_PER_S = 10_000.0
_ASSUMED_DECODE_NS = 20_000_000
_STEP_TOKENS = 8_192
"""vLLM's and SGLang's usual step on large devices (max_num_batched_tokens, chunked_prefill_size)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuledReplica:
    """One replica's rule. `cache_blocks`: what its prefix cache holds at most, in `rule.block_tokens`; None = not
    known. `notes`: what is assumed, or not limited, for people."""

    rule: ReplicaRule
    limit_tokens: int | None
    cache_blocks: int | None
    notes: tuple[str, ...]


def ruled(name: str, models: tuple[str, ...], section: ServedSection, deployment: Deployment) -> RuledReplica:
    """The rule of one replica."""
    notes: list[str] = []
    limit = section.context or _known(deployment.slot_limit_tokens) or _known(deployment.configured_limit_tokens)
    slots = section.slots or _known(deployment.slots)
    block = section.block_tokens or _known(deployment.block_size_tokens) or 1
    capacity = section.kv_capacity or _usable(deployment)
    if _perhaps_shared(deployment) and capacity is None and limit and slots and slots > 1:
        capacity = limit
        notes.append(
            f"llama.cpp does not tell whether its {slots} slots share one cache (as without -np): taken to hold"
            f" {format_tokens(limit)} tokens together; where each has its own, set kv_capacity = {limit * slots}"
        )
    pair = isinstance(section, ReplicaSection) and section.kind == "pd-pair"
    if pair:
        pools, cached_tokens = _pair_pools(deployment, section, block)
    else:
        pools, cached_tokens = _pools(deployment, limit, slots, block, capacity, given=section.kv_capacity is not None)
    if cached_tokens is None:
        notes.append("its KV capacity is not known: the ledger cannot hold anybody back (set kv_capacity)")
    if limit is None:
        notes.append("its longest sequence is not known (set context)")
    if section.prefill_rate is None:
        notes.append(
            f"prefill is assumed to run at {_ASSUMED_PREFILL_TOKENS_PER_S:,.0f} tokens/s until first tokens show it"
            " (set prefill_rate)"
        )
    reservation = _reservation(section, deployment.engine)
    index_block = block
    if block == 1:
        index_block = _INDEX_BLOCK_TOKENS if section.kv_events is not None else _GUESSED_BLOCK_TOKENS
    rule = ReplicaRule(
        name=name,
        models=models,
        pools=pools,
        admission=AdmissionRule(
            limit_tokens=limit,
            reservation=reservation,
            limit_name="the configured limit" if limit is None else f"the longest sequence of {name}",
        ),
        prefill=PrefillCost.at_rate(section.prefill_rate or _ASSUMED_PREFILL_TOKENS_PER_S),
        decode_ns_per_token=section.decode_time or _ASSUMED_DECODE_NS,
        block_tokens=index_block,
        pool=section.pool,
        prefill_window_tokens=_window(section, deployment),
        step_tokens=_step(section, deployment),
        prefill_stages=_PREFILL_STAGES if pair else (),
        learn_prefill=section.prefill_rate is None,
        learn_decode=section.decode_time is None,
    )
    cache_blocks = None if cached_tokens is None else cached_tokens // index_block
    return RuledReplica(rule=rule, limit_tokens=limit, cache_blocks=cache_blocks, notes=tuple(notes))


def _pools(
    deployment: Deployment, limit: int | None, slots: int | None, block: int, capacity: int | None, *, given: bool
) -> tuple[tuple[Pool, ...], int | None]:
    """The stages, and the tokens that all of its cache holds (None = nobody says)."""
    unified = _known(deployment.kv_unified)
    if deployment.engine is EngineKind.LLAMACPP and unified is False and not given and slots and limit:
        # each slot has cells of its own: what one does not use, no other can
        return (Pool(stage="kv", capacity_blocks=slots, need=BlockNeed(block_tokens=limit)),), slots * limit
    if capacity is None:
        kv = Pool(stage="kv", capacity_blocks=_UNBOUNDED_BLOCKS, need=BlockNeed(block_tokens=block))
    else:
        kv = Pool(stage="kv", capacity_blocks=capacity // block, need=BlockNeed(block_tokens=block))
    if slots is None:
        return (kv,), capacity
    return (kv, Pool(stage="slots", capacity_blocks=slots, need=_ONE_EACH)), capacity


def _pair_pools(deployment: Deployment, section: ServedSection, block: int) -> tuple[tuple[Pool, ...], int | None]:
    """Both sides' stages; prefixes are cached on the prefill side. `kv_capacity` and `slots` of the section are the
    decode side's."""
    pools: list[Pool] = []
    cached: int | None = None
    for side, stages in (("prefill", _PREFILL_STAGES), ("decode", ("decode", "slots"))):
        capacity = side_number(deployment, side, "kv_capacity_tokens")
        size = side_number(deployment, side, "block_size_tokens") or block
        slots = side_number(deployment, side, "slots")
        if capacity is not None:
            capacity -= size  # vLLM's null block, never used
        if side == "decode":
            capacity, slots = section.kv_capacity or capacity, section.slots or slots
        else:
            cached = capacity
        blocks = _UNBOUNDED_BLOCKS if capacity is None else capacity // size
        pools.append(Pool(stage=stages[0], capacity_blocks=blocks, need=BlockNeed(block_tokens=size)))
        if slots is not None:
            pools.append(Pool(stage=stages[1], capacity_blocks=slots, need=_ONE_EACH))
    return tuple(pools), cached


def _reservation(section: ServedSection, kind: EngineKind) -> Reservation:
    if section.reservation is not None:
        return _RESERVATIONS[section.reservation]
    return _BY_KIND.get(kind, UPFRONT)


def _window(section: ServedSection, deployment: Deployment) -> int | None:
    """One step of the engine is enough to keep it busy; what waits beyond it here can still be overtaken by shorter
    work. Without a rate nobody could tell when a prefill of an answer that is not streamed is over: then no bound."""
    if section.prefill_window is not None or section.prefill_rate is None:
        return section.prefill_window
    return _known(deployment.max_batched_tokens) or _STEP_TOKENS


def _step(section: ServedSection, deployment: Deployment) -> int | None:
    """What one long prompt gets of a step while others are there: vLLM may bound it below its batch."""
    if section.prefill_step is not None:
        return section.prefill_step
    batch, bound = _known(deployment.max_batched_tokens), deployment.other.get("long_prefill_token_threshold")
    most = int(bound.value) if isinstance(bound, Measured) and bound.value.isdecimal() else 0
    return batch if not most or batch is None else min(most, batch)


def _perhaps_shared(deployment: Deployment) -> bool:
    """Whether each of an engine's slots may be advertised with a cache that they all share. One that is counted for
    each of them is overfilled, and llama-server then ends whoever is streaming."""
    return deployment.engine is EngineKind.LLAMACPP and _known(deployment.kv_unified) is None


def _usable(deployment: Deployment) -> int | None:
    """What of its KV capacity can be held: vLLM never gives its null block out, and its usage figure leaves it out."""
    capacity, usable = _known(deployment.kv_capacity_tokens), deployment.other.get("kv_usable_tokens")
    if capacity is None or not isinstance(usable, Measured) or not usable.value.isdecimal():
        return capacity
    return min(capacity, int(usable.value))


def _known(reading: Reading[int]) -> int | None:
    return reading.value if isinstance(reading, Measured) else None


def described(replica: RuledReplica) -> str:
    """One line for people: what it holds."""
    stages = ", ".join(_size(pool) for pool in replica.rule.pools)
    limit = "not known" if replica.limit_tokens is None else format_tokens(replica.limit_tokens)
    return f"longest sequence {limit} tokens; {stages}"


def _size(pool: Pool) -> str:
    if pool.capacity_blocks >= _UNBOUNDED_BLOCKS:
        return f"{pool.stage} without a known bound"
    if pool.need is _ONE_EACH:
        return f"{pool.capacity_blocks:,} {pool.stage}"
    if pool.need.block_tokens == 1:
        return f"{pool.stage} {pool.capacity_blocks:,} tokens"
    return f"{pool.stage} {pool.capacity_blocks:,} blocks of {pool.need.block_tokens:,} tokens"
