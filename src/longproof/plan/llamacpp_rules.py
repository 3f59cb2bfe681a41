"""llama.cpp: a window → cells → bytes (read at b11434: llama-context.cpp, llama-kv-cache{,-iswa,-dsa}.cpp,
llama-memory-recurrent.cpp, tools/server/server.cpp).

    n_ctx ─ pad 256 ─▶ per slot: n_ctx / slots, padded again, × slots streams     (-np given)
                    ─▶ unified:  one stream of n_ctx cells that all slots share    (-np not given: 4 slots)
    cells × (k + v of all layers that keep everything)      "kv"
    cells' × (k + v of the windowed layers)                 "swa"   cells' = pad256(min(n_ctx, window · seqs + ubatch))
    slots × (1 + snapshots) × (r + s), always f32           "rs_r", "rs_s"

The cache is allocated whole at the start; a request is then refused by its slot's window, not by memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from longproof.domain.measure import Reading, Unknown, derived, value_or_none
from longproof.errors import UsageError
from longproof.geometry.dtypes import KvDtype, parse_kv_dtype, vector_bytes
from longproof.geometry.footprint import entry_bytes, state_bytes
from longproof.geometry.kinds import CompressedAttention, GroupedAttention, LayerKind
from longproof.geometry.model import Layer, ModelGeometry
from longproof.geometry.sharding import PartitionRule, stage_bounds, stage_partition
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
)

_PAD = 256
_DEFAULT_SLOTS = 4
_STATE_DTYPE = "float32"
_COMPRESSED = "llama.cpp prints 0.00 MiB for DeepSeek V4: its compressed caches are allocated elsewhere"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cells:
    """How a window is cut. `slot_tokens`: what one slot may hold; `streams` caches of `stream_cells` each."""

    slots: int
    unified: bool
    slot_tokens: int
    streams: int
    stream_cells: int

    @property
    def total(self) -> int:
        """Cells in all."""
        return self.streams * self.stream_cells


def cut_cells(context_tokens: int, slots: int | None, unified: bool | None) -> Cells:
    """n_ctx and -np to cells. `slots` None is the server's automatic choice: 4 that share one cache.

    Raises UsageError for a window or slot count below one.
    """
    if context_tokens < 1 or (slots is not None and slots < 1):
        raise UsageError(
            f"a window of {context_tokens} tokens over {slots} slots holds nothing", advice="give at least one of each"
        )
    count = _DEFAULT_SLOTS if slots is None else slots
    shared = slots is None if unified is None else unified
    padded = _pad(context_tokens)
    if shared:
        return Cells(slots=count, unified=True, slot_tokens=padded, streams=1, stream_cells=padded)
    each = _pad(padded // count)
    return Cells(slots=count, unified=False, slot_tokens=each, streams=count, stream_cells=each)


def swa_cells(cells: Cells, window: int, micro_batch_tokens: int, *, full: bool) -> int:
    """Cells of one stream for layers that keep `window` tokens; as many as the others with --swa-full."""
    if full:
        return cells.stream_cells
    sequences = cells.slots if cells.unified else 1
    return _pad(min(cells.stream_cells, window * sequences + micro_batch_tokens))


def plan_llamacpp(geometry: ModelGeometry, launch: Launch, budgets: tuple[RankBudget, ...] = ()) -> Capacity:
    """What a llama-server launch allocates and holds. Stages are devices, `launch.layout.pp` of them; without a
    partition they share the layers evenly, while the server weighs them by free memory (--tensor-split).

    `max_model_len_tokens` is n_ctx (None: the trained window), `max_num_seqs` -np, `kv_dtype` -ctk ("auto" is f16),
    `llamacpp.value_dtype` -ctv. Raises UsageError, GeometryError or LayoutError for what cannot be.
    """
    trained = value_or_none(geometry.max_position_tokens)
    context = launch.max_model_len_tokens or trained
    if context is None:
        raise UsageError("neither the launch nor the model names a window", advice="give the context length (-c)")
    cells = cut_cells(context, launch.max_num_seqs, launch.llamacpp.unified)
    partition = stage_partition(
        len(geometry.layers), launch.layout.pp, PartitionRule.TENSORRT_LLM, given=launch.layout.partition
    )
    stages: list[StageCapacity] = []
    for index, (first, last) in enumerate(stage_bounds(partition)):
        layers = list(geometry.layers[first:last])
        if index == len(partition) - 1 and _drafts_with_mtp(launch):
            layers += geometry.drafts
        pools = _pools(geometry, layers, cells, launch)
        taken = sum(pool.total_bytes for pool in pools)
        given = [b.available_bytes for b in budgets if b.stage == index]
        stages.append(
            StageCapacity(
                stage=index,
                rank=0,
                first_layer=first,
                last_layer=last,
                available_bytes=min(given, default=taken),
                pools=pools,
            )
        )
    slot_limit = cells.slot_tokens if trained is None else min(cells.slot_tokens, trained)
    refusal = _refusal(stages, slot_limit) if budgets else None
    holds: Reading[float] = derived(float(cells.total) / slot_limit, "cells over one slot's window")
    if not cells.unified or cells.total // slot_limit > cells.slots:
        holds = derived(float(cells.slots), "slots")
    tokens: Reading[int] = derived(cells.total, "cells")
    longest: Reading[int] = derived(slot_limit, "one slot's window, at most the trained one")
    if refusal is not None:
        holds = tokens = longest = Unknown(reason=refusal.sentence)
    compressed = any(isinstance(layer.attention, CompressedAttention) for layer in geometry.layers)
    if compressed:
        holds = tokens = Unknown(reason=_COMPRESSED)
    return Capacity(
        engine=PlanEngine.LLAMACPP,
        block_tokens=1,
        stages=tuple(stages),
        binding=min(range(len(stages)), key=lambda i: _slack(stages[i])),
        report=EngineReport(tokens=cells.total, misleading=_COMPRESSED if compressed else None),
        need=_need(stages, cells, slot_limit),
        concurrency=holds,
        tokens=tokens,
        longest_request_tokens=longest,
        refusal=refusal,
        notes=_notes(geometry, launch, cells, context, trained),
    )


def _drafts_with_mtp(launch: Launch) -> bool:
    return launch.speculation is not None and launch.speculation.method.lower() in ("mtp", "nextn")


def _pools(geometry: ModelGeometry, layers: list[Layer], cells: Cells, launch: Launch) -> tuple[PoolCapacity, ...]:
    options = launch.llamacpp
    k_dtype = _dtype(launch.kv_dtype)
    v_dtype = k_dtype if options.value_dtype is None else _dtype(options.value_dtype)
    apart = windows_apply(geometry)
    cached = [
        layer
        for layer in layers
        if layer.attention is not None
        and layer.kv_source is None
        and not isinstance(layer.attention, CompressedAttention)  # kept elsewhere, see _COMPRESSED
    ]
    full = [layer for layer in cached if not (apart and _window(layer))]
    windowed = [layer for layer in cached if apart and _window(layer)]
    found = _cache("kv", full, cells.stream_cells, cells.streams, k_dtype, v_dtype)
    if windowed:
        window = max(_window(layer) or 0 for layer in windowed)
        size = swa_cells(cells, window, options.micro_batch_tokens, full=options.swa_full)
        swa = None if options.swa_dtype is None else _dtype(options.swa_dtype)
        found += _cache("swa", windowed, size, cells.streams, swa or k_dtype, swa or v_dtype)
    return (*found, *_states(layers, cells.slots, options.recurrent_snapshots))


def _cache(
    name: str, layers: list[Layer], cells: int, streams: int, k_dtype: KvDtype, v_dtype: KvDtype
) -> list[PoolCapacity]:
    def pool(part: str, each: Callable[[Layer], int]) -> PoolCapacity | None:
        sizes = [each(layer) for layer in layers]
        if not any(sizes):
            return None
        return PoolCapacity(
            name=part,
            unit="cell",
            units=cells * streams,
            bytes_per_unit=sum(sizes),
            total_bytes=cells * streams * sum(sizes),
            tokens=cells * streams,
            layers=sum(1 for size in sizes if size),
        )

    def rows(layer: Layer) -> int:
        assert layer.attention is not None
        entry = entry_bytes(layer.attention, k_dtype, v_dtype)
        return entry.k_bytes + entry.v_bytes

    def index_keys(layer: Layer) -> int:
        # a second cache with one head of the indexer's size, in the cache's own type (llama-kv-cache-dsa.cpp)
        indexer = None if layer.attention is None else layer.attention.indexer
        return 0 if indexer is None or indexer.shares_top_k else vector_bytes(k_dtype, indexer.head_dim, heads=1)

    return [found for found in (pool(name, rows), pool(f"{name}_indexer", index_keys)) if found is not None]


def _states(layers: Iterable[Layer], slots: int, snapshots: int) -> list[PoolCapacity]:
    each = [
        state_bytes(layer.state, conv_dtype=_STATE_DTYPE, ssm_dtype=_STATE_DTYPE) for layer in layers if layer.state
    ]
    rows = slots * (1 + snapshots)
    sizes = (("rs_r", sum(s.conv_bytes for s in each)), ("rs_s", sum(s.ssm_bytes for s in each)))
    return [
        PoolCapacity(
            name=name, unit="state", units=rows, bytes_per_unit=size, total_bytes=rows * size, layers=len(each)
        )
        for name, size in sizes
        if size
    ]


def windows_apply(geometry: ModelGeometry) -> bool:
    """Whether llama.cpp keeps only the windows. It does where windowed and full layers alternate; a window on every
    layer is ignored (Mistral loads as plain llama, and "Phi SWA is currently disabled")."""
    kinds = [_window(layer) is not None for layer in geometry.layers if layer.attention is not None]
    return any(kinds) and not all(kinds)


def _window(layer: Layer) -> int | None:
    if not isinstance(layer.attention, GroupedAttention):
        return None
    if layer.attention.kind is LayerKind.FULL:
        return None
    return layer.attention.window_tokens or layer.attention.chunk_tokens


def _dtype(word: str) -> KvDtype:
    return KvDtype.FLOAT16 if word == "auto" else parse_kv_dtype(word)


def _slack(stage: StageCapacity) -> int:
    return stage.available_bytes - sum(pool.total_bytes for pool in stage.pools)


def _need(stages: list[StageCapacity], cells: Cells, slot_limit: int) -> RequestNeed:
    """A request owns its slot's share: a stream where slots are apart, its tokens of the shared cache else."""
    groups: list[GroupNeed] = []
    total = 0
    for stage in stages:
        taken = 0
        for pool in stage.pools:
            if pool.tokens is None:
                units = pool.units // cells.slots
            else:
                units = min(slot_limit, pool.units) if cells.unified else pool.units // cells.streams
            taken += units * pool.bytes_per_unit
            groups.append(GroupNeed(kind=pool.name, layers=pool.layers, block_tokens=1, blocks=units))
        total = max(total, taken)
    return RequestNeed(request_tokens=slot_limit, blocks=0, total_bytes=total, groups=tuple(groups))


def _refusal(stages: list[StageCapacity], slot_limit: int) -> Refusal | None:
    worst = min(stages, key=_slack)
    if _slack(worst) >= 0:
        return None
    needed = sum(pool.total_bytes for pool in worst.pools)
    return Refusal(
        rule="the whole cache is allocated at the start",
        needed_bytes=needed,
        available_bytes=worst.available_bytes,
        stage=worst.stage,
        rank=worst.rank,
        longest_request_tokens=0,
        sentence=f"device {worst.stage} needs {needed:,} B of cache for slots of {slot_limit:,} tokens and has"
        f" {worst.available_bytes:,} B: lower the context (-c), the slots (-np) or the cache type (-ctk, -ctv)",
    )


def _notes(geometry: ModelGeometry, launch: Launch, cells: Cells, context: int, trained: int | None) -> tuple[str, ...]:
    notes: list[str] = []
    if cells.total != context:
        notes.append(f"{context:,} tokens asked, {cells.total:,} cells allocated: windows are padded to {_PAD}")
    if trained is not None and cells.slot_tokens > trained:
        notes.append(f"a slot of {cells.slot_tokens:,} tokens is cut to the trained {trained:,}")
    apart = windows_apply(geometry)
    if not apart and any(_window(layer) for layer in geometry.layers):
        notes.append("every layer has a window: llama.cpp does not apply it and keeps all tokens")
    if apart and launch.llamacpp.swa_dtype is None and _dtype(launch.kv_dtype) is not KvDtype.FLOAT16:
        notes.append("some builds keep the windowed layers in f16 whatever the cache type says")
    if cells.unified and cells.slots > 1:
        notes.append(f"{cells.slots} slots share {cells.total:,} cells: each may use all of them, not all at once")
    return tuple(notes)


def _pad(tokens: int) -> int:
    return -(-tokens // _PAD) * _PAD
