"""Typed access to a config.json, which remembers what was looked for, what was missing and what was never read.

A value comes from the file, or, where the file is silent, from what transformers assumes for that model type. Missing
fields are collected, so that one error can name all of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib import resources
from typing import cast

from longproof.errors import GeometryError

# the same fact under other names: GPT-2, MPT, Falcon, ChatGLM, DBRX, T5 …
_ALIASES: dict[str, tuple[str, ...]] = {
    "num_hidden_layers": ("n_layer", "n_layers", "num_layers", "num_decoder_layers", "decoder_layers"),
    "hidden_size": ("n_embd", "d_model", "model_dim"),
    "num_attention_heads": ("n_head", "n_heads", "num_heads", "decoder_attention_heads"),
    "num_key_value_heads": ("num_kv_heads", "n_head_kv", "n_kv_heads", "num_attention_groups"),
    "head_dim": ("d_kv", "kv_channels", "attention_head_dim"),
    "vocab_size": ("padded_vocab_size",),
    "intermediate_size": ("ffn_hidden_size", "n_inner", "ffn_dim", "d_ff", "decoder_ffn_dim", "block_ff_dim"),
    "max_position_embeddings": (
        "n_positions", "seq_length", "max_seq_len", "max_sequence_length", "n_ctx", "max_target_positions",
        "model_max_length",
    ),
    "num_experts": ("num_local_experts", "n_routed_experts", "moe_num_experts", "num_moe_experts"),
    "num_experts_per_tok": ("num_experts_per_token", "moe_topk", "moe_k", "top_k_experts", "moe_top_k"),
    "moe_intermediate_size": ("expert_ffn_hidden_size",),
    "n_shared_experts": ("num_shared_experts", "num_shared_expert", "moe_num_shared_experts"),
    "torch_dtype": ("dtype",),
    "tie_word_embeddings": ("tie_embedding",),
}  # fmt: skip


_TRIVIAL = ("max_window_layers", "use_qk_norm", "qk_norm", "attention_bias")


class ConfigFields:
    """One (sub-)config. `name` is what errors call it."""

    def __init__(self, values: Mapping[str, object], *, name: str) -> None:
        self.values = values
        self.name = name
        self.model_type = str(values.get("model_type") or "")
        self.defaults = transformers_defaults().get(self.model_type, {})
        self.known_type = self.model_type in transformers_defaults()
        self.missing: list[str] = []
        self.notes: list[str] = []
        self._read: set[str] = set()
        self._assumed: list[str] = []

    def stated(self, name: str) -> object | None:
        """What the file says, by this name or one of its aliases; None = nothing or null."""
        for key in (name, *_ALIASES.get(name, ())):
            self._read.add(key)
            if self.values.get(key) is not None:
                return self.values[key]
        return None

    def value(self, name: str) -> object | None:
        """What the file says, else what transformers assumes for this model type."""
        found = self.stated(name)
        if found is not None or name in self.values:  # an explicit null is an answer
            return found
        for key in (name, *_ALIASES.get(name, ())):
            if key in self.defaults:
                if self.defaults[key] not in (False, 1) and key not in _TRIVIAL:
                    self._assumed.append(f"{key} {self.defaults[key]}")
                return self.defaults[key]
        return None

    def whole(self, name: str) -> int | None:
        """A whole number, or None. Raises GeometryError when the value is something else."""
        return self._whole(name, self.value(name))

    def whole_at(self, name: str, index: int) -> int | None:
        """A whole number that may be a list with one entry per layer; None for a list that is too short."""
        listed = self.wholes(name)
        if listed is not None:
            return listed[index] if index < len(listed) else None
        return self.whole(name)

    def stated_whole(self, name: str) -> int | None:
        """As `whole`, never from a default."""
        return self._whole(name, self.stated(name))

    def need(self, name: str, *, or_else: str = "") -> int:
        """A whole number above 0; when it is missing, it is noted as such and 1 stands in until `check`."""
        found = self.whole(name)
        if found is None or found < 1:
            self.lacks(f"{name} (or {or_else})" if or_else else name)
            return 1
        return found

    def flag(self, name: str, *, default: bool = False) -> bool:
        """A yes or no."""
        found = self.value(name)
        return default if found is None else bool(found)

    def text(self, name: str) -> str | None:
        """A text, or None."""
        found = self.stated(name)
        return found if isinstance(found, str) else None

    def sequence(self, name: str) -> tuple[object, ...] | None:
        """A list, or None when the value is not a list."""
        found = self.stated(name)
        if isinstance(found, Sequence) and not isinstance(found, str):
            return tuple(cast("Sequence[object]", found))
        return None

    def wholes(self, name: str) -> tuple[int, ...] | None:
        """A list of whole numbers, or None."""
        found = self.sequence(name)
        return None if found is None else tuple(self._whole(name, item) or 0 for item in found)

    def section(self, name: str) -> ConfigFields | None:
        """A nested object, or None. What is missing or noted in it counts for this config as well."""
        found = self.stated(name)
        if not isinstance(found, Mapping):
            return None
        inner = ConfigFields(cast("Mapping[str, object]", found), name=f"{self.name} {name}")
        inner.missing, inner.notes = self.missing, self.notes
        return inner

    def lacks(self, name: str) -> None:
        """Notes a missing field."""
        if name not in self.missing:
            self.missing.append(name)

    def note(self, sentence: str) -> None:
        """Notes what was assumed or disregarded."""
        if sentence not in self.notes:
            self.notes.append(sentence)

    def assumed(self) -> tuple[str, ...]:
        """Defaults that were used and that are not just "no": "head_dim 256"."""
        return tuple(dict.fromkeys(self._assumed))

    def unread(self) -> tuple[str, ...]:
        """Fields with a value that nothing looked at."""
        return tuple(key for key, value in self.values.items() if key not in self._read and value not in (None, False))

    def check(self) -> None:
        """Raises GeometryError naming every missing field."""
        if self.missing:
            raise GeometryError(
                f"{self.name} does not say what its cache costs: missing {', '.join(self.missing)}",
                advice="give the model's complete config.json, or add these fields to it",
                missing=tuple(self.missing),
            )

    def _whole(self, name: str, value: object | None) -> int | None:
        if value is None:
            return None
        if isinstance(value, float) and value.is_integer():
            return int(value)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        raise GeometryError(
            f"{self.name}: {name} is {value!r}, not a whole number",
            advice=f"correct {name} in the config",
            missing=(name,),
        )


@cache
def transformers_defaults() -> Mapping[str, Mapping[str, object]]:
    """Model type → what transformers assumes where a config is silent (`transformers_defaults.json`)."""
    text = (resources.files("longproof.geometry") / "transformers_defaults.json").read_text(encoding="utf-8")
    return cast("dict[str, dict[str, dict[str, object]]]", json.loads(text))["defaults"]


def names(values: Iterable[object]) -> tuple[str, ...]:
    """The texts among some values, lower-cased."""
    return tuple(str(value).lower() for value in values)
