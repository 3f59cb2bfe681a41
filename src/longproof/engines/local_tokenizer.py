"""A tokenizer on our side, for servers that do not count. A fallback: nothing proves that it is the server's own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from longproof.errors import ModelFileError

if TYPE_CHECKING:
    from tokenizers import Tokenizer


def read_tokenizer(file: Path, *, advice: str) -> Tokenizer:
    """Reads a tokenizer.json. Raises ModelFileError, with `advice`, when it cannot be read."""
    from tokenizers import Tokenizer  # noqa: PLC0415 - a native library that only counting on our side needs

    try:
        return Tokenizer.from_file(str(file))
    except Exception as problem:  # tokenizers raises bare Exception for missing and malformed files alike
        raise ModelFileError(f"{file} is not a tokenizer that can be read: {problem}", advice=advice) from problem


class LocalTokenizer:
    """A Hugging Face ``tokenizer.json``. `name` says which file it was, for the record."""

    def __init__(self, tokenizer: Tokenizer, *, name: str) -> None:
        self._tokenizer = tokenizer
        self.name = name

    @classmethod
    def load(cls, path: Path) -> LocalTokenizer:
        """Reads a tokenizer.json, or the one in a directory. Raises ModelFileError when there is none that can be
        read."""
        file = path / "tokenizer.json" if path.is_dir() else path
        tokenizer = read_tokenizer(
            file, advice="give the path of the model's tokenizer.json (or the directory it is in)"
        )
        return cls(tokenizer, name=f"tokenizer {file.name} of {file.parent.name or '.'}")

    def encode(self, text: str) -> list[int]:
        """Token ids, no special tokens added."""
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, special tokens included."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=False)
