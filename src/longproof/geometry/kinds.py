"""What a layer keeps between tokens: the kinds of attention and state, with the numbers that decide their size.

Values only, per layer and before any sharding. `model.py` puts them together.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias


class LayerKind(StrEnum):
    """What a layer keeps between tokens."""

    FULL = "full"
    """K and V of every token (MHA, GQA, MQA)."""
    SLIDING = "sliding"
    """K and V of the last `window_tokens`."""
    CHUNKED = "chunked"
    """K and V of the current chunk (Llama 4 local layers)."""
    MLA = "mla"
    """One latent vector per token."""
    SPARSE_MLA = "sparse_mla"
    """MLA with an indexer that picks the tokens to attend (DSA)."""
    COMPRESSED = "compressed"
    """A window plus compressed entries (DeepSeek V4)."""
    GDN = "gdn"
    """Gated delta net: fixed state (Qwen3-Next, Qwen3.5)."""
    KDA = "kda"
    """Kimi delta attention: fixed state."""
    LINEAR = "linear"
    """Linear ("lightning") attention without a convolution (MiniMax-Text, Bailing)."""
    MAMBA1 = "mamba1"
    MAMBA2 = "mamba2"
    CONV = "conv"
    """Short convolution: a few last inputs (LFM2)."""
    CROSS = "cross"
    """K and V of the encoder's output."""
    NONE = "none"
    """Nothing: an MLP-only layer, or one that reads another layer's cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Indexer:
    """A sparse layer's indexer. It caches one key of `head_dim` elements per token, whatever the number of heads.

    `scaled_fp8`: the key is stored as fp8 with a 4-byte scale (DSA: 132 B for 128), else in the cache's dtype (MiniMax
    M3). `shares_top_k`: this layer reuses the tokens an earlier layer picked (GLM-5.2 "shared", `index_topk_freq`).
    Its key cache is not needed; whether an engine leaves it out depends on the build.
    """

    head_dim: int
    heads: int | None
    top_k: int | None
    scaled_fp8: bool = True
    shares_top_k: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedAttention:
    """MHA, GQA or MQA. `kind`: FULL, SLIDING or CHUNKED.

    `query_heads` None: the config does not say (weights and compute are then unknown, the cache is not).
    `window_tokens` counts the token itself (HF `sliding_window`): a token sees at most window_tokens keys. Set for
    SLIDING only, `chunk_tokens` for CHUNKED only. `k_is_v`: one projection serves as K and V (Gemma 4); engines may
    still store both.
    """

    kind: LayerKind
    query_heads: int | None
    kv_heads: int
    k_dim: int
    v_dim: int
    window_tokens: int | None = None
    chunk_tokens: int | None = None
    k_is_v: bool = False
    indexer: Indexer | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """Multi-head latent attention: one vector of kv_lora_rank + rope_dim elements per token, the same on every TP rank.

    `nope_dim`, `v_dim` are per head and do not enter the cache. `q_lora_rank` None: queries are projected directly.
    With an `indexer` the layer is sparse (DSA).
    """

    query_heads: int | None
    kv_lora_rank: int
    rope_dim: int
    nope_dim: int | None
    v_dim: int | None
    q_lora_rank: int | None = None
    indexer: Indexer | None = None

    @property
    def latent_dim(self) -> int:
        """Elements cached per token: kv_lora_rank + rope_dim (576 for DeepSeek V2/V3)."""
        return self.kv_lora_rank + self.rope_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressedAttention:
    """DeepSeek V4: one latent of `head_dim` elements per token in a window, and one per `ratio` tokens beyond it.

    `ratio` 0: the window alone. `rope_dim` of the `head_dim` elements carry the position. An `indexer` picks among the
    compressed entries (ratio 4 only). Source: config.json `compress_ratios`, one per layer.
    """

    query_heads: int | None
    head_dim: int
    rope_dim: int
    window_tokens: int
    ratio: int
    q_lora_rank: int | None = None
    indexer: Indexer | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurrentState:
    """State of fixed size per sequence: a convolution's last inputs and a matrix per head.

        conv  = (conv_kernel - 1) × (heads · head_dim + 2 · groups · state_dim)     elements
        ssm   = heads × head_dim × state_dim                                        elements

    One formula for all kinds. MAMBA2: as its own names. GDN and KDA: heads and head_dim are the value heads, groups the
    key heads, state_dim the key dimension. MAMBA1: heads = inner size, head_dim 1, groups 0. CONV: heads = hidden size,
    head_dim 1, groups 0, state_dim 0. LINEAR: conv_kernel 1 (no convolution), groups 0.
    `ssm_dtype`, `conv_dtype`: HF names; None = the engine's default for this kind.
    """

    kind: LayerKind
    heads: int
    head_dim: int
    state_dim: int
    groups: int
    conv_kernel: int
    ssm_dtype: str | None = None
    conv_dtype: str | None = None

    @property
    def conv_channels(self) -> int:
        """Channels the convolution runs over."""
        return self.heads * self.head_dim + 2 * self.groups * self.state_dim

    @property
    def conv_elements(self) -> int:
        """Elements of the convolution's state for one sequence, without speculative tokens."""
        return (self.conv_kernel - 1) * self.conv_channels

    @property
    def ssm_elements(self) -> int:
        """Elements of the recurrent matrix for one sequence."""
        return self.heads * self.head_dim * self.state_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossAttention:
    """Attention to an encoder's output; the cache holds `Encoder.tokens` entries per sequence, not the prompt's."""

    query_heads: int | None
    kv_heads: int
    k_dim: int
    v_dim: int


Attention: TypeAlias = GroupedAttention | LatentAttention | CompressedAttention
"""The attention of one layer."""


def kind_of(attention: Attention) -> LayerKind:
    """The kind of an attention."""
    match attention:
        case GroupedAttention():
            return attention.kind
        case LatentAttention():
            return LayerKind.MLA if attention.indexer is None else LayerKind.SPARSE_MLA
        case CompressedAttention():
            return LayerKind.COMPRESSED
