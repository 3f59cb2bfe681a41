"""Typed access to a GGUF's metadata, by key without the architecture in front of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from longproof.errors import GeometryError


class GgufMetadata:
    """`architecture` is general.architecture. Missing keys are collected, as `ConfigFields` does."""

    def __init__(self, values: Mapping[str, object], *, name: str) -> None:
        self.values = values
        self.name = name
        self.architecture = str(values.get("general.architecture") or "")
        self.missing: list[str] = []
        self.notes: list[str] = []

    def get(self, key: str) -> object | None:
        """The value of `ARCH.key`, or None."""
        return self.values.get(f"{self.architecture}.{key}")

    def whole(self, key: str, layer: int | None = None) -> int | None:
        """A whole number; of a list the entry of `layer`, or the largest where no layer is asked for."""
        found = self.get(key)
        if isinstance(found, Sequence) and not isinstance(found, str):
            numbers = [int(cast("int", item)) for item in cast("Sequence[object]", found)]
            if not numbers:
                return None
            return max(numbers) if layer is None else numbers[layer] if layer < len(numbers) else None
        if isinstance(found, bool) or not isinstance(found, int):
            return None
        return found

    def flags(self, key: str) -> tuple[bool, ...] | None:
        """A list of yes and no, or None."""
        found = self.get(key)
        if isinstance(found, Sequence) and not isinstance(found, str):
            return tuple(bool(item) for item in cast("Sequence[object]", found))
        return None

    def is_list(self, key: str) -> bool:
        """True when the value differs by layer."""
        return self.flags(key) is not None

    def need(self, key: str, layer: int | None = None) -> int:
        """A whole number above 0; noted as missing otherwise, 1 stands in until `check`."""
        found = self.whole(key, layer)
        if found is None or found < 1:
            self.lacks(key)
            return 1
        return found

    def lacks(self, key: str) -> None:
        """Notes a missing key."""
        full = f"{self.architecture}.{key}"
        if full not in self.missing:
            self.missing.append(full)

    def note(self, sentence: str) -> None:
        """Notes what was assumed."""
        if sentence not in self.notes:
            self.notes.append(sentence)

    def vocabulary(self) -> int | None:
        """Tokens in the vocabulary: stated, else the length of the token list."""
        found = self.whole("vocab_size")
        if found is not None:
            return found
        length = self.values.get("tokenizer.ggml.tokens")
        return length if isinstance(length, int) else None

    def check(self) -> None:
        """Raises GeometryError naming every missing key."""
        if not self.architecture:
            self.missing.insert(0, "general.architecture")
        if self.missing:
            raise GeometryError(
                f"{self.name} does not say what its cache costs: missing {', '.join(self.missing)}",
                advice="convert the model again with a current llama.cpp, or give its config.json",
                missing=tuple(self.missing),
            )
