"""What a model asks of a device: multiply-adds and bytes, per layer, before any sharding.

    ModelGeometry + cache dtype ──▶ ModelWork ──▶ flops(new, cached), cached bytes read at a context

Attention of T new tokens on P cached ones, per layer (causal, so half of the new-on-new square):

    pairs = T·P + T²/2            full, MLA         min(…, window) per token for sliding, min(…, top_k) for sparse
    flop  = 2 · heads · (score_dim + value_dim) · pairs
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionWork:
    """One layer's attention.

    `cached_bytes`: of one token, all KV heads; 0 when the layer reads another layer's cache. `shared_by_heads`: one
    latent serves all heads, so tensor parallelism repeats it instead of splitting it. `window`: at most so many keys
    per token. `stride`: one cache entry per so many tokens beyond the window (DeepSeek V4). `top_k`: at most so many
    keys, picked by an indexer that looks at all of them: `index_dim` multiply-adds per pair and `index_bytes` per key.
    `merged_dim`: elements per head that ranks exchange for one token when its cache is split by tokens (query and
    partial output; of latents the absorbed ones).
    """

    query_heads: int
    kv_heads: int
    score_dim: int
    value_dim: int
    cached_bytes: float
    shared_by_heads: bool = False
    window: int | None = None
    stride: int = 1
    top_k: int | None = None
    index_dim: int = 0
    index_bytes: float = 0.0
    merged_dim: int = 0

    @property
    def grows(self) -> bool:
        """Whether a longer context costs more."""
        return self.window is None or self.stride > 1

    def keys(self, context: float) -> float:
        """Keys the newest token attends to at a context of so many tokens."""
        if self.window is not None and self.stride == 1:
            return min(context, self.window)
        beyond = context / self.stride
        chosen = beyond if self.top_k is None else min(beyond, self.top_k)
        return chosen + (min(context, self.window) if self.window is not None else 0)

    def pairs(self, new: int, cached: int) -> float:
        """Query-key pairs of `new` tokens on `cached` ones: the integral of `keys` over the new tokens."""
        if self.window is not None and self.stride == 1:
            return _capped(new, cached, self.window)
        limit = None if self.top_k is None else self.top_k * self.stride
        beyond = (_square(new, cached) if limit is None else _capped(new, cached, limit)) / self.stride
        return beyond + (_capped(new, cached, self.window) if self.window is not None else 0)

    def flops(self, new: int, cached: int) -> float:
        """FLOP of scores and values, and of the indexer."""
        index = 2 * self.index_dim * _square(new, cached) / self.stride
        return 2 * self.query_heads * (self.score_dim + self.value_dim) * self.pairs(new, cached) + index

    def read_bytes(self, context: float) -> float:
        """Cache bytes one decode step reads for one sequence."""
        return self.cached_bytes * self.keys(context) + self.index_bytes * context / self.stride


def _square(new: int, cached: int) -> float:
    return new * cached + new * new / 2


def _capped(new: int, cached: int, limit: int) -> float:
    rising = min(max(limit - cached, 0), new)
    return _square(rising, cached) + (new - rising) * limit


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWork:
    """One layer's weights and attention. Elements every token passes through are `dense_elements`.

    `expert_elements`: all routed experts; one token uses `experts_per_token` of `experts`. `state_bytes`: of the
    recurrent state, read and written by each decode step of each sequence.
    """

    dense_elements: int
    dense_bytes: float
    expert_elements: int = 0
    expert_bytes: float = 0.0
    experts: int = 0
    experts_per_token: int = 0
    attention: AttentionWork | None = None
    state_bytes: float = 0.0
    state_elements: int = 0

    @property
    def active_elements(self) -> float:
        """Elements one token passes through."""
        return self.dense_elements + self.active_expert_elements

    @property
    def active_expert_elements(self) -> float:
        """Elements of the experts one token is sent to."""
        return self.expert_elements * self.experts_per_token / self.experts if self.experts else 0.0

    def touched_share(self, tokens: float) -> float:
        """Expected share of the experts that at least one of `tokens` tokens uses, when they choose at random."""
        if not self.experts:
            return 0.0
        return 1 - (1 - self.experts_per_token / self.experts) ** tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelWork:
    """A model's layers, and the output head, which prefill applies to one token and decode to each.

    `counted`: the distinct layers and how often each occurs: sums over layers need no more, whatever the depth.
    """

    name: str
    layers: tuple[LayerWork, ...]
    hidden_size: int
    head_elements: int = 0
    head_bytes: float = 0.0
    counted: tuple[tuple[LayerWork, int], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "counted", tuple(Counter(self.layers).items()))

    def weight_flops(self, tokens: int) -> float:
        """FLOP of all projections for `tokens` prompt tokens; the output head is applied once."""
        per_token = sum(n * (layer.active_elements + 2 * layer.state_elements) for layer, n in self.counted)
        return 2 * tokens * per_token + 2 * self.head_elements

    def attention_flops(self, new: int, cached: int = 0) -> float:
        """FLOP of attention for `new` tokens on `cached` ones."""
        return sum(n * layer.attention.flops(new, cached) for layer, n in self.counted if layer.attention is not None)

    def weight_bytes(self, tokens: float) -> float:
        """Weight bytes a step of `tokens` tokens reads: everything dense, and the experts that get a token."""
        dense = sum(n * layer.dense_bytes for layer, n in self.counted) + self.head_bytes
        return dense + sum(n * layer.expert_bytes * layer.touched_share(tokens) for layer, n in self.counted)

    def cached_token_bytes(self) -> float:
        """Cache bytes one more token adds, once the windows are full. Indexer keys included."""
        return sum(
            (a.cached_bytes + a.index_bytes) / a.stride
            for a in (layer.attention for layer in self.layers)
            if a is not None and a.grows
        )

    def sequence_bytes(self, context: int) -> float:
        """Cache and state bytes of one sequence of `context` tokens."""
        total = 0.0
        for layer in self.layers:
            total += layer.state_bytes
            if layer.attention is not None:
                a = layer.attention
                kept = context / a.stride if a.grows else min(context, a.window or context)
                extra = min(context, a.window) if a.grows and a.window is not None else 0
                total += a.cached_bytes * (kept + extra) + a.index_bytes * context / a.stride
        return total
