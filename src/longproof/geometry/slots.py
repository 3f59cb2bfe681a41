"""What each layer is, before its numbers are known: a role and where its MLP comes from."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Role(StrEnum):
    """What a layer's mixer is, before the numbers are known."""

    ATTEND = "full"
    SLIDE = "sliding"
    CHUNK = "chunked"
    STATE = "state"
    ATTEND_AND_STATE = "attention and state"
    CONV = "conv"
    CROSS = "cross"
    FEED = "mlp"


@dataclass(frozen=True, slots=True)
class Slot:
    """One layer: its mixer, and its MLP: "config" (as the config places experts), "none", "dense" or "experts"."""

    role: Role
    mlp: str = "config"


WORDS = {
    "full_attention": Role.ATTEND, "attention": Role.ATTEND, "indexed_attention": Role.ATTEND,
    "deepseek_sparse_attention": Role.ATTEND, "full": Role.ATTEND,
    "global_attention": Role.ATTEND, "global": Role.ATTEND, "minimax_m3_sparse": Role.ATTEND,
    "sliding_attention": Role.SLIDE, "sliding_window": Role.SLIDE, "local_attention": Role.SLIDE,
    "sliding": Role.SLIDE, "local": Role.SLIDE, "swa": Role.SLIDE,
    "chunked_attention": Role.CHUNK, "chunked": Role.CHUNK,
    "linear_attention": Role.STATE, "linear": Role.STATE, "mamba": Role.STATE, "mamba2": Role.STATE, "kda": Role.STATE,
    "hybrid": Role.ATTEND_AND_STATE, "conv": Role.CONV, "short_conv": Role.CONV,
    "cross_attention": Role.CROSS, "mlp": Role.FEED, "moe": Role.FEED,
}  # fmt: skip
"""A layer's kind in configs → its role."""
