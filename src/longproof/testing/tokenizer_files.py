"""The lying engine's tokenizer and chat template as files, such as a model on disk has them.

`FakeTokenizer` cuts text into pieces and each piece greedily into the longest parts it knows; that is what the
`tokenizers` library calls WordPiece, with a vocabulary of the same ids. The two agree on ASCII text. Other characters
are bytes to the engine and one unknown token to the files: a tokenizer that is almost the engine's own.
"""

from __future__ import annotations

import json
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


def write_tokenizer_files(directory: Path, *, template: str = CHAT_TEMPLATE, off_by: int = 0) -> Path:
    """Writes tokenizer.json and tokenizer_config.json; returns the directory. `off_by` shifts all ids but the special
    ones: the same number of tokens, and none of them right."""
    from tokenizers import AddedToken, Regex, Tokenizer  # noqa: PLC0415 - a native library that few tests need
    from tokenizers.models import WordPiece  # noqa: PLC0415 - same
    from tokenizers.pre_tokenizers import Split  # noqa: PLC0415 - same

    fake = tokenizer()
    vocabulary = {
        fake.token_bytes(token).decode(): token + (off_by if token >= len(SPECIAL_TOKENS) else 0)
        for token in range(fake.size)
        if token < len(SPECIAL_TOKENS) or fake.token_bytes(token).isascii()
    }
    model = WordPiece(
        vocab=vocabulary,
        unk_token=SPECIAL_TOKENS[END_OF_TEXT],
        continuing_subword_prefix="",
        max_input_chars_per_word=10**6,
    )
    found = cast("Any", Tokenizer(model))  # its stubs lack element types and setters
    found.pre_tokenizer = Split(Regex(_PIECES), "isolated")
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
