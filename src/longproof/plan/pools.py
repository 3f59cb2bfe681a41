"""A `Capacity` as the pools that admission judges: one per stage (and per kind of pool where an engine has several).

vLLM          blocks of the shared pool, less the null block        a request takes what every group takes
SGLang        tokens of the full pool, of the window pool, state slots
llama.cpp     cells all slots share, or one slot each
TensorRT-LLM  blocks
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from longproof.domain.measure import value_or_none
from longproof.geometry.model import ModelGeometry
from longproof.plan.capacity import Capacity, Launch, PlanEngine, PoolCapacity, StageCapacity
from longproof.plan.llamacpp_rules import cut_cells
from longproof.plan.vllm_pages import CacheKind
from longproof.plan.vllm_pool import VllmPool, build_pool
from longproof.policy.admission import INCREMENTAL, SGLANG, UPFRONT, AdmissionRule
from longproof.policy.ledger import Pool
from longproof.policy.need import BlockNeed, WindowNeed

_WINDOW_POOL = "swa"
_STATE_POOL = "ssm"


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmNeed(BlockNeed):
    """A request's blocks by vLLM's own groups: in-flight tokens, states and unequal blocks included."""

    pool: VllmPool

    def blocks(self, tokens: int) -> int:
        """Blocks a request of `tokens` holds; 0 for no tokens. Raises ValueError for a negative length."""
        if tokens < 0:
            raise ValueError(f"{tokens} tokens")
        return self.pool.blocks_for(tokens) if tokens else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotNeed(BlockNeed):
    """One of `slots` slots, whatever the length up to a slot's; a longer request fits none, as it cannot have two."""

    slots: int

    def blocks(self, tokens: int) -> int:
        """1, or one more than there are for what no slot holds; 0 for no tokens."""
        if tokens < 0:
            raise ValueError(f"{tokens} tokens")
        return 0 if tokens == 0 else 1 if tokens <= self.block_tokens else self.slots + 1


def admission_rule(geometry: ModelGeometry, launch: Launch, capacity: Capacity) -> AdmissionRule:
    """The limit the engine enforces and how it reserves."""
    trained = value_or_none(geometry.max_position_tokens)
    window = launch.max_model_len_tokens or trained
    match launch.engine:
        case PlanEngine.VLLM:
            return AdmissionRule(limit_tokens=window, reservation=INCREMENTAL, limit_name="max_model_len")
        case PlanEngine.SGLANG:
            # tp_worker: max_req_len = context_len - 1
            limit = None if window is None else window - 1
            return AdmissionRule(limit_tokens=limit, reservation=SGLANG, limit_name="SGLang's context length less one")
        case PlanEngine.LLAMACPP:
            limit = capacity.need.request_tokens
            return AdmissionRule(limit_tokens=limit, reservation=UPFRONT, limit_name="one slot's window")
        case PlanEngine.TENSORRT_LLM:
            return AdmissionRule(limit_tokens=window, reservation=UPFRONT, limit_name="max_seq_len")


def admission_pools(
    geometry: ModelGeometry, launch: Launch, capacity: Capacity, *, watermark: float = 0.0
) -> tuple[Pool, ...]:
    """Every pool a request passes, named by its stage ("0", "0 windows"); empty when the capacity is unknown.

    `watermark`: share of each pool that admission leaves free. Raises ValueError for a share outside [0, 1)."""
    if not 0 <= watermark < 1:
        raise ValueError(f"a watermark of {watermark} is not within 0 and 1")
    found: list[Pool] = []
    for name, stage in _smallest(capacity.stages):
        for part, blocks, need in _parts(geometry, launch, capacity, stage):
            found.append(
                Pool(
                    stage=f"{name}{part}",
                    capacity_blocks=max(0, blocks),
                    need=need,
                    watermark_blocks=int(max(0, blocks) * watermark),
                )
            )
    return tuple(found)


def vllm_need(geometry: ModelGeometry, launch: Launch) -> VllmNeed:
    """What one request takes of vLLM's pool. Raises LayoutError or UsageError as `build_pool` does."""
    pool = build_pool(geometry, launch)
    growing = [g.spec for g in pool.groups if g.spec.kind in (CacheKind.FULL, CacheKind.MLA)]
    first = growing[0] if growing else None
    return VllmNeed(
        block_tokens=first.block_tokens * first.dcp if first is not None else 1,
        full_groups=len(growing),
        pool=pool,
    )


def _smallest(stages: Iterable[StageCapacity]) -> list[tuple[str, StageCapacity]]:
    """The rank with the least of each stage: a request needs its place on all of them."""
    least: dict[int, StageCapacity] = {}
    for stage in stages:
        held = least.get(stage.stage)
        if held is None or _units(stage) < _units(held):
            least[stage.stage] = stage
    return [(f"{number}", least[number]) for number in sorted(least)]


def _units(stage: StageCapacity) -> int:
    return min((pool.units for pool in stage.pools), default=0)


def _parts(
    geometry: ModelGeometry, launch: Launch, capacity: Capacity, stage: StageCapacity
) -> list[tuple[str, int, BlockNeed]]:
    """(suffix of the name, blocks, need) of one stage's pools."""
    if not stage.pools:
        return []
    block, first = capacity.block_tokens, stage.pools[0]
    match launch.engine:
        case PlanEngine.VLLM:
            # one block id is the null block and never given out
            return [("", first.units - 1, vllm_need(geometry, launch))]
        case PlanEngine.SGLANG:
            return _sglang_parts(launch, capacity, stage, block)
        case PlanEngine.LLAMACPP:
            return _llamacpp_parts(geometry, launch, capacity)
        case PlanEngine.TENSORRT_LLM:
            return [("", first.units, BlockNeed(block_tokens=block))]


def _sglang_parts(
    launch: Launch, capacity: Capacity, stage: StageCapacity, page: int
) -> list[tuple[str, int, BlockNeed]]:
    """The full pool, shared by all its parts, the window pool and the state slots."""
    need_of = {group.kind: group for group in capacity.need.groups}
    found: list[tuple[str, int, BlockNeed]] = []
    full = _first(stage.pools, lambda p: p.unit == "token" and p.name != _WINDOW_POOL)
    if full is not None:
        dcp = launch.layout.dcp
        found.append(("", full.units // page, BlockNeed(block_tokens=page * dcp)))
    windowed = _first(stage.pools, lambda p: p.name == _WINDOW_POOL)
    sliding = need_of.get("sliding")
    if windowed is not None and sliding is not None:
        need = BlockNeed(
            block_tokens=page,
            full_groups=0,
            windows=(WindowNeed(window_tokens=max(1, sliding.blocks - 1) * page, extra_blocks=1),),
        )
        found.append((" windows", windowed.units // page, need))
    states = _first(stage.pools, lambda p: p.name == _STATE_POOL)
    state = need_of.get("state")
    if states is not None and state is not None:
        # a slot is no token: any block above one token says so
        slots = BlockNeed(block_tokens=max(2, capacity.need.request_tokens), full_groups=0, fixed_blocks=state.blocks)
        found.append((" states", states.units, slots))
    return found


def _llamacpp_parts(geometry: ModelGeometry, launch: Launch, capacity: Capacity) -> list[tuple[str, int, BlockNeed]]:
    context = launch.max_model_len_tokens or value_or_none(geometry.max_position_tokens) or 1
    cells = cut_cells(context, launch.max_num_seqs, launch.llamacpp.unified)
    if cells.unified:
        return [("", cells.total, BlockNeed())]
    need = SlotNeed(block_tokens=max(1, capacity.need.request_tokens), slots=cells.slots)
    return [(" slots", cells.slots, need)]


def _first(pools: Iterable[PoolCapacity], wanted: Callable[[PoolCapacity], bool]) -> PoolCapacity | None:
    return next((pool for pool in pools if wanted(pool)), None)
