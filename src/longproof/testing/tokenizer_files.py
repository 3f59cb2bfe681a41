"""The lying engine's tokenizer and chat template as files, such as a model on disk has them.

`FakeTokenizer` cuts text into pieces and each piece greedily into the longest parts it knows; that is what the
`tokenizers` library calls WordPiece, with a vocabulary of the same ids. The two agree on ASCII text. Other characters
are bytes to the engine and one unknown token to the files: a tokenizer that is almost the engine's own; with
`exact` it is the engine's own, bytes and all.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from longproof.testing.fake_tokenizer import (
    BOS,
    CHAT_TEMPLATE,
    END_OF_TEXT,
    SPECIAL_TOKENS,
    TURN_END,
    tokenizer,
)

_PIECES = r" ?[A-Za-z]+|[0-9]| ?[!-/:-@\[-`{-~]|[\s\S]"
_PRINTABLE = (*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100))
_OTHERS = tuple(byte for byte in range(256) if byte not in _PRINTABLE)
_SHOWN = {byte: chr(byte) for byte in _PRINTABLE} | {byte: chr(0x100 + at) for at, byte in enumerate(_OTHERS)}
"""How the `tokenizers` library writes bytes as characters."""


def write_tokenizer_files(
    directory: Path, *, template: str = CHAT_TEMPLATE, off_by: int = 0, exact: bool = False
) -> Path:
    """Writes tokenizer.json and tokenizer_config.json; returns the directory. `off_by` shifts all ids but the special
    ones: the same number of tokens, and none of them right. `exact`: characters outside ASCII are the engine's bytes
    too."""
    from tokenizers import AddedToken, Regex, Tokenizer, normalizers  # noqa: PLC0415 - a native library that few need
    from tokenizers.models import WordPiece  # noqa: PLC0415 - same
    from tokenizers.pre_tokenizers import Split  # noqa: PLC0415 - same

    shown = _as_characters if exact else bytes.decode
    vocabulary = {shown(text): token + (off_by if token >= len(SPECIAL_TOKENS) else 0) for token, text in _words(exact)}
    vocabulary |= {text: place for place, text in enumerate(SPECIAL_TOKENS)}
    model = WordPiece(
        vocab=vocabulary,
        unk_token=SPECIAL_TOKENS[END_OF_TEXT],
        continuing_subword_prefix="",
        max_input_chars_per_word=10**6,
    )
    found = cast("Any", Tokenizer(model))  # its stubs lack element types and setters
    pieces = _PIECES.replace(" ?", f"{shown(b' ')}?")
    if exact:
        found.normalizer = normalizers.ByteLevel()
    found.pre_tokenizer = Split(Regex(pieces), "isolated")
    found.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in SPECIAL_TOKENS])
    directory.mkdir(parents=True, exist_ok=True)
    found.save(str(directory / "tokenizer.json"))
    settings = {
        "bos_token": SPECIAL_TOKENS[BOS],
        "eos_token": {"content": SPECIAL_TOKENS[TURN_END]},
        "chat_template": template,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    return directory


def _words(exact: bool) -> Iterator[tuple[int, bytes]]:
    """All tokens that text is made of, the special ones apart. An ASCII character has a token of its own beside that of
    its byte, and is never cut into bytes."""
    fake = tokenizer()
    for token in range(len(SPECIAL_TOKENS), fake.size):
        text = fake.token_bytes(token)
        if text.isascii() or exact:
            yield token, text


def _as_characters(text: bytes) -> str:
    return "".join(_SHOWN[byte] for byte in text)
