"""vLLM: bytes to blocks, the line its log prints, what the pool really holds, and whether it starts.

available bytes of each rank ─▶ // bytes per block of its stage ─▶ minimum over ranks = num_blocks
num_blocks / blocks of one request ─▶ concurrency        the log line is another thing: see vllm_release.LogLine
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from longproof.domain.measure import Reading, Unknown, derived
from longproof.errors import UsageError
from longproof.geometry.model import ModelGeometry
from longproof.plan.capacity import (
    Capacity,
    Device,
    EngineReport,
    Launch,
    PlanEngine,
    PoolCapacity,
    RankBudget,
    Refusal,
    RequestNeed,
    StageCapacity,
    unknown_capacity,
)
from longproof.plan.vllm_defaults import default_num_seqs
from longproof.plan.vllm_need import group_needs, longest_fitting
from longproof.plan.vllm_pool import VllmPool, build_pool
from longproof.plan.vllm_release import LogLine

_SEARCH_TOKENS = 1 << 40
"""A length no pool holds unless its need does not grow at all."""


def plan_vllm(geometry: ModelGeometry, launch: Launch, budgets: Sequence[RankBudget]) -> Capacity:
    """Capacity of a vLLM launch for requests of max_model_len.

    `budgets`: bytes each rank may give to the KV cache (after weights, activations and graphs). One budget per stage
    is enough; with none the capacity is Unknown and the need still answered. Raises LayoutError for a layout vLLM
    refuses, UsageError for what is not modelled.
    """
    pool = build_pool(geometry, launch)
    stages = tuple(_stage(pool, budget, launch) for budget in _checked(pool, budgets))
    binding = min(range(len(stages)), key=lambda i: stages[i].pools[0].units) if stages else None
    need = _need(pool, binding, stages)
    notes = _notes(pool, launch)
    first_block = min((g.spec.block_tokens for g in pool.groups), default=0)
    if binding is None:
        return unknown_capacity(PlanEngine.VLLM, first_block, need, notes=notes)
    blocks = stages[binding].pools[0].units
    concurrency = blocks / need.blocks if need.blocks else 0.0
    return Capacity(
        engine=PlanEngine.VLLM,
        block_tokens=first_block,
        stages=stages,
        binding=binding,
        report=log_line(pool, blocks, pool.rules.log_lines[0]),
        need=need,
        concurrency=derived(concurrency, f"{blocks} blocks / {need.blocks} blocks per request"),
        tokens=derived(int(concurrency * pool.length_tokens), f"concurrency x {pool.length_tokens} tokens"),
        longest_request_tokens=longest_request(pool, blocks),
        refusal=start_refusal(pool, stages) or _state_refusal(pool, launch, stages[binding]),
        notes=notes,
    )


def log_line(pool: VllmPool, blocks: int, line: LogLine) -> EngineReport:
    """What "GPU KV cache size" and "Maximum concurrency" print for `blocks` blocks."""
    need = pool.blocks_for(pool.length_tokens)
    if not need or not pool.groups:
        return EngineReport(blocks=blocks)
    concurrency = blocks / need
    if line is LogLine.PER_LENGTH:
        # The engine multiplies floats, so the last token can be lost.
        return EngineReport(
            blocks=blocks,
            tokens=int(concurrency * pool.length_tokens),
            concurrency=concurrency,
            misleading=None
            if len(pool.groups) == 1
            else f"the printed tokens hold for requests of {pool.length_tokens} tokens only: another max_model_len "
            "prints another figure for the same pool",
        )
    smallest = min(group.spec.block_tokens for group in pool.groups)
    printed = blocks // len(pool.groups) * smallest * pool.dcp
    return EngineReport(
        blocks=blocks,
        tokens=printed,
        concurrency=concurrency,
        misleading=None
        if len(pool.groups) == 1
        else f"the printed tokens divide the pool by {len(pool.groups)} groups of the smallest block; requests of "
        f"{pool.length_tokens} tokens can hold {int(concurrency * pool.length_tokens)} together",
    )


def longest_request(pool: VllmPool, blocks: int) -> Reading[int]:
    """The longest single request the pool can run: one block id is the null block and never given out."""
    usable = blocks - 1
    longest = longest_fitting(lambda tokens: pool.blocks_for(tokens) <= usable, _SEARCH_TOKENS)
    if longest == _SEARCH_TOKENS:
        return Unknown(reason="the KV cache does not bound a request's length: no group grows with it")
    return derived(longest, f"{usable} usable blocks")


def start_refusal(pool: VllmPool, stages: Sequence[StageCapacity]) -> Refusal | None:
    """Why vLLM would not start at max_model_len: a rank's need exceeds what it has; None when it starts.

    In the releases that compared the whole model with one stage the rule says so, because the figures they print are
    wrong for a pipeline.
    """
    if pool.rules.checks_whole_model and len(pool.stages) > 1:
        smallest = min(stages, key=lambda s: s.available_bytes)
        return _refusal(
            pool,
            smallest,
            pool.model_block_bytes,
            rule="the whole model's need is compared with one pipeline stage (a defect of 0.14 and 0.15)",
        )
    refusals = [
        _refusal(
            pool, stage, pool.stage_block_bytes[stage.stage], rule="a request of max_model_len must fit every rank"
        )
        for stage in stages
        if pool.stage_block_bytes[stage.stage]
    ]
    found = [refusal for refusal in refusals if refusal is not None]
    return min(found, key=lambda r: r.longest_request_tokens) if found else None


def _state_refusal(pool: VllmPool, launch: Launch, binding: StageCapacity) -> Refusal | None:
    """CUDA graphs of a hybrid want one state block for each of max_num_seqs (config/compilation.py)."""
    blocks, size = binding.pools[0].units, binding.pools[0].bytes_per_unit
    sequences = launch.max_num_seqs
    if sequences is None or sequences <= blocks or launch.device is not Device.CUDA or not pool.pages.state_page_bytes:
        return None
    return Refusal(
        rule="max_num_seqs may not exceed the blocks a hybrid keeps states in (unless eager)",
        needed_bytes=sequences * size,
        available_bytes=binding.available_bytes,
        stage=binding.stage,
        rank=binding.rank,
        longest_request_tokens=pool.length_tokens,
        sentence=f"max_num_seqs {sequences} exceeds the {blocks} blocks for recurrent states: lower it to {blocks}",
    )


def _refusal(pool: VllmPool, stage: StageCapacity, block_bytes: int, *, rule: str) -> Refusal | None:
    held_back = block_bytes if pool.rules.reserves_null_block else 0
    available = stage.available_bytes - held_back
    needed = block_bytes * pool.blocks_for(pool.length_tokens)
    if needed <= available:
        return None
    longest = longest_fitting(lambda tokens: block_bytes * pool.blocks_for(tokens) <= available, pool.length_tokens)
    return Refusal(
        rule=rule,
        needed_bytes=needed,
        available_bytes=available,
        stage=stage.stage,
        rank=stage.rank,
        longest_request_tokens=longest,
        sentence=f"stage {stage.stage} rank {stage.rank}: a request of {pool.length_tokens} tokens needs "
        f"{needed / 2**30:.2f} GiB of KV cache and {available / 2**30:.2f} GiB are available; the longest that fits "
        f"is {longest} tokens",
    )


def _checked(pool: VllmPool, budgets: Sequence[RankBudget]) -> Sequence[RankBudget]:
    stages = {budget.stage for budget in budgets}
    expected = {i for i, size in enumerate(pool.stage_block_bytes) if size}
    if budgets and not expected <= stages <= set(range(len(pool.stages))):
        raise UsageError(
            f"memory is given for stages {sorted(stages)}, the layout has {len(pool.stages)}",
            advice="give the available bytes of every pipeline stage",
        )
    return [budget for budget in budgets if pool.stage_block_bytes[budget.stage]]


def _stage(pool: VllmPool, budget: RankBudget, launch: Launch) -> StageCapacity:
    first, last = pool.stages[budget.stage]
    size = pool.stage_block_bytes[budget.stage]
    blocks = launch.vllm.blocks_override or max(0, budget.available_bytes) // size
    return StageCapacity(
        stage=budget.stage,
        rank=budget.rank,
        first_layer=first,
        last_layer=last,
        available_bytes=budget.available_bytes if not launch.vllm.blocks_override else blocks * size,
        pools=(
            PoolCapacity(
                name="kv",
                unit="blocks",
                units=blocks,
                bytes_per_unit=size,
                total_bytes=blocks * size,
                layers=last - first,
            ),
        ),
    )


def _need(pool: VllmPool, binding: int | None, stages: Sequence[StageCapacity]) -> RequestNeed:
    blocks = pool.blocks_for(pool.length_tokens)
    size = max(pool.stage_block_bytes) if binding is None else stages[binding].pools[0].bytes_per_unit
    return RequestNeed(
        request_tokens=pool.length_tokens,
        blocks=blocks,
        total_bytes=blocks * size,
        groups=group_needs(pool.groups, pool.length_tokens, pool.in_flight_tokens),
    )


def _notes(pool: VllmPool, launch: Launch) -> tuple[str, ...]:
    notes: list[str] = []
    if not pool.rules.known and not launch.version:
        notes.append(
            f"the vLLM version is not given: the rules of {'.'.join(map(str, pool.rules.release))} are assumed"
        )
    if len(pool.rules.log_lines) > 1:
        notes.append("builds numbered 0.20 print either form of the token line")
    counts = [len(group.members) for group in pool.groups]
    if any(a != b for a, b in pairwise(counts)):
        notes.append(f"groups of {', '.join(map(str, counts))} layers: the narrower ones are padded to {max(counts)}")
    if pool.pages.state_page_bytes:
        notes.append(
            f"the attention block is {pool.pages.block_tokens} tokens so that a page holds a recurrent state; "
            f"one request keeps {pool.pages.state_blocks} state blocks in each state group"
        )
        if launch.max_num_seqs is None and launch.device is Device.CUDA:
            notes.append(
                f"max_num_seqs is not given: {default_num_seqs(launch)} by default, and vLLM does not start with CUDA "
                "graphs when it exceeds the blocks"
            )
    if launch.kv_dtype == "auto":
        notes.append("the KV dtype follows the checkpoint")
    return tuple(notes)
