"""What one token, and one running request, costs an SGLang rank.

    stage's layers ─▶ full parts   bytes per token of max_total_num_tokens     k, v, latent, indexer, draft …
                   ─▶ swa parts    bytes per token of the sliding-window pool  swa_k, swa_v
                   ─▶ state        bytes per slot of the Mamba pool            conv, ssm

Read in SGLang 0.5.23: `model_executor/pool_configurator.py`, `mem_cache/kv_cache_configurator.py`,
`configs/model_config.py` (`is_hybrid_swa_model`), `distributed/utils.py` (`get_pp_indices`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from longproof.domain.measure import value_or_none
from longproof.errors import LayoutError
from longproof.geometry.dtypes import KvDtype, parse_kv_dtype
from longproof.geometry.footprint import EntryBytes, entry_bytes, state_bytes
from longproof.geometry.kinds import CompressedAttention, GroupedAttention, LatentAttention
from longproof.geometry.model import Layer, ModelGeometry
from longproof.geometry.sharding import PartitionRule, rank_layer, stage_bounds, stage_partition
from longproof.plan.capacity import Launch, Layout

_SWA_FAMILIES = ("llama4", "gpt_oss", "mimo_v2", "step3p5", "step3p7", "gemma4", "laguna")
"""Families whose windowed layers get a pool of their own; all others keep every token in every layer."""
_TARGET_SHAPED = ("eagle", "eagle3", "nextn", "mtp", "standalone")
"""Drafts priced at the target's own bytes per layer."""
_OWN_SHAPED = ("dflash", "dspark")
"""Drafts with a geometry of their own."""
_CONV_DTYPE = "bfloat16"  # SGLANG_MAMBA_CONV_DTYPE
_SSM_DTYPE = "float32"  # --mamba-ssm-dtype, else the config's mamba_ssm_dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class CellPart:
    """One line of the bill: `bytes_per_token` on one rank for `layers` layers together."""

    name: str
    layers: int
    bytes_per_token: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCells:
    """What one rank of one pipeline stage pays."""

    first_layer: int
    last_layer: int
    full: tuple[CellPart, ...]
    unbudgeted: tuple[CellPart, ...]
    swa: tuple[CellPart, ...]
    state_layers: int
    conv_bytes: int
    ssm_bytes: int

    @property
    def full_bytes(self) -> int:
        """Bytes per token the engine budgets for the full pool."""
        return sum(part.bytes_per_token for part in self.full)

    @property
    def swa_bytes(self) -> int:
        """Bytes per token of the sliding-window pool."""
        return sum(part.bytes_per_token for part in self.swa)

    @property
    def state_bytes(self) -> int:
        """Bytes of one state slot."""
        return self.conv_bytes + self.ssm_bytes

    def budgeted_bytes(self, swa_ratio: float) -> float:
        """Bytes one token of max_total_num_tokens costs. With windowed layers alone they are the pool, unscaled."""
        if not self.swa:
            return self.full_bytes
        if all(part.name.startswith("draft") for part in self.full):
            return self.full_bytes + self.swa_bytes
        return self.full_bytes + swa_ratio * self.swa_bytes


def attention_ranks(layout: Layout) -> int:
    """Ranks that share the heads: TP over attention DP and prefill CP (attn_tp_size). Raises LayoutError."""
    groups = (layout.dp if layout.dp_attention else 1) * layout.pcp
    if layout.tp % groups:
        raise LayoutError(
            f"a tensor-parallel size of {layout.tp} does not divide into {groups} attention groups",
            advice=f"use a tensor-parallel size that is a multiple of {groups}",
            rule="attention DP times prefill CP divides the tensor-parallel size",
        )
    return layout.tp // groups


def windowed_pool(geometry: ModelGeometry) -> bool:
    """Whether SGLang gives windowed layers a pool of their own. An unnamed architecture counts as one of those."""
    windowed = [_window(layer) is not None for layer in geometry.layers if layer.attention is not None]
    if not any(windowed):
        return False
    family = geometry.architecture.lower().replace("-", "_")
    if family == "":
        return not all(windowed)
    return family.startswith(_SWA_FAMILIES)


def stage_cells(geometry: ModelGeometry, launch: Launch, *, draft: ModelGeometry | None = None) -> list[StageCells]:
    """The bill of every pipeline stage, in order. `draft`: the geometry of a DFlash-like draft model.

    Raises LayoutError or UsageError for a layout or dtype that cannot be.
    """
    layout = launch.layout
    partition = stage_partition(len(geometry.layers), layout.pp, PartitionRule.SGLANG, given=layout.partition)
    swa = windowed_pool(geometry)
    dtype = parse_kv_dtype(launch.kv_dtype, _served_dtype(geometry))
    # decode CP spreads tokens over ranks that would else repeat heads
    ranks = max(1, attention_ranks(layout) // layout.dcp)
    found: list[StageCells] = []
    for first, last in stage_bounds(partition):
        layers = [rank_layer(layer, ranks) for layer in geometry.layers[first:last]]
        states = [layer.state for layer in layers if layer.state is not None]
        each = [
            state_bytes(s, conv_dtype=s.conv_dtype or _CONV_DTYPE, ssm_dtype=s.ssm_dtype or _SSM_DTYPE) for s in states
        ]
        full, unbudgeted = _full_parts(layers, launch, dtype, windows_apart=swa)
        full += _draft_parts(full, geometry, launch, dtype, draft)
        found.append(
            StageCells(
                first_layer=first,
                last_layer=last,
                full=tuple(full),
                unbudgeted=tuple(unbudgeted),
                swa=tuple(_swa_parts(layers, dtype)) if swa else (),
                state_layers=len(states),
                conv_bytes=sum(s.conv_bytes for s in each),
                ssm_bytes=sum(s.ssm_bytes for s in each),
            )
        )
    return found


def window_tokens(geometry: ModelGeometry) -> int:
    """The widest window of the model; 0 without one."""
    return max((_window(layer) or 0 for layer in geometry.layers), default=0)


def has_compressed(geometry: ModelGeometry) -> bool:
    """Whether a layer compresses its cache (DeepSeek V4)."""
    return any(isinstance(layer.attention, CompressedAttention) for layer in geometry.layers)


def is_sparse_latent(geometry: ModelGeometry) -> bool:
    """Whether a layer is MLA with an indexer."""
    return any(isinstance(layer.attention, LatentAttention) and layer.attention.indexer for layer in geometry.layers)


def _served_dtype(geometry: ModelGeometry) -> str | None:
    name = value_or_none(geometry.dtype)
    if name in ("float32", "torch.float32"):  # served in half precision; Gemma in bfloat16, which weighs the same
        return "float16"
    return name


def _window(layer: Layer) -> int | None:
    if not isinstance(layer.attention, GroupedAttention):
        return None
    return layer.attention.window_tokens or layer.attention.chunk_tokens


def _entry(layer: Layer, dtype: KvDtype, *, raw_fp8: bool = False) -> EntryBytes:
    assert layer.attention is not None
    if isinstance(layer.attention, LatentAttention):
        sparse = layer.attention.indexer is not None
        stored = KvDtype.FP8_DS_MLA if sparse and dtype is KvDtype.FP8 and not raw_fp8 else dtype
        entry = entry_bytes(layer.attention, stored)
        if stored is KvDtype.NVFP4:  # half a byte and a scale per 16 for all 576, unlike vLLM's 352
            latent = layer.attention.latent_dim // 2 + layer.attention.latent_dim // 16
            return EntryBytes(k_bytes=latent, v_bytes=0, indexer_bytes=entry.indexer_bytes)
        return entry
    return entry_bytes(layer.attention, dtype)


def _full_parts(
    layers: Iterable[Layer], launch: Launch, dtype: KvDtype, *, windows_apart: bool
) -> tuple[list[CellPart], list[CellPart]]:
    grouped: list[EntryBytes] = []
    latent: list[EntryBytes] = []
    indexed: list[int] = []
    for layer in layers:
        if layer.attention is None or layer.kv_source is not None:
            continue
        if windows_apart and _window(layer) is not None:
            continue
        entry = _entry(layer, dtype, raw_fp8=launch.sglang.raw_fp8_latent)
        (latent if isinstance(layer.attention, LatentAttention) else grouped).append(entry)
        indexer = layer.attention.indexer
        if indexer is not None and (launch.sglang.indexer_on_shared_layers or not indexer.shares_top_k):
            indexed.append(entry.indexer_bytes)
    parts: list[CellPart] = []
    if grouped:
        parts.append(CellPart(name="k", layers=len(grouped), bytes_per_token=sum(e.k_bytes for e in grouped)))
        parts.append(CellPart(name="v", layers=len(grouped), bytes_per_token=sum(e.v_bytes for e in grouped)))
    if grouped and dtype is KvDtype.NVFP4:  # one fp8 workspace that all layers share: K and V of one layer
        widest = max(e.k_bytes + e.v_bytes for e in grouped) * 16 // 9
        parts.append(CellPart(name="workspace", layers=1, bytes_per_token=widest))
    if latent:
        parts.append(CellPart(name="latent", layers=len(latent), bytes_per_token=sum(e.k_bytes for e in latent)))
    keys = [CellPart(name="indexer", layers=len(indexed), bytes_per_token=sum(indexed))] if indexed else []
    if launch.sglang.indexer_in_budget:
        return parts + keys, []
    return parts, keys


def _swa_parts(layers: Iterable[Layer], dtype: KvDtype) -> list[CellPart]:
    entries = [_entry(layer, dtype) for layer in layers if _window(layer) is not None and layer.kv_source is None]
    if not entries:
        return []
    return [
        CellPart(name="swa_k", layers=len(entries), bytes_per_token=sum(e.k_bytes for e in entries)),
        CellPart(name="swa_v", layers=len(entries), bytes_per_token=sum(e.v_bytes for e in entries)),
    ]


def _draft_parts(
    full: list[CellPart], geometry: ModelGeometry, launch: Launch, dtype: KvDtype, draft: ModelGeometry | None
) -> list[CellPart]:
    speculation = launch.speculation
    method = "" if speculation is None else speculation.method.lower()
    if speculation is None or not method.startswith((*_TARGET_SHAPED, *_OWN_SHAPED)):
        return []
    if draft is not None and method.startswith(_OWN_SHAPED):
        ranks = attention_ranks(launch.layout)
        entries = [_entry(rank_layer(layer, ranks), dtype) for layer in draft.layers if layer.attention is not None]
        copies = launch.layout.dcp  # the draft's pool spans the tokens of all DCP ranks
        return [
            CellPart(name="draft_k", layers=len(entries), bytes_per_token=copies * sum(e.k_bytes for e in entries)),
            CellPart(name="draft_v", layers=len(entries), bytes_per_token=copies * sum(e.v_bytes for e in entries)),
        ]
    layers = max((part.layers for part in full), default=0)
    drafted = speculation.extra_kv_layers
    if drafted is None:
        drafted = len(geometry.drafts) or 1
    if layers == 0 or drafted == 0:
        return []
    # the whole cell is scaled by the layer count and cut to an integer, as the engine does it
    cell = sum(part.bytes_per_token for part in full)
    extra = cell * (layers + drafted) // layers - cell
    shares = [part.bytes_per_token * drafted // layers for part in full]
    shares[-1] += extra - sum(shares)
    return [
        CellPart(name=f"draft_{part.name}", layers=drafted, bytes_per_token=share)
        for part, share in zip(full, shares, strict=True)
    ]
