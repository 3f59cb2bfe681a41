"""The tokenizer inside a GGUF file, rebuilt for the `tokenizers` library.

A GGUF holds vocabulary, merges, token types and the name of the pre-tokenizer (``tokenizer.ggml.pre``), not the
regular expression that the name stands for: those are in llama.cpp's source (`llama-vocab.cpp`). The ones here are of
byte-level BPE models whose expression the `tokenizers` library matches the same way. Any other kind is refused by name,
and the engine counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Digits, PreTokenizer, Sequence, Split

from longproof.errors import ModelFileError
from longproof.gateway.chat_template import ChatTemplate
from longproof.gateway.gguf_fields import tokenizer_fields
from longproof.gateway.prompt_tokenizer import ModelTokenizer

_CONTROL, _USER_DEFINED = 3, 4  # token types as gguf-py 0.19 numbers them
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
_NO_REGEX = {"add_prefix_space": False, "use_regex": False}
_BEGINS_WITH_BOS = ("llama3", "llama-v3", "llama-bpe")
"""Pre-tokenizers for which llama.cpp adds a BOS unless the file says otherwise."""


def _pre_tokenizer(name: str) -> PreTokenizer | None:
    if name in ("gpt-2", "gpt2"):
        return ByteLevel(add_prefix_space=False, use_regex=True)
    if name in ("smollm", "starcoder", "codeshell", "refact", "command-r"):
        return Sequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False, use_regex=True)])
    digits = {"qwen2": "", "stablelm2": "", "llama-bpe": "{1,3}", "llama3": "{1,3}", "llama-v3": "{1,3}"}.get(name)
    if digits is None:
        return None
    return Sequence([Split(Regex(_WORDS % digits), "isolated"), ByteLevel(**_NO_REGEX)])


def load_gguf_tokenizer(path: Path) -> ModelTokenizer:
    """Reads it. Raises ModelFileError: no GGUF, or a kind of tokenizer that is not known here."""
    fields = tokenizer_fields(path)
    kind, pre = fields.get("tokenizer.ggml.model"), str(fields.get("tokenizer.ggml.pre", "default"))
    pre_tokenizer = _pre_tokenizer(pre) if kind == "gpt2" else None
    if pre_tokenizer is None:
        raise ModelFileError(
            f"{path.name} has the tokenizer '{kind}' with the pre-tokenizer '{pre}', which is not known here",
            advice="give the model's tokenizer.json; without one the engine counts",
        )
    texts = [str(text) for text in _list(fields, "tokenizer.ggml.tokens")]
    merges = [tuple(str(merge).split(" ", 1)) for merge in _list(fields, "tokenizer.ggml.merges")]
    try:
        model = BPE(
            vocab={text: index for index, text in enumerate(texts)},
            merges=cast("list[tuple[str, str]]", merges),
            ignore_merges=pre in _BEGINS_WITH_BOS,
        )
        tokenizer = cast("Any", Tokenizer(model))  # its stubs lack element types and setters
        tokenizer.pre_tokenizer = pre_tokenizer
        tokenizer.add_special_tokens(_added(texts, _list(fields, "tokenizer.ggml.token_type"), _CONTROL))
        tokenizer.add_tokens(_added(texts, _list(fields, "tokenizer.ggml.token_type"), _USER_DEFINED))
    except Exception as problem:  # tokenizers raises bare Exception for merges that make no sense
        raise ModelFileError(
            f"the tokenizer of {path.name} cannot be rebuilt: {problem}", advice="give the model's tokenizer.json"
        ) from problem
    special = {
        name: texts[index]
        for name in ("bos", "eos", "unknown", "padding")
        if isinstance(index := fields.get(f"tokenizer.ggml.{name}_token_id"), int) and 0 <= index < len(texts)
    }
    source = fields.get("tokenizer.chat_template")
    bos = _bos(fields, special, pre)
    return ModelTokenizer(
        tokenizer=cast(Tokenizer, tokenizer),
        template=ChatTemplate(source, _named(special)) if isinstance(source, str) else None,
        name=path.name,
        before=() if bos is None else (bos[1],),
        chat_bos=bos,
    )


def _bos(fields: Mapping[str, object], special: Mapping[str, str], pre: str) -> tuple[str, int] | None:
    adds = fields.get("tokenizer.ggml.add_bos_token")
    index = fields.get("tokenizer.ggml.bos_token_id")
    wanted = adds if isinstance(adds, bool) else pre in _BEGINS_WITH_BOS
    return (special["bos"], index) if wanted and isinstance(index, int) and "bos" in special else None


def _named(special: Mapping[str, str]) -> dict[str, str]:
    names = {"unknown": "unk", "padding": "pad"}
    return {f"{names.get(name, name)}_token": text for name, text in special.items()}


def _added(texts: list[str], types: list[object], kind: int) -> list[AddedToken]:
    return [
        AddedToken(text, normalized=False, special=kind == _CONTROL)
        for text, found in zip(texts, types, strict=False)
        if found == kind
    ]


def _list(fields: Mapping[str, object], key: str) -> list[object]:
    found = fields.get(key)
    return cast("list[object]", found) if isinstance(found, list) else []
