"""The layers of a GGUF, from its metadata.

A layer recurs when its head_count_kv entry is 0 (Nemotron-H, Granite hybrid, LFM2, Jamba, Kimi-Linear) or by
`full_attention_interval` (Qwen3-Next, Qwen3.5). Sliding patterns are llama.cpp's own where the file has none.
"""

from __future__ import annotations

from longproof.errors import GeometryError
from longproof.geometry.gguf_metadata import GgufMetadata
from longproof.geometry.kinds import (
    Attention,
    GroupedAttention,
    Indexer,
    LatentAttention,
    LayerKind,
    RecurrentState,
)
from longproof.geometry.model import Layer, Mlp

# every n-th layer is full (llama.cpp b11434, set_swa_pattern); 0: the window is not applied at all
_EVERY = {
    "gemma2": 2, "gpt-oss": 2, "gemma3": 6, "gemma3n": 5, "cohere2": 4, "exaone4": 4, "exaone-moe": 4, "olmo2": 4,
    "afmoe": 4, "smallthinker": 4, "laguna": 4, "llama4": 4, "phi3": 0, "phimoe": 0, "llama": 0, "qwen2": 0,
    "starcoder2": 0, "mistral3": 0,
}  # fmt: skip
_DENSE_FIRST = ("smallthinker", "laguna")
_LATENT = ("deepseek2", "glm-dsa", "kimi-linear", "deepseek32", "minicpm3", "plm")
_INTERVAL = ("qwen3next", "qwen35", "qwen35moe")
_LLAMA4_CHUNK = 8192
_MOST_LAYERS = 2_000
"""Far beyond any decoder; a larger number is a broken file, and would only be slow to refuse."""


def gguf_layers(fields: GgufMetadata) -> tuple[tuple[Layer, ...], tuple[Layer, ...]]:
    """(layers of the model, draft layers); llama.cpp counts MTP layers into block_count, after the others."""
    blocks = fields.need("block_count")
    drafts = fields.whole("nextn_predict_layers") or 0
    if max(blocks, drafts) > _MOST_LAYERS:
        raise GeometryError(
            f"{fields.name}: block_count is {max(blocks, drafts):,}, more than any model has",
            advice="give the model's own file",
        )
    own = blocks - drafts
    shared = fields.whole("attention.shared_kv_layers") or 0
    sliding = _sliding(fields, own)
    layers: list[Layer] = []
    for index in range(own):
        layer = _layer(fields, index, sliding=sliding[index])
        if shared and index >= own - shared > 0:
            source = max((i for i in range(own - shared) if sliding[i] == sliding[index]), default=None)
            layer = Layer(index=index, attention=layer.attention, mlp=layer.mlp, kv_source=source)
        layers.append(layer)
    extra = tuple(_layer(fields, own + number, sliding=False, draft=True) for number in range(drafts))
    return tuple(layers), extra


def _layer(fields: GgufMetadata, index: int, *, sliding: bool, draft: bool = False) -> Layer:
    arch = fields.architecture
    mlp = _mlp(fields, index)
    if arch in ("mamba", "mamba2"):
        return Layer(index=index, state=_state(fields), mlp=mlp)
    if arch == "falcon-h1":
        return Layer(index=index, attention=_attention(fields, index, sliding=False), state=_state(fields), mlp=mlp)
    if not draft and arch in _INTERVAL:
        interval = fields.whole("full_attention_interval") or 4
        if (index + 1) % interval:
            return Layer(index=index, state=_state(fields), mlp=mlp)
    elif not draft and fields.is_list("attention.head_count_kv") and not fields.whole("attention.head_count_kv", index):
        if arch.startswith("nemotron_h") and mlp is not None:
            return Layer(index=index, mlp=mlp)
        return Layer(index=index, state=_state(fields), mlp=mlp)
    return Layer(index=index, attention=_attention(fields, index, sliding=sliding), mlp=mlp)


def _attention(fields: GgufMetadata, index: int, *, sliding: bool) -> Attention:
    if fields.whole("attention.kv_lora_rank") and (
        fields.architecture in _LATENT or fields.whole("attention.key_length_mla")
    ):
        if fields.whole("attention.key_length_mla"):
            return _latent(fields)
        fields.note("the file predates MLA in llama.cpp: K and V of every head are cached; convert it again")
    heads = fields.whole("attention.head_count", index)
    kv_heads = fields.whole("attention.head_count_kv", index) or heads
    k_dim, v_dim = fields.whole("attention.key_length"), fields.whole("attention.value_length")
    if k_dim is None or v_dim is None:
        size = fields.need("embedding_length") // (heads or 1)
        k_dim, v_dim = k_dim or size, v_dim or size
    if heads is None or kv_heads is None:
        fields.lacks("attention.head_count")
    if not sliding:
        kind, window, chunk = LayerKind.FULL, None, None
    elif fields.architecture == "llama4":
        kind, window, chunk = LayerKind.CHUNKED, None, fields.whole("attention.sliding_window") or _LLAMA4_CHUNK
    else:
        kind, window, chunk = LayerKind.SLIDING, fields.need("attention.sliding_window"), None
    if kind is LayerKind.SLIDING:
        k_dim = fields.whole("attention.key_length_swa") or k_dim
        v_dim = fields.whole("attention.value_length_swa") or v_dim
    return GroupedAttention(
        kind=kind,
        query_heads=heads,
        kv_heads=kv_heads or 1,
        k_dim=k_dim,
        v_dim=v_dim,
        window_tokens=window,
        chunk_tokens=chunk,
    )


def _latent(fields: GgufMetadata) -> LatentAttention:
    rope = fields.need("rope.dimension_count")
    index_dim = fields.whole("attention.indexer.key_length")
    return LatentAttention(
        query_heads=fields.whole("attention.head_count"),
        kv_lora_rank=fields.need("attention.kv_lora_rank"),
        rope_dim=rope,
        nope_dim=fields.need("attention.key_length_mla") - rope,
        v_dim=fields.need("attention.value_length_mla"),
        q_lora_rank=fields.whole("attention.q_lora_rank"),
        indexer=None
        if not index_dim
        else Indexer(
            head_dim=index_dim,
            heads=fields.whole("attention.indexer.head_count"),
            top_k=fields.whole("attention.indexer.top_k"),
        ),
    )


def _state(fields: GgufMetadata) -> RecurrentState:
    """llama.cpp keeps (conv_kernel - 1) x (inner + 2 groups x state) and state x inner elements, both in f32."""
    arch = fields.architecture
    if fields.whole("shortconv.l_cache"):
        return _recurrent(LayerKind.CONV, fields.need("embedding_length"), 1, 0, 0, fields.need("shortconv.l_cache"))
    if arch == "kimi-linear":
        heads, size = fields.need("attention.head_count"), fields.need("kda.head_dim")
        return _recurrent(LayerKind.KDA, heads, size, size, heads, fields.need("ssm.conv_kernel"))
    inner, state_dim = fields.need("ssm.inner_size"), fields.need("ssm.state_size")
    kernel = fields.need("ssm.conv_kernel")
    groups = fields.whole("ssm.group_count") or 0
    if not groups:
        return _recurrent(LayerKind.MAMBA1, inner, 1, state_dim, 0, kernel)
    heads = fields.need("ssm.time_step_rank")  # Mamba2's and the delta net's number of value heads
    kind = LayerKind.GDN if arch in _INTERVAL else LayerKind.MAMBA2
    return _recurrent(kind, heads, inner // heads, state_dim, groups, kernel)


def _recurrent(
    kind: LayerKind, heads: int, head_dim: int, state_dim: int, groups: int, conv_kernel: int
) -> RecurrentState:
    return RecurrentState(
        kind=kind,
        heads=heads,
        head_dim=head_dim,
        state_dim=state_dim,
        groups=groups,
        conv_kernel=conv_kernel,
        ssm_dtype="float32",
        conv_dtype="float32",
    )


def _sliding(fields: GgufMetadata, layers: int) -> tuple[bool, ...]:
    listed = fields.flags("attention.sliding_window_pattern")
    if listed is not None and len(listed) >= layers:
        return listed[:layers]
    window = fields.whole("attention.sliding_window")
    chunked = fields.architecture == "llama4" and window is None  # a stated 0 switches it off (MobileLLM)
    if not window and not chunked:
        return (False,) * layers
    every = fields.whole("attention.sliding_window_pattern") or _EVERY.get(fields.architecture)
    if every is None:
        raise GeometryError(
            f"{fields.name} ({fields.architecture}) has a window of {window} and no rule says which layers use it",
            advice="give the model's config.json with its layer_types",
            missing=(f"{fields.architecture}.attention.sliding_window_pattern",),
        )
    if every == 0:
        fields.note(f"llama.cpp does not apply the sliding window of {fields.architecture} models")
        return (False,) * layers
    first = 0 if fields.architecture in _DENSE_FIRST else 1
    return tuple((index + first) % every != 0 for index in range(layers))


def _mlp(fields: GgufMetadata, index: int) -> Mlp | None:
    size = fields.whole("feed_forward_length", index)
    experts = fields.whole("expert_count") or 0
    dense_first = fields.whole("leading_dense_block_count") or 0
    step = fields.whole("interleave_moe_layer_step") or 1
    if not experts or index < dense_first or (index + 1) % step:
        return Mlp(dense_size=size) if size else None
    if fields.is_list("feed_forward_length") and not size:
        return None
    expert_size = fields.whole("expert_feed_forward_length") or size
    if not expert_size:
        return None
    shared = fields.whole("expert_shared_feed_forward_length")
    return Mlp(
        experts=experts,
        experts_per_token=fields.whole("expert_used_count") or 0,
        expert_size=expert_size,
        shared_size=shared if shared is not None else (fields.whole("expert_shared_count") or 0) * expert_size,
    )
