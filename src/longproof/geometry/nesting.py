"""Finds the language model in a config: multimodal models nest it in text_config, llm_config, thinker_config …"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from longproof.geometry.config_fields import ConfigFields, transformers_defaults

_NESTS = ("text_config", "llm_config", "language_config", "thinker_config", "language_model", "decoder")
# facts about the whole checkpoint that the outer config states for the language model as well
_INHERITED = ("tie_word_embeddings", "torch_dtype", "dtype", "quantization_config", "compression_config", "vocab_size")
_TOWERS = ("vision_config", "audio_config", "vit_config", "visual", "speech_config", "talker_config", "code2wav_config")


def language_model(config: Mapping[str, object], name: str) -> tuple[ConfigFields, tuple[str, ...]]:
    """(fields of the language model, names of the other parts of the checkpoint, which are not counted)."""
    values, outer_type = dict(config), ""
    towers = [key for key in _TOWERS if config.get(key)]
    while True:
        nest = next((key for key in _NESTS if isinstance(values.get(key), Mapping)), None)
        if nest is None or _is_model(values):
            break
        outer_type = str(values.get("model_type") or "")
        inner = dict(cast("Mapping[str, object]", values[nest]))
        for key in _INHERITED:
            if inner.get(key) is None and values.get(key) is not None:
                inner[key] = values[key]
        if not inner.get("model_type"):
            inner["model_type"] = transformers_defaults().get(outer_type, {}).get("text_config", outer_type)
        towers += [key for key in _TOWERS if inner.get(key) and key not in towers]
        values = inner
    fields = ConfigFields(values, name=name)
    if towers:
        fields.note(f"not counted: the weights and activations of {', '.join(towers)}")
    return fields, tuple(towers)


def _is_model(values: Mapping[str, object]) -> bool:
    """True where the outer level has layers of its own beside a nested config of something else."""
    return any(values.get(key) is not None for key in ("num_hidden_layers", "n_layer", "num_layers"))
