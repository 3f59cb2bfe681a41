"""Which layer does what: the many ways in which configs say it, read into one slot per layer.

Sources: the configuration classes of transformers 5.19 and vLLM 0.32, named beside each rule.
"""

from __future__ import annotations

from typing import cast

from longproof.errors import GeometryError
from longproof.geometry.config_fields import ConfigFields, names
from longproof.geometry.described_patterns import described
from longproof.geometry.slots import WORDS, Role, Slot

_NEMOTRON = {
    "M": Slot(Role.STATE, "none"),
    "*": Slot(Role.ATTEND, "none"),
    "-": Slot(Role.FEED, "dense"),
    "E": Slot(Role.FEED, "experts"),
}
# every `n`-th layer is full, the others slide, where the config does not say (transformers 5.19 __post_init__)
_EVERY = {
    "gemma2": 2, "gpt_oss": 2, "gemma3_text": 6, "gemma3": 6, "gemma3n_text": 5, "gemma4_text": 6, "cohere2": 4,
    "olmo3": 4, "vaultgemma": 2, "t5gemma": 2,
}  # fmt: skip


def layer_slots(fields: ConfigFields, layers: int) -> tuple[Slot, ...]:
    """One slot per layer. Raises GeometryError when a list has another length or an unknown word."""
    slots = _nemotron(fields) or _listed(fields, layers) or _indexed(fields, layers) or _repeated(fields, layers)
    slots = slots or _assumed(fields, layers) or _uniform(fields, layers)
    if len(slots) != layers and not fields.missing:
        raise GeometryError(
            f"{fields.name} has {layers} layers and describes the kind of {len(slots)}",
            advice="correct num_hidden_layers or the list of layer kinds",
            missing=("layer_types",),
        )
    return slots


def nemotron_pattern(fields: ConfigFields) -> str | None:
    """Nemotron-H's pattern of single blocks, M * - E, or None."""
    pattern = fields.text("hybrid_override_pattern")
    return pattern if pattern and set(pattern) <= {*_NEMOTRON, "|"} else None


def nemotron_slots(pattern: str) -> tuple[Slot, ...]:
    """Nemotron-H: M Mamba2, * attention, - MLP, E experts; one of them per layer."""
    return tuple(_NEMOTRON[letter] for letter in pattern if letter != "|")


def _nemotron(fields: ConfigFields) -> tuple[Slot, ...] | None:
    pattern = nemotron_pattern(fields)
    if pattern is not None:
        return nemotron_slots(pattern)
    if fields.model_type != "nemotron_h":
        return None
    listed = fields.sequence("layers_block_type") or fields.sequence("layer_types")
    if listed is None:
        fields.lacks("hybrid_override_pattern")
        return ()
    letters = {"mamba": "M", "linear_attention": "M", "attention": "*", "full_attention": "*", "mlp": "-", "moe": "E"}
    return tuple(_NEMOTRON[letters[word]] for word in names(listed) if word in letters)


def _listed(fields: ConfigFields, layers: int) -> tuple[Slot, ...] | None:
    """`layer_types` (transformers), `layers_block_type` (Bamba, Zamba, Jamba)."""
    for name in ("layer_types", "layers_block_type"):
        told = fields.text(name)
        if told is not None:
            return described(told, layers, fields)
        listed = fields.sequence(name)
        if listed is None:
            continue
        unknown = sorted({word for word in names(listed) if word not in WORDS})
        if unknown:
            raise GeometryError(
                f"{fields.name}: {name} has kinds of layer that are not known: {', '.join(unknown)}",
                advice="what these layers keep per token or per sequence would settle it",
                missing=(name,),
            )
        # nested lists may be longer than the layers: the rest describes draft layers
        return tuple(Slot(WORDS[word]) for word in names(listed)[:layers])
    return None


def _indexed(fields: ConfigFields, layers: int) -> tuple[Slot, ...] | None:
    """Lists of numbers: one per layer, or the indices of the attention layers."""
    swa = fields.wholes("hybrid_layer_pattern")  # MiMo-V2: 1 slides
    if swa is not None:
        return tuple(Slot(Role.SLIDE if kind else Role.ATTEND) for kind in swa)
    kinds = fields.wholes("attn_type_list")  # MiniMax-Text-01: 0 linear, 1 full
    if kinds is not None:
        return tuple(Slot(Role.ATTEND if kind else Role.STATE) for kind in kinds)
    linear = fields.section("linear_attn_config")  # Kimi-Linear counts layers from 1
    if linear is not None:
        full = linear.wholes("full_attn_layers") or ()
        return tuple(Slot(Role.ATTEND if index + 1 in full else Role.STATE) for index in range(layers))
    for name, other in (("full_attn_idxs", Role.CONV), ("attn_layer_indices", Role.STATE)):  # LFM2, Bamba
        chosen = fields.wholes(name)
        if chosen is not None:
            return tuple(Slot(Role.ATTEND if index in chosen else other) for index in range(layers))
    cross = fields.wholes("cross_attention_layers")  # Mllama
    if cross is not None:
        return tuple(Slot(Role.CROSS if index in cross else Role.ATTEND) for index in range(layers))
    return None


def _repeated(fields: ConfigFields, layers: int) -> tuple[Slot, ...] | None:
    """A period: `full_attention_interval`, `attn_layer_period`, `sliding_window_pattern`, `no_rope_layers`."""
    interval = fields.stated_whole("full_attention_interval")
    if interval is None and fields.model_type in ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"):
        interval = 4
    if interval:
        return tuple(Slot(Role.STATE if (i + 1) % interval else Role.ATTEND) for i in range(layers))
    period = fields.whole("attn_layer_period")  # Jamba
    if period:
        offset = fields.whole("attn_layer_offset") or 0
        return tuple(Slot(Role.ATTEND if i % period == offset else Role.STATE) for i in range(layers))
    if fields.model_type == "minimax":  # MiniMax-Text-01 in transformers: every second one is linear
        return tuple(Slot(Role.ATTEND if (i + 1) % 2 else Role.STATE) for i in range(layers))
    if fields.model_type == "kimi_linear":  # transformers' default where no list is given
        return tuple(Slot(Role.ATTEND if i and i % 4 == 0 else Role.STATE) for i in range(layers))
    chunk = fields.whole("attention_chunk_size")
    if chunk and (fields.model_type == "llama4_text" or fields.stated("no_rope_layers") is not None):
        rope = fields.wholes("no_rope_layers")  # 1 = the layer has rope and is chunked, whatever the name says
        every = fields.whole("no_rope_layer_interval") or 4
        has_rope = rope or tuple(int((i + 1) % every != 0) for i in range(layers))
        return tuple(Slot(Role.CHUNK if one else Role.ATTEND) for one in has_rope)
    return _sliding_pattern(fields, layers)


def _sliding_pattern(fields: ConfigFields, layers: int) -> tuple[Slot, ...] | None:
    pattern = fields.stated("sliding_window_pattern")
    if fields.model_type == "exaone4" and fields.stated("sliding_window") is None:
        return tuple(Slot(Role.ATTEND) for _ in range(layers))
    if isinstance(pattern, str):
        if set(pattern) <= {"L", "G"}:  # EXAONE 4: L local, G global; the last layer is global
            letters = [pattern[i % len(pattern)] for i in range(layers - 1)] + ["G"]
            return tuple(Slot(Role.SLIDE if letter == "L" else Role.ATTEND) for letter in letters)
        return described(pattern, layers, fields)
    every = fields.stated_whole("sliding_window_pattern") if pattern is not None else _EVERY.get(fields.model_type)
    if not every:
        return None
    slots = [Slot(Role.SLIDE if (i + 1) % every else Role.ATTEND) for i in range(layers)]
    if fields.model_type == "gemma4_text":  # its last layer is always full
        slots[-1] = Slot(Role.ATTEND)
    return tuple(slots)


def _assumed(fields: ConfigFields, layers: int) -> tuple[Slot, ...] | None:
    """The kinds that the configuration class of transformers chooses where the config lists none."""
    period = fields.defaults.get("layer_types_period")
    if not isinstance(period, list) or fields.value("use_sliding_window") is not None:
        return None
    kinds = names(cast("list[object]", period))
    if not kinds:
        fields.lacks("layer_types")
        return None
    if any(kind not in WORDS for kind in kinds) or {WORDS[kind] for kind in kinds} == {Role.ATTEND}:
        return None
    fields.note(f"layer_types is not stated: {', '.join(kinds)} in turn, as transformers has it")
    return tuple(Slot(WORDS[kinds[index % len(kinds)]]) for index in range(layers))


def _uniform(fields: ConfigFields, layers: int) -> tuple[Slot, ...]:
    """All layers alike; a `sliding_window` alone holds for all of them, unless switched off (Qwen2, Qwen3)."""
    window = fields.stated_whole("sliding_window")
    if fields.value("use_sliding_window") is not None and not fields.flag("use_sliding_window"):
        window = None
    limit = fields.whole("max_position_embeddings")
    if window is not None and limit is not None and window >= limit:
        fields.note(f"sliding_window {window} is no shorter than the model's limit of {limit}: it hides nothing")
        window = None
    first = fields.whole("max_window_layers") or 0
    if window is None:
        return tuple(Slot(_only_role(fields)) for _ in range(layers))
    if not first:
        fields.note(f"sliding_window {window} is stated without a pattern: every layer slides")
    return tuple(Slot(Role.SLIDE if i >= first else Role.ATTEND) for i in range(layers))


def _only_role(fields: ConfigFields) -> Role:
    if fields.model_type in ("mamba", "mamba2", "falcon_mamba", "codestral_mamba", "bamba", "granitemoehybrid"):
        return Role.STATE
    if fields.model_type == "falcon_h1" or fields.stated("mamba_d_ssm") is not None:
        return Role.ATTEND_AND_STATE
    return Role.ATTEND
