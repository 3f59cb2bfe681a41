"""SGLang: the memory that is left → state slots → tokens, as its pool configurators do it (read in 0.5.23).

    rest ─ state pool (hybrids: share r/(1+r), one slot more than counted) ─▶ tokens = ⌊rest / cell⌋, down to the page
         the smallest stage decides for all; every pool is allocated one page longer than it counts

A context longer than the pool is not refused at the start: such requests fail one by one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from longproof.domain.measure import Reading, Unknown, derived, value_or_none
from longproof.geometry.model import ModelGeometry
from longproof.plan.capacity import (
    Capacity,
    EngineReport,
    GroupNeed,
    Launch,
    PlanEngine,
    PoolCapacity,
    RankBudget,
    Refusal,
    RequestNeed,
    StageCapacity,
    unknown_capacity,
)
from longproof.plan.sglang_cells import (
    StageCells,
    has_compressed,
    is_sparse_latent,
    stage_cells,
    window_tokens,
    windowed_pool,
)

_SPECULATIVE_RUNNING = 48
"""max_running_requests that speculative decoding sets when none is given."""
_RESERVED_INPUT_TOKENS = 5  # scheduler: max_req_input_len = max_req_len - 5
_COMPRESSED = Unknown(reason="SGLang's pools for compressed caches (DeepSeek V4) are not modelled")
_NOT_REFUSED = "SGLang starts with a context longer than its pool; requests that do not fit fail when they arrive"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotPlan:
    """The state pool of a hybrid: `slots` usable (one more is allocated), `draft_states` kept for drafted tokens, and
    the bytes both take from the rest."""

    slots: int
    draft_states: int
    taken_bytes: int


def rest_bytes(available_after_load_bytes: float, available_before_load_bytes: float, memory_fraction: float) -> int:
    """What the pools may take: after - before × (1 - fraction). Negative: the weights alone exceed the fraction."""
    return int(available_after_load_bytes - available_before_load_bytes * (1 - memory_fraction))


def minimum_memory_fraction(available_after_load_bytes: float, available_before_load_bytes: float) -> float:
    """The --mem-fraction-static above which anything is left for the pools: 1 - after / before."""
    return 1 - available_after_load_bytes / available_before_load_bytes


def max_running_requests(tokens: int, context_tokens: int, launch: Launch, slots: int | None = None) -> int:
    """Requests one attention-DP worker runs at once, from its pool of `tokens` and, on hybrids, its state `slots`."""
    workers = launch.layout.dp if launch.layout.dp_attention else 1
    asked = launch.max_num_seqs
    if asked is None and slots is not None and launch.speculation is not None:
        asked = _SPECULATIVE_RUNNING
    by_pool = max(min(int(tokens / context_tokens * 512), 4096), 2048)
    running = by_pool if asked is None else asked // workers
    running = min(running, tokens // 2)
    return running if slots is None else min(running, slots // _slots_per_request(launch))


def state_slots(rest: int, per_slot_bytes: int, launch: Launch) -> SlotPlan:
    """The state pool out of `rest` bytes: as given, by the running requests (radix cache off), or by the ratio.

    With speculation each running request, and the padding slot, keeps one state per drafted token:
    (K + 1)·s + (K / per_request + 1)·D·s = rest · r / (1 + r).
    """
    options, workers = launch.sglang, launch.layout.dp if launch.layout.dp_attention else 1
    drafted = 0 if launch.speculation is None else launch.speculation.tokens
    per_request = _slots_per_request(launch)
    running = launch.max_num_seqs
    if running is None and drafted:
        running = _SPECULATIVE_RUNNING
    if options.max_mamba_slots is not None:
        slots = options.max_mamba_slots // workers
    elif launch.prefix_caching is False and running is not None:
        slots = running // workers
    else:
        share = rest * options.mamba_full_memory_ratio / (1 + options.mamba_full_memory_ratio)
        slots = int((share - per_slot_bytes * (1 + drafted)) // (per_slot_bytes * (1 + drafted / per_request)))
    states = 0
    if drafted and running is not None:
        states = (min(running // workers, slots // per_request) + 1) * drafted
    slots = max(0, slots)
    return SlotPlan(slots=slots, draft_states=states, taken_bytes=(slots + 1 + states) * per_slot_bytes)


def plan_sglang(
    geometry: ModelGeometry,
    launch: Launch,
    budgets: tuple[RankBudget, ...] = (),
    *,
    draft: ModelGeometry | None = None,
) -> Capacity:
    """What an SGLang launch holds. A budget is the rest after loading, state pool included (`rest_bytes`).

    `draft`: the geometry of a draft model that has its own (DFlash). Without budgets the pool is known only where
    `launch.sglang.max_total_tokens` gives it. Raises UsageError, GeometryError or LayoutError for what cannot be.
    """
    context = launch.max_model_len_tokens or value_or_none(geometry.max_position_tokens) or 0
    page = page_tokens(geometry, launch)
    if has_compressed(geometry):
        need = RequestNeed(request_tokens=context, blocks=0, total_bytes=0)
        return unknown_capacity(PlanEngine.SGLANG, page, need, _COMPRESSED)
    cells = stage_cells(geometry, launch, draft=draft)
    per_slot = max(stage.state_bytes for stage in cells)  # the largest stage's share is charged on all
    rest = min((budget.available_bytes for budget in budgets), default=None)
    need = _need(geometry, cells, context, page, launch)
    slot_plan: SlotPlan | None = None
    if per_slot and (rest is not None or launch.sglang.max_mamba_slots is not None):
        slot_plan = state_slots(rest or 0, per_slot, launch)
    if rest is not None and slot_plan is not None:
        rest -= slot_plan.taken_bytes
    tokens = _pool_tokens(cells, rest, page, launch)
    if isinstance(tokens, Unknown):
        return unknown_capacity(PlanEngine.SGLANG, page, need, tokens)
    total, binding_stage = tokens
    swa = int(total * launch.sglang.swa_full_tokens_ratio) // page * page if any(stage.swa for stage in cells) else None
    if swa is not None and all(not stage.full for stage in cells):
        swa = total
    stages = _stages(cells, total, swa, page, slot_plan, budgets, launch)
    binding = min(
        range(len(stages)), key=lambda i: (stages[i].stage != binding_stage, stages[i].available_bytes, stages[i].rank)
    )
    return Capacity(
        engine=PlanEngine.SGLANG,
        block_tokens=page,
        stages=stages,
        binding=binding,
        report=_report(cells, total, context, launch),
        need=need,
        concurrency=_concurrency(geometry, total, swa, context, page, launch, slot_plan),
        tokens=derived(total * launch.layout.dcp, f"min over stages of rest / cell, down to pages of {page}"),
        longest_request_tokens=_longest(total, swa, context, launch),
        refusal=_refusal(total, rest, cells, binding_stage, launch, slot_plan),
        notes=_notes(geometry, total, context, launch, slot_plan),
    )


def page_tokens(geometry: ModelGeometry, launch: Launch) -> int:
    """--page-size, else 64 for sparse MLA and 1 for the rest (attention backends may ask for more)."""
    if launch.block_size_tokens is not None:
        return launch.block_size_tokens
    return 64 if is_sparse_latent(geometry) else 1


def _slots_per_request(launch: Launch) -> int:
    return 1 if launch.prefix_caching is False else launch.sglang.state_slots_per_request


def _pool_tokens(cells: list[StageCells], rest: int | None, page: int, launch: Launch) -> tuple[int, int] | Unknown:
    """max_total_num_tokens and the stage that set it (the costliest)."""
    ratio = launch.sglang.swa_full_tokens_ratio
    costs = [stage.budgeted_bytes(ratio) for stage in cells]
    costliest = max(range(len(costs)), key=lambda i: costs[i])
    cap = launch.sglang.max_total_tokens
    if rest is None and cap is None:
        return Unknown(reason="no available KV memory was given or estimated")
    if not costs[costliest]:
        return Unknown(reason="no layer caches tokens: SGLang sizes the pool by the context length")
    fits = cap if rest is None else int(max(0, rest) // costs[costliest])
    assert fits is not None
    return min(fits, fits if cap is None else cap) // page * page, costliest


def _stages(
    cells: list[StageCells],
    total: int,
    swa: int | None,
    page: int,
    slot_plan: SlotPlan | None,
    budgets: tuple[RankBudget, ...],
    launch: Launch,
) -> tuple[StageCapacity, ...]:
    found: list[StageCapacity] = []
    for index, stage in enumerate(cells):
        pools = _pools(stage, total, swa, page, slot_plan)
        taken = sum(pool.total_bytes for pool in pools)
        ranks = {b.rank: b.available_bytes for b in budgets if b.stage == index}
        if not budgets:  # a pool given in tokens takes what it takes
            ranks = dict.fromkeys(range(launch.layout.tp), taken)
        found += [
            StageCapacity(
                stage=index,
                rank=rank,
                first_layer=stage.first_layer,
                last_layer=stage.last_layer,
                available_bytes=available,
                pools=pools,
            )
            for rank, available in sorted(ranks.items())
        ]
    return tuple(found)


def _pools(
    stage: StageCells, total: int, swa: int | None, page: int, slot_plan: SlotPlan | None
) -> tuple[PoolCapacity, ...]:
    found = [
        PoolCapacity(
            name=part.name,
            unit="token",
            units=size,
            bytes_per_unit=part.bytes_per_token,
            total_bytes=(size + page) * part.bytes_per_token,
            tokens=size,
            layers=part.layers,
        )
        for parts, size in (((*stage.full, *stage.unbudgeted), total), (stage.swa, swa or 0))
        for part in parts
    ]
    if slot_plan is None or stage.state_layers == 0:
        return tuple(found)
    for name, each in (("conv", stage.conv_bytes), ("ssm", stage.ssm_bytes)):
        found.append(_state_pool(name, slot_plan.slots, slot_plan.slots + 1, each, stage.state_layers))
    states = slot_plan.draft_states
    if states:  # as budgeted; CUDA builds store the overlapping convolution windows once and take a little less
        found.append(_state_pool("draft_conv", states, states, stage.conv_bytes, stage.state_layers))
        found.append(_state_pool("draft_ssm", states, states, stage.ssm_bytes, stage.state_layers))
    return tuple(found)


def _state_pool(name: str, slots: int, allocated: int, bytes_per_slot: int, layers: int) -> PoolCapacity:
    return PoolCapacity(
        name=name,
        unit="slot",
        units=slots,
        bytes_per_unit=bytes_per_slot,
        total_bytes=allocated * bytes_per_slot,
        layers=layers,
    )


def _need(geometry: ModelGeometry, cells: list[StageCells], context: int, page: int, launch: Launch) -> RequestNeed:
    pages = -(-context // page)
    kept = _swa_tokens(geometry, context, page)
    slots = _slots_per_request(launch)

    def stage_bytes(stage: StageCells) -> int:
        full = (*stage.full, *stage.unbudgeted)
        return (
            pages * page * sum(part.bytes_per_token for part in full)
            + kept * stage.swa_bytes
            + slots * stage.state_bytes
        )

    groups: list[GroupNeed] = []
    full_layers = sum(max((p.layers for p in s.full if not p.name.startswith("draft")), default=0) for s in cells)
    if full_layers:
        groups.append(GroupNeed(kind="full", layers=full_layers, block_tokens=page, blocks=pages))
    swa_layers = sum(max((p.layers for p in s.swa), default=0) for s in cells)
    if swa_layers:
        groups.append(GroupNeed(kind="sliding", layers=swa_layers, block_tokens=page, blocks=kept // page))
    state_layers = sum(s.state_layers for s in cells)
    if state_layers:
        groups.append(GroupNeed(kind="state", layers=state_layers, block_tokens=1, blocks=slots))
    return RequestNeed(
        request_tokens=context, blocks=pages, total_bytes=max(stage_bytes(s) for s in cells), groups=tuple(groups)
    )


def _swa_tokens(geometry: ModelGeometry, context: int, page: int) -> int:
    """Tokens of the window pool a running request keeps: its window and a page, whole pages."""
    return min(-(-context // page), -(-window_tokens(geometry) // page) + 1) * page


def _concurrency(
    geometry: ModelGeometry,
    total: int,
    swa: int | None,
    context: int,
    page: int,
    launch: Launch,
    slot_plan: SlotPlan | None,
) -> Reading[float]:
    if context == 0:
        return Unknown(reason="neither the launch nor the model says how long a request may be")
    slots = None if slot_plan is None else slot_plan.slots
    bounds: list[tuple[float, str]] = [
        (total * launch.layout.dcp / (-(-context // page) * page), "tokens of the pool over pages of the request"),
        (float(max_running_requests(total, context, launch, slots)), "max_running_requests"),
    ]
    if swa is not None:
        bounds.append((swa / _swa_tokens(geometry, context, page), "window pool over window and page"))
    value, source = min(bounds)
    return derived(value, source)


def _longest(total: int, swa: int | None, context: int, launch: Launch) -> Reading[int]:
    pool = total * launch.layout.dcp if swa is None else min(total, swa)
    what = "the pool" if swa is None else "the smaller of both pools"
    # tp_worker: max_req_len = min(context_len - 1, max_total_num_tokens - 1), prompt and output together
    longest = pool - 1 if context == 0 else min(context, pool) - 1
    return derived(max(0, longest), f"min(context, {what}) - 1; its prompt at most {_RESERVED_INPUT_TOKENS} fewer")


def _report(cells: list[StageCells], total: int, context: int, launch: Launch) -> EngineReport:
    misleading = None
    hidden = max(sum(p.bytes_per_token for p in s.unbudgeted) for s in cells)
    if hidden:
        gib = hidden * total / 2**30
        misleading = f"the size line leaves out the indexer's keys: {gib:.2f} GiB more are allocated"
    elif context > total * launch.layout.dcp:
        misleading = f"the context of {context:,} tokens is accepted although the pool holds {total:,}"
    return EngineReport(tokens=total, misleading=misleading)


def _refusal(
    total: int, rest: int | None, cells: list[StageCells], stage: int, launch: Launch, slot_plan: SlotPlan | None
) -> Refusal | None:
    if slot_plan is not None and slot_plan.slots < _slots_per_request(launch) and rest is not None:
        available = rest + slot_plan.taken_bytes
        needed = _slots_per_request(launch) * max(c.state_bytes for c in cells)
        return Refusal(
            rule="the state pool holds the slots of at least one request",
            needed_bytes=needed,
            available_bytes=available,
            stage=stage,
            rank=0,
            longest_request_tokens=0,
            sentence=f"one request takes {needed:,} B of recurrent state and {available:,} B are left for all pools:"
            " raise --mem-fraction-static or lower --max-running-requests",
        )
    if total > 0 or rest is None:
        return None
    cell = math.ceil(cells[stage].budgeted_bytes(launch.sglang.swa_full_tokens_ratio))
    return Refusal(
        rule="the pool holds at least one page",
        needed_bytes=cell,
        available_bytes=rest,
        stage=stage,
        rank=0,
        longest_request_tokens=0,
        sentence=f"after the weights {rest:,} B are left for the KV cache, and one token takes {cell:,} B:"
        " raise --mem-fraction-static",
    )


def _notes(
    geometry: ModelGeometry, total: int, context: int, launch: Launch, slot_plan: SlotPlan | None
) -> tuple[str, ...]:
    notes: list[str] = []
    if context:
        slots = None if slot_plan is None else slot_plan.slots
        notes.append(f"max_running_requests {max_running_requests(total, context, launch, slots):,}")
    if context > total:
        notes.append(_NOT_REFUSED)
    if launch.sglang.host_cache_bytes or launch.sglang.host_cache_ratio:
        notes.append("the host cache keeps prefixes; it does not raise max_total_num_tokens")
    if window_tokens(geometry) and not windowed_pool(geometry):
        notes.append("SGLang has no window pool for this family: windowed layers keep every token")
    elif window_tokens(geometry) and geometry.architecture == "":
        notes.append("the architecture is not named: windowed layers were given a pool of their own")
    return tuple(notes)
