"""The types of a model's geometry: one `Layer` per decoder layer, with all numbers that decide its cache and weights.

    ModelGeometry
    ├── layers: (Layer, …)      in order, as the checkpoint numbers them
    │     ├── attention   GroupedAttention | LatentAttention | CompressedAttention | None
    │     ├── state       RecurrentState | None       both are set where a layer has both (Falcon-H1)
    │     ├── cross       CrossAttention | None
    │     ├── mlp         Mlp | None
    │     └── weights     LayerWeights | None         elements, by how parallelism splits them
    ├── drafts: (Layer, …)      MTP layers of the checkpoint; cost something only when the engine drafts with them
    └── outer, dtype, quantization, limits, encoder

Values only: nothing here reads a file. Numbers are per layer and for the whole model, before any sharding.
"""

from __future__ import annotations

from dataclasses import dataclass

from longproof.domain.measure import Reading, Unknown
from longproof.geometry.kinds import Attention, CrossAttention, LayerKind, RecurrentState, kind_of

_NO_HIDDEN_SIZE = Unknown(reason="the config has no hidden_size")
_NO_VOCAB_SIZE = Unknown(reason="the config has no vocab_size")
_NO_LIMIT = Unknown(reason="the config has no max_position_embeddings")
_NO_DTYPE = Unknown(reason="the config has no torch_dtype")
_NO_FILE = Unknown(reason="no safetensors index and no model file was read")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mlp:
    """Feed-forward part. Dense: `dense_size` only. Mixture: `experts` of `expert_size`, `experts_per_token` chosen.

    `shared_size`: inner size of what every token passes through beside the experts (all shared experts together).
    `gated`: three matrices (gate, up, down), else two. Sizes are inner (intermediate) dimensions.
    `experts_per_token` 0 beside `experts`: the config does not say.
    """

    dense_size: int = 0
    experts: int = 0
    experts_per_token: int = 0
    expert_size: int = 0
    shared_size: int = 0
    gated: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeights:
    """Weight elements of one layer, by what parallelism does with them.

    `attention`: projections, split over attention TP (KV projections are repeated when there are fewer heads than
    ranks; `kv_projection` is that part of `attention`). `mlp`: dense and shared parts. `experts`: all routed experts.
    `active_experts`: those one token uses. `replicated`: norms, routers, indexers, latent down-projections, every rank
    has them.
    """

    attention: int = 0
    kv_projection: int = 0
    mlp: int = 0
    experts: int = 0
    active_experts: int = 0
    replicated: int = 0

    @property
    def total(self) -> int:
        """All elements."""
        return self.attention + self.mlp + self.experts + self.replicated

    @property
    def active(self) -> int:
        """Elements one token passes through."""
        return self.attention + self.mlp + self.active_experts + self.replicated


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One decoder layer. `index` counts from 0 in the checkpoint.

    `kv_source`: index of the layer whose K and V this one reads (Gemma 3n/4 `num_kv_shared_layers`); it then caches
    nothing of its own although `attention` describes what it computes. `mlp` None: it has none, or the config does not
    give its size. `weights` None: not known.
    """

    index: int
    attention: Attention | None = None
    state: RecurrentState | None = None
    cross: CrossAttention | None = None
    mlp: Mlp | None = None
    kv_source: int | None = None
    weights: LayerWeights | None = None

    @property
    def kinds(self) -> tuple[LayerKind, ...]:
        """What the layer caches, attention first; (NONE,) when it caches nothing."""
        found: list[LayerKind] = []
        if self.attention is not None and self.kv_source is None:
            found.append(kind_of(self.attention))
        if self.state is not None:
            found.append(self.state.kind)
        if self.cross is not None:
            found.append(LayerKind.CROSS)
        return tuple(found) or (LayerKind.NONE,)


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """How positions were stretched. `kind`: HF `rope_type` (yarn, llama3, linear, dynamic, longrope …).

    `original_tokens`: the window before stretching; None = not said.
    """

    kind: str
    factor: float | None = None
    original_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantization:
    """A checkpoint's quantised weights. `method`: HF `quant_method` (fp8, awq, gptq, compressed-tensors, mxfp4,
    modelopt …).

    `bits`: of one quantised weight, None = not said. `group_size`: weights per scale (one group of this many input
    channels, or the area of a 2-D block, e.g. 128·128), None = one scale per output channel or tensor. `kv_dtype`:
    what the checkpoint asks for its KV cache, None = nothing. `ignored`: module patterns left in the model dtype.
    `scale_bits`: of one scale and its zero point. `parts`: which of attention, mlp and experts are quantised.
    `part_bits`: (part, bits of a weight with its scales) where a part differs from `bits`.
    """

    method: str
    bits: float | None = None
    group_size: int | None = None
    scale_bits: int = 0
    kv_dtype: str | None = None
    ignored: tuple[str, ...] = ()
    parts: tuple[str, ...] = ("attention", "mlp", "experts")
    part_bits: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoder:
    """What cross attention looks at. `tokens`: the longest encoder output (Whisper 1500, Mllama per image)."""

    tokens: Reading[int]
    layers: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OuterWeights:
    """Weight elements outside the layers. `lm_head` is 0 when tied to the embedding. `other`: final norm and the like.

    `unlisted`: names of parts that exist but are not counted (vision tower).
    """

    embedding: int
    lm_head: int
    other: int = 0
    unlisted: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelGeometry:
    """A model as its file describes it.

    `architecture`: HF `model_type` or GGUF `general.architecture`; "" when the file does not say. `source`: where it
    was read. `dtype`: HF name of the weights' type before quantisation (bfloat16 …). `max_position_tokens`: the
    trained window, after rope scaling as the config counts it. `weight_file_bytes`: size of all weights on disk, when
    an index or the file itself says so. `weights_exact`: the counts of elements are exact, not a general rule.
    `notes`: what a reader assumed or disregarded, one sentence each.
    """

    name: str
    architecture: str
    source: str
    layers: tuple[Layer, ...]
    drafts: tuple[Layer, ...] = ()
    hidden_size: Reading[int] = _NO_HIDDEN_SIZE
    vocab_size: Reading[int] = _NO_VOCAB_SIZE
    max_position_tokens: Reading[int] = _NO_LIMIT
    dtype: Reading[str] = _NO_DTYPE
    tied_embeddings: bool = False
    rope: RopeScaling | None = None
    quantization: Quantization | None = None
    encoder: Encoder | None = None
    outer: OuterWeights | None = None
    weight_file_bytes: Reading[int] = _NO_FILE
    weights_exact: bool = False
    notes: tuple[str, ...] = ()

    def total_parameters(self) -> int | None:
        """Weight elements of layers, embedding and head, without draft layers. None: not all layers are known."""
        return self._count(active=False)

    def active_parameters(self) -> int | None:
        """Weight elements one token passes through, embedding included (as in A22B). None: not known."""
        return self._count(active=True)

    def _count(self, *, active: bool) -> int | None:
        if self.outer is None:
            return None
        count = self.outer.embedding + self.outer.lm_head + self.outer.other
        for layer in self.layers:
            if layer.weights is None:
                return None
            if active and layer.weights.experts and not layer.weights.active_experts:
                return None
            count += layer.weights.active if active else layer.weights.total
        return count
