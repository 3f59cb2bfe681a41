"""vLLM: what a layer tells the cache manager about one of its caches."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class CacheKind(StrEnum):
    """The specs vLLM tells apart when it groups layers."""

    FULL = "full"
    MLA = "mla"
    SLIDING = "sliding"
    CHUNKED = "chunked"
    STATE = "state"
    CROSS = "cross"


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSpec:
    """One cache of one layer on one rank.

    `shape` is whatever else must be equal for two layers to share a group (heads, dimensions, dtype). `content_bytes`:
    one block without padding; `page_bytes`: with it. `dcp`: ranks that split the tokens (1 where not sharded).
    `state_blocks`: blocks one request holds, for STATE. `encoder_tokens`: for CROSS.
    """

    kind: CacheKind
    shape: tuple[int | str, ...]
    block_tokens: int
    content_bytes: int
    page_bytes: int
    window_tokens: int = 0
    extra_tokens: int = 0
    chunk_tokens: int = 0
    state_blocks: int = 0
    encoder_tokens: int = 0
    dcp: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCache:
    """A cache and the layer it belongs to (drafts are numbered after the model's layers)."""

    layer: int
    spec: CacheSpec
