"""Model geometries written out by hand, for tests that want no reader. Figures from the models' config.json."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from longproof.domain.measure import Reading, Unknown, derived
from longproof.geometry.kinds import GroupedAttention, Indexer, LatentAttention, LayerKind, RecurrentState
from longproof.geometry.model import Layer, ModelGeometry


def geometry(
    layers: Sequence[Layer],
    *,
    name: str = "model",
    architecture: str = "llama",
    window: int | None = 131_072,
    drafts: tuple[Layer, ...] = (),
    dtype: str = "bfloat16",
) -> ModelGeometry:
    """A model of these layers. `window`: its trained window in tokens; None = unknown."""
    source = "written by hand"
    trained: Reading[int] = Unknown(reason="not given") if window is None else derived(window, source)
    return ModelGeometry(
        name=name,
        architecture=architecture,
        source=source,
        layers=tuple(layers),
        drafts=drafts,
        dtype=derived(dtype, source),
        max_position_tokens=trained,
    )


def full(kv_heads: int, k_dim: int, v_dim: int | None = None) -> GroupedAttention:
    """Attention that keeps every token; V as wide as K unless given."""
    return GroupedAttention(
        kind=LayerKind.FULL, query_heads=None, kv_heads=kv_heads, k_dim=k_dim, v_dim=k_dim if v_dim is None else v_dim
    )


def sliding(kv_heads: int, k_dim: int, window: int, v_dim: int | None = None) -> GroupedAttention:
    """Attention over a window of tokens."""
    return GroupedAttention(
        kind=LayerKind.SLIDING,
        query_heads=None,
        kv_heads=kv_heads,
        k_dim=k_dim,
        v_dim=k_dim if v_dim is None else v_dim,
        window_tokens=window,
    )


def uniform(layers: int, kv_heads: int, head_dim: int, *, window: int | None = 131_072) -> ModelGeometry:
    """`layers` equal layers that keep every token."""
    return geometry([Layer(index=i, attention=full(kv_heads, head_dim)) for i in range(layers)], window=window)


def glm5() -> ModelGeometry:
    """78 layers of sparse MLA: 512 + 64, indexer keys of 128."""
    indexer = Indexer(head_dim=128, heads=32, top_k=2048)
    attention = LatentAttention(
        query_heads=64, kv_lora_rank=512, rope_dim=64, nope_dim=192, v_dim=256, q_lora_rank=2048, indexer=indexer
    )
    return geometry(
        [Layer(index=i, attention=attention) for i in range(78)], architecture="glm_moe_dsa", window=202_752
    )


def deepseek_r1() -> ModelGeometry:
    """61 layers of MLA, 512 + 64."""
    attention = LatentAttention(query_heads=128, kv_lora_rank=512, rope_dim=64, nope_dim=128, v_dim=128)
    return geometry([Layer(index=i, attention=attention) for i in range(61)], architecture="deepseek_v3")


def qwen36_27b(heads: int = 48, layers: int = 64, kv_heads: int = 4) -> ModelGeometry:
    """Every fourth layer full (4 heads of 256), the others gated delta nets."""
    state = RecurrentState(
        kind=LayerKind.GDN, heads=heads, head_dim=128, state_dim=128, groups=16, conv_kernel=4, ssm_dtype="float32"
    )
    return geometry(
        [
            Layer(index=i, attention=full(kv_heads, 256)) if i % 4 == 3 else Layer(index=i, state=state)
            for i in range(layers)
        ],
        architecture="qwen3_5_text",
        window=262_144,
    )


def nemotron3_nano() -> ModelGeometry:
    """52 layers: 23 Mamba2, 6 full (2 heads of 128), the rest MLP only."""
    pattern = "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME"
    state = RecurrentState(
        kind=LayerKind.MAMBA2, heads=64, head_dim=64, state_dim=128, groups=8, conv_kernel=4, ssm_dtype="float32"
    )
    kinds = {"M": Layer(index=0, state=state), "*": Layer(index=0, attention=full(2, 128)), "E": Layer(index=0)}
    layers = [replace(kinds[kind], index=i) for i, kind in enumerate(pattern)]
    return geometry(layers, architecture="nemotron_h", window=262_144)


def mimo_v2_flash() -> ModelGeometry:
    """9 full layers of 4 heads, 39 windowed ones of 8; K 192, V 128."""
    return geometry(
        [
            Layer(index=i, attention=full(4, 192, 128) if i % 6 == 5 or i == 0 else sliding(8, 192, 128, 128))
            for i in range(48)
        ],
        architecture="mimo_v2_flash",
        window=262_144,
    )


def gpt_oss_20b() -> ModelGeometry:
    """24 layers of 8 heads of 64, every second one with a window of 128."""
    return geometry(
        [Layer(index=i, attention=full(8, 64) if i % 2 else sliding(8, 64, 128)) for i in range(24)],
        architecture="gpt_oss",
    )


def gemma3_270m() -> ModelGeometry:
    """18 layers of one head of 256; all but every sixth with a window of 512."""
    return geometry(
        [Layer(index=i, attention=full(1, 256) if i % 6 == 5 else sliding(1, 256, 512)) for i in range(18)],
        architecture="gemma3_text",
        window=32_768,
    )


def falcon_h1() -> ModelGeometry:
    """Attention and Mamba2 in every layer."""
    state = RecurrentState(kind=LayerKind.MAMBA2, heads=48, head_dim=64, state_dim=256, groups=1, conv_kernel=4)
    return geometry([Layer(index=i, attention=full(2, 128), state=state) for i in range(24)], architecture="falcon_h1")
