"""The recurrent or convolution state of one layer, from the config's numbers.

Sources: vLLM 0.32 `model_executor/layers/mamba/mamba_utils.py` and the models named below, transformers 5.19.
"""

from __future__ import annotations

from longproof.geometry.config_fields import ConfigFields
from longproof.geometry.kinds import LayerKind, RecurrentState


def state_of(fields: ConfigFields) -> RecurrentState:
    """The state of this model's recurrent layers; what is missing is noted in `fields`."""
    kimi = fields.section("linear_attn_config")
    if kimi is not None:
        heads, head_dim = kimi.need("num_heads"), kimi.need("head_dim")
        return _delta(fields, LayerKind.KDA, (heads, head_dim, heads, head_dim), kimi.need("short_conv_kernel_size"))
    if fields.model_type == "kimi_linear" and not fields.whole("linear_num_value_heads"):
        heads, head_dim = fields.need("linear_num_heads"), fields.need("linear_head_dim")
        return _delta(fields, LayerKind.KDA, (heads, head_dim, heads, head_dim), fields.need("linear_conv_kernel_dim"))
    if fields.whole("linear_num_value_heads"):
        numbers = (
            fields.need("linear_num_value_heads"),
            fields.need("linear_value_head_dim"),
            fields.need("linear_num_key_heads"),
            fields.need("linear_key_head_dim"),
        )
        kind = LayerKind.KDA if fields.whole("kv_lora_rank") else LayerKind.GDN
        return _delta(fields, kind, numbers, fields.need("linear_conv_kernel_dim"))
    if fields.model_type in ("mamba", "falcon_mamba", "jamba"):
        return _mamba1(fields)
    if _mamba2_heads(fields) or fields.model_type == "mamba2":
        return _mamba2(fields)
    if fields.stated("mamba_d_state") is not None:  # Mamba1 has no heads
        return _mamba1(fields)
    if fields.stated("attn_type_list") is not None or fields.model_type.startswith(("minimax", "bailing")):
        return _lightning(fields)
    fields.lacks("the sizes of the recurrent state (linear_num_value_heads …, mamba_n_heads … or mamba_d_state …)")
    return RecurrentState(kind=LayerKind.LINEAR, heads=1, head_dim=1, state_dim=1, groups=0, conv_kernel=1)


def conv_of(fields: ConfigFields) -> RecurrentState:
    """LFM2's short convolution over the hidden size; it keeps conv_L_cache - 1 inputs."""
    return RecurrentState(
        kind=LayerKind.CONV,
        heads=fields.whole("conv_dim") or fields.need("hidden_size"),
        head_dim=1,
        state_dim=0,
        groups=0,
        conv_kernel=fields.need("conv_L_cache"),
    )


def _delta(
    fields: ConfigFields, kind: LayerKind, numbers: tuple[int, int, int, int], conv_kernel: int
) -> RecurrentState:
    heads, head_dim, groups, state_dim = numbers
    return RecurrentState(
        kind=kind,
        heads=heads,
        head_dim=head_dim,
        state_dim=state_dim,
        groups=groups,
        conv_kernel=conv_kernel,
        ssm_dtype=_ssm_dtype(fields),
    )


def _lightning(fields: ConfigFields) -> RecurrentState:
    head_dim = fields.whole("head_dim")
    heads = fields.need("num_attention_heads")
    size = head_dim or fields.need("hidden_size") // heads
    return RecurrentState(
        kind=LayerKind.LINEAR, heads=heads, head_dim=size, state_dim=size, groups=0, conv_kernel=1, ssm_dtype="float32"
    )


def _mamba1(fields: ConfigFields) -> RecurrentState:
    expand = fields.whole("mamba_expand") or fields.whole("expand") or 2
    inner = expand * fields.need("hidden_size")
    if fields.model_type != "jamba":
        inner = fields.stated_whole("intermediate_size") or inner
    state_dim = fields.whole("mamba_d_state") or fields.need("state_size", or_else="mamba_d_state")
    return RecurrentState(
        kind=LayerKind.MAMBA1,
        heads=inner,
        head_dim=1,
        state_dim=state_dim,
        groups=0,
        conv_kernel=fields.whole("mamba_d_conv") or fields.need("conv_kernel", or_else="mamba_d_conv"),
        ssm_dtype=_ssm_dtype(fields),
    )


def _mamba2_heads(fields: ConfigFields) -> int | None:
    for name in ("mamba_n_heads", "mamba_num_heads", "n_mamba_heads"):
        found = fields.whole(name)
        if found:
            return found
    return None


def _mamba2(fields: ConfigFields) -> RecurrentState:
    """Names of Bamba, Granite, Falcon-H1 (mamba_*), Nemotron-H (mamba_num_heads …), Zamba2 and plain Mamba2."""
    pure = fields.model_type == "mamba2"
    heads = _mamba2_heads(fields) or fields.need("num_heads")
    return RecurrentState(
        kind=LayerKind.MAMBA2,
        heads=heads,
        head_dim=(fields.need("head_dim") if pure else _mamba2_head_dim(fields, heads)),
        state_dim=_first(fields, "mamba_d_state", "ssm_state_size", "state_size"),
        groups=_first(fields, "mamba_n_groups", "mamba_ngroups", "n_groups"),
        conv_kernel=_first(fields, "mamba_d_conv", "conv_kernel"),
        ssm_dtype=_ssm_dtype(fields),
    )


def _mamba2_head_dim(fields: ConfigFields, heads: int) -> int:
    for name in ("mamba_d_head", "mamba_head_dim", "mamba_headdim"):
        value = fields.value(name)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    inner = fields.whole("mamba_d_ssm")
    if inner is None:
        inner = (fields.whole("mamba_expand") or fields.whole("expand") or 2) * fields.need("hidden_size")
    return inner // heads


def _first(fields: ConfigFields, *names: str) -> int:
    for name in names:
        found = fields.whole(name)
        if found:
            return found
    fields.lacks(" or ".join(names))
    return 1


def _ssm_dtype(fields: ConfigFields) -> str | None:
    return fields.text("mamba_ssm_dtype") or fields.text("mamba_ssm_cache_dtype")
