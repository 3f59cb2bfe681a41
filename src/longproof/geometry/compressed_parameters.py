"""How many weights a DeepSeek V4 attention has. Counted as in transformers 5.19's modeling file."""

from __future__ import annotations

from longproof.geometry.config_fields import ConfigFields
from longproof.geometry.kinds import CompressedAttention


def compressed_elements(
    fields: ConfigFields, attention: CompressedAttention, hidden: int
) -> tuple[int, int, int] | None:
    """(projections that divide over ranks, 0, what every rank has whole); None when a size is not stated.

    The output goes through groups of a low rank. Hyper-connections (`hc_mult` streams) count with the attention.
    """
    heads, q_rank, size = attention.query_heads, attention.q_lora_rank, attention.head_dim
    o_rank, o_groups = fields.whole("o_lora_rank"), fields.whole("o_groups")
    if heads is None or q_rank is None or o_rank is None or o_groups is None:
        return None
    divided = q_rank * heads * size + o_rank * heads * size + hidden * o_groups * o_rank
    whole = hidden * q_rank + q_rank + hidden * size + size + heads  # q_a, kv, their norms, sinks
    if attention.ratio:
        overlap = 2 if attention.ratio == 4 else 1  # neighbouring groups overlap at the finer ratio
        whole += _compressor(hidden, overlap * size, attention.ratio) + size
    if attention.indexer is not None:
        key, count = attention.indexer.head_dim, attention.indexer.heads or 0
        whole += _compressor(hidden, 2 * key, attention.ratio) + key + q_rank * count * key + hidden * count
    streams = fields.whole("hc_mult")
    if streams:
        mixed = (2 + streams) * streams
        whole += 2 * (mixed * streams * hidden + mixed + 3)
    return divided, 0, whole


def _compressor(hidden: int, width: int, ratio: int) -> int:
    """Projections of entry and gate, and a bias per position in the group."""
    return 2 * hidden * width + ratio * width
