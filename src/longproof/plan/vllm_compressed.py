"""vLLM: the caches of one DeepSeek V4 layer. Read in 0.32 (models/deepseek_v4, backends/mla/sparse_swa.py).

    every layer      window        one entry per token of the last 128, blocks of 64
    ratio 4 or 128   entries       one per `ratio` tokens, a page for 256 tokens
                     compressor    float32 key and score of the tokens being compressed, a window of its own
    ratio 4          indexer       a key per entry, and a compressor for those keys

Pages are rounded up to whole 576-byte rows (512 where the cache is not fp8). Nothing is split by tensor parallelism.
"""

from __future__ import annotations

from longproof.geometry.dtypes import KvDtype, compressed_bytes, indexer_bytes
from longproof.geometry.kinds import CompressedAttention
from longproof.plan.vllm_specs import CacheKind, CacheSpec

BLOCK_TOKENS = 256
"""Tokens of a compressed page; other sizes are not accepted by its kernels."""
_WINDOW_BLOCK = 64
_FP8_ROW = 576
_PLAIN_ROW = 512
_STATE_ELEMENT = 4  # float32
_STATE_BLOCK = {4: 4, 128: 8}
"""Block of a compressor's state by ratio (CompressorStateCache)."""


def compressed_specs(attention: CompressedAttention, dtype: KvDtype, *, block_tokens: int, dcp: int) -> list[CacheSpec]:
    """The caches of one layer, in any order."""
    fp8 = dtype in (KvDtype.FP8, KvDtype.FP8_DS_MLA)
    row = _FP8_ROW if fp8 else _PLAIN_ROW
    entry = compressed_bytes(dtype, attention.head_dim, attention.rope_dim)
    specs = [_window(attention.window_tokens, _WINDOW_BLOCK, entry, row)]
    if not attention.ratio:
        return specs
    entries = block_tokens // attention.ratio
    specs.append(_entries("entries", block_tokens, entries * entry, row, dcp))
    specs.append(_compressor(attention.ratio, attention.head_dim, row))
    if attention.indexer is not None:
        key = indexer_bytes(attention.indexer, KvDtype.BFLOAT16)
        specs.append(_entries("indexer", block_tokens, entries * key, row, dcp))
        specs.append(_compressor(attention.ratio, attention.indexer.head_dim, row))
    return specs


def _compressor(ratio: int, head_dim: int, row: int) -> CacheSpec:
    """Key and score of each token in float32. Ratio 4 overlaps its neighbours: twice the width, twice the window."""
    overlap = 2 if ratio == 4 else 1
    return _window(overlap * ratio, _STATE_BLOCK.get(ratio, 8), 2 * overlap * head_dim * _STATE_ELEMENT, row)


def _window(window_tokens: int, block_tokens: int, entry_bytes: int, row: int) -> CacheSpec:
    content = block_tokens * entry_bytes
    return CacheSpec(
        kind=CacheKind.SLIDING,
        shape=("compressed", entry_bytes),
        block_tokens=block_tokens,
        content_bytes=content,
        page_bytes=_round_up(content, row),
        window_tokens=window_tokens,
    )


def _entries(name: str, block_tokens: int, content_bytes: int, row: int, dcp: int) -> CacheSpec:
    return CacheSpec(
        kind=CacheKind.MLA,
        shape=(name, content_bytes),
        block_tokens=block_tokens,
        content_bytes=content_bytes,
        page_bytes=_round_up(content_bytes, row),
        dcp=dcp,
    )


def _round_up(value: int, step: int) -> int:
    return -(-value // step) * step
