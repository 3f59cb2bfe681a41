"""TensorRT-LLM: bytes → blocks of its paged cache (`_torch/pyexecutor/resource_manager.py`).

    tokens = bytes / bytes per token, the smallest rank's for all;  blocks = ⌈tokens / tokens_per_block⌉

`calculate_max_num_blocks` rounds up; other releases round down. Windowed layers keep every token unless
max_attention_window is set.
"""

from __future__ import annotations

from dataclasses import dataclass

from longproof.domain.measure import Reading, Unknown, derived, value_or_none
from longproof.geometry.dtypes import KvDtype, parse_kv_dtype
from longproof.geometry.footprint import entry_bytes
from longproof.geometry.kinds import CompressedAttention, GroupedAttention, LayerKind
from longproof.geometry.model import Layer, ModelGeometry
from longproof.geometry.sharding import PartitionRule, rank_layer, stage_bounds, stage_partition
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

DEFAULT_BLOCK_TOKENS = 32
"""tokens_per_block of the PyTorch backend; engines built by trtllm-build used 64 or 128."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stage:
    first_layer: int
    last_layer: int
    cached_layers: int
    bytes_per_token: int


def plan_trtllm(geometry: ModelGeometry, launch: Launch, budgets: tuple[RankBudget, ...] = ()) -> Capacity:
    """What a TensorRT-LLM launch holds, from the bytes each rank gives to the cache.

    Models with recurrent states or compressed caches are Unknown: their pools follow `mamba_state_config` and
    `pool_ratio`, which are not modelled. Raises UsageError, GeometryError or LayoutError for what cannot be.
    """
    block = launch.block_size_tokens or DEFAULT_BLOCK_TOKENS
    context = launch.max_model_len_tokens or value_or_none(geometry.max_position_tokens) or 0
    stages = _stages(geometry, launch)
    pages = -(-context // block)
    widest = max(stage.bytes_per_token for stage in stages)
    need = RequestNeed(
        request_tokens=context,
        blocks=pages,
        total_bytes=pages * block * widest,
        groups=(GroupNeed(kind="full", layers=sum(s.cached_layers for s in stages), block_tokens=block, blocks=pages),),
    )
    unmodelled = _unmodelled(geometry)
    if unmodelled is None and not budgets:
        unmodelled = Unknown(reason="no available KV memory was given or estimated")
    if unmodelled is None and widest == 0:
        unmodelled = Unknown(reason="no layer keeps a cache that grows with tokens")
    if unmodelled is not None:
        return unknown_capacity(PlanEngine.TENSORRT_LLM, block, need, unmodelled)
    caching = [i for i, budget in enumerate(budgets) if stages[budget.stage].bytes_per_token]  # others limit nothing
    binding = min(caching, key=lambda i: budgets[i].available_bytes / stages[budgets[i].stage].bytes_per_token)
    least = budgets[binding]
    per_block = stages[least.stage].bytes_per_token * block
    blocks = -(-least.available_bytes // per_block)
    ranks = tuple(_rank(stages[b.stage], b, blocks, block) for b in budgets)
    return _capacity(ranks, binding, blocks, block, need, _notes(geometry))


def _stages(geometry: ModelGeometry, launch: Launch) -> list[_Stage]:
    layout = launch.layout
    dtype = parse_kv_dtype(launch.kv_dtype, value_or_none(geometry.dtype))
    partition = stage_partition(len(geometry.layers), layout.pp, PartitionRule.TENSORRT_LLM, given=layout.partition)
    ranks = max(1, layout.tp // (layout.dp if layout.dp_attention else 1))
    found: list[_Stage] = []
    for first, last in stage_bounds(partition):
        layers = [rank_layer(layer, ranks) for layer in geometry.layers[first:last]]
        each = [_token_bytes(layer, dtype) for layer in layers]
        found.append(
            _Stage(
                first_layer=first,
                last_layer=last,
                cached_layers=sum(1 for size in each if size),
                bytes_per_token=sum(each),
            )
        )
    return found


def _token_bytes(layer: Layer, dtype: KvDtype) -> int:
    if layer.attention is None or layer.kv_source is not None:
        return 0
    return entry_bytes(layer.attention, dtype).total


def _rank(stage: _Stage, budget: RankBudget, blocks: int, block: int) -> StageCapacity:
    per_block = stage.bytes_per_token * block
    pool = PoolCapacity(
        name="kv",
        unit="block",
        units=blocks,
        bytes_per_unit=per_block,
        total_bytes=blocks * per_block,
        tokens=blocks * block,
        layers=stage.cached_layers,
    )
    return StageCapacity(
        stage=budget.stage,
        rank=budget.rank,
        first_layer=stage.first_layer,
        last_layer=stage.last_layer,
        available_bytes=budget.available_bytes,
        pools=(pool,),
    )


def _capacity(
    ranks: tuple[StageCapacity, ...],
    binding: int,
    blocks: int,
    block: int,
    need: RequestNeed,
    notes: tuple[str, ...],
) -> Capacity:
    tokens, context = blocks * block, need.request_tokens
    refusal = None
    concurrency: Reading[float] = Unknown(reason="neither the launch nor the model says how long a request may be")
    if context:
        concurrency = derived(blocks / need.blocks, "blocks over blocks of the request")
    if need.blocks > blocks:
        rank = ranks[binding]
        refusal = Refusal(
            rule="one request of the full length fits the pool",
            needed_bytes=need.blocks * rank.pools[0].bytes_per_unit,
            available_bytes=rank.available_bytes,
            stage=rank.stage,
            rank=rank.rank,
            longest_request_tokens=tokens,
            sentence=f"a request of {context:,} tokens takes {need.blocks:,} blocks and stage {rank.stage} holds"
            f" {blocks:,}: TensorRT-LLM cuts max_seq_len to {tokens:,} tokens",
        )
    return Capacity(
        engine=PlanEngine.TENSORRT_LLM,
        block_tokens=block,
        stages=ranks,
        binding=binding,
        report=EngineReport(blocks=blocks, tokens=tokens),
        need=need,
        concurrency=concurrency,
        tokens=derived(tokens, "blocks x tokens_per_block; releases differ by one block"),
        longest_request_tokens=derived(min(tokens, context) if context else tokens, "min(max_seq_len, pool)"),
        refusal=refusal,
        notes=notes,
    )


def _unmodelled(geometry: ModelGeometry) -> Unknown | None:
    if any(layer.state is not None for layer in geometry.layers):
        return Unknown(reason="TensorRT-LLM's pools for recurrent states (mamba_state_config) are not modelled")
    if any(isinstance(layer.attention, CompressedAttention) for layer in geometry.layers):
        return Unknown(reason="TensorRT-LLM's pools for compressed caches (pool_ratio) are not modelled")
    return None


def _notes(geometry: ModelGeometry) -> tuple[str, ...]:
    windowed = any(
        isinstance(layer.attention, GroupedAttention) and layer.attention.kind is not LayerKind.FULL
        for layer in geometry.layers
    )
    if not windowed:
        return ()
    note = (
        "windowed layers count as keeping every token, which is right without max_attention_window; the V2 manager"
        " (default for Gemma 3, gpt-oss and Qwen3-Next) holds more"
    )
    return (note,)
