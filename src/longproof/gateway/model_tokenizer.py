"""A model's own tokenizer and chat template, from its files: a Hugging Face directory, a tokenizer.json or a GGUF.

How an engine adds special tokens decides the count as well:

    HF (vLLM, SGLang)    chat: what the template writes, nothing more      text: what the post-processor adds
    GGUF (llama.cpp)     both: one BOS in front where `add_bos_token` says so, once, even if the template wrote it too

Whether all this is what the engine does is not believed but checked (`count_check`).
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from longproof.engines.local_tokenizer import read_tokenizer
from longproof.errors import ModelFileError
from longproof.gateway.chat_template import ChatTemplate
from longproof.gateway.prompt_tokenizer import ModelTokenizer

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_ADVICE = "give the model's directory (tokenizer.json, tokenizer_config.json) or its GGUF file"


def load_model_tokenizer(path: Path) -> ModelTokenizer:
    """Reads it. Raises ModelFileError: missing, unreadable, or a kind of tokenizer that is not known here."""
    # texts come one by one, in threads of ours: threads of the library's own would only be started and waited for, and
    # make it warn at every process that is started later
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if path.suffix.lower() == ".gguf":
        # here and not above: it imports the tokenizers library at once
        from longproof.gateway.gguf_tokenizer import load_gguf_tokenizer  # noqa: PLC0415

        return load_gguf_tokenizer(path)
    return _load_directory(path if path.is_dir() else path.parent, path if path.is_file() else path / "tokenizer.json")


def _load_directory(directory: Path, file: Path) -> ModelTokenizer:
    tokenizer = read_tokenizer(file, advice=_ADVICE)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    settings = _json(directory / "tokenizer_config.json")
    special = {name: text for name, value in settings.items() if name.endswith("_token") and (text := _content(value))}
    source = _template(directory, settings)
    before, after = _around(tokenizer)
    return ModelTokenizer(
        tokenizer=tokenizer,
        template=None if source is None else ChatTemplate(source, special),
        name=f"{file.name} of {directory.name or '.'}",
        before=before,
        after=after,
        expansion=_expansion(tokenizer),
    )


def _around(tokenizer: Tokenizer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What the post-processor puts before and after a text."""
    plain = tokenizer.encode("a", add_special_tokens=False).ids
    whole = tokenizer.encode("a", add_special_tokens=True).ids
    for start in range(len(whole) - len(plain) + 1):
        if whole[start : start + len(plain)] == plain:
            return tuple(whole[:start]), tuple(whole[start + len(plain) :])
    return (), ()


def _expansion(tokenizer: Tokenizer) -> int:
    """Unicode's own worst cases for UTF-8 (Standard Annex 15): 3 for NFC and NFD, 11 for NFKC and NFKD, which
    SentencePiece's compiled rules follow."""
    if tokenizer.normalizer is None:
        return 1
    rules = repr(tokenizer.normalizer)
    return 11 if "NFK" in rules or "Precompiled" in rules else 3


def _template(directory: Path, settings: dict[str, Any]) -> str | None:
    """chat_template.jinja before the settings' own, as transformers does; of several the one called "default"."""
    file = directory / "chat_template.jinja"
    if file.is_file():
        return file.read_text("utf-8")
    found = settings.get("chat_template")
    if isinstance(found, list):
        named = {str(entry.get("name")): entry.get("template") for entry in cast("list[dict[str, Any]]", found)}
        found = named.get("default")
    return found if isinstance(found, str) else None


def _content(value: object) -> str | None:
    if isinstance(value, dict):
        value = cast("dict[str, object]", value).get("content")
    return value if isinstance(value, str) else None


def _json(path: Path) -> dict[str, Any]:
    try:
        found: object = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as problem:
        raise ModelFileError(f"{path} cannot be read: {problem}", advice=_ADVICE) from problem
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}
