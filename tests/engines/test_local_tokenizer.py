"""The fallback tokenizer."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing

from longproof.domain.request import ChatMessage, ChatPrompt, CountSource, IdsPrompt, TextPrompt
from longproof.engines.link import Link
from longproof.engines.local_tokenizer import LocalTokenizer
from longproof.engines.openai import OpenAIEngine
from longproof.errors import ModelFileError, UsageError


@pytest.fixture
def tokenizer_file(tmp_path: Path) -> Path:
    """Words a, b, c are 1, 2, 3; a BOS (0) is put before every text that is encoded with special tokens."""
    tokenizer = Tokenizer(WordLevel({"<s>": 0, "a": 1, "b": 2, "c": 3}, unk_token="<s>"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    path = tmp_path / "tokenizer.json"
    tokenizer.save(str(path))
    return path


def test_text_is_encoded_without_special_tokens_and_decoded_with_them(tokenizer_file: Path) -> None:
    tokenizer = LocalTokenizer.load(tokenizer_file)
    assert tokenizer.encode("a c b") == [1, 3, 2]
    assert tokenizer.decode([0, 1, 3]) == "<s> a c"


def test_tokenizer_is_found_when_its_directory_is_named(tokenizer_file: Path) -> None:
    assert LocalTokenizer.load(tokenizer_file.parent).encode("b") == [2]


@pytest.mark.parametrize("content", [None, b"", b"{}", b"\xff\xfe"])
def test_error_says_what_to_give_when_the_file_is_none(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "tokenizer.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ModelFileError) as refused:
        LocalTokenizer.load(path)
    assert "tokenizer.json" in refused.value.advice


async def test_engine_counts_contents_and_says_so_when_only_a_local_tokenizer_counts(tokenizer_file: Path) -> None:
    engine = OpenAIEngine(Link("localhost:1"), model="m", tokenizer=LocalTokenizer.load(tokenizer_file))
    messages = (ChatMessage(role="user", content="a b"), ChatMessage(role="assistant", content="c"))
    count = await engine.count(ChatPrompt(messages=messages))
    assert (count.total, count.content, count.template, count.special) == (3, 3, 0, None)
    assert count.source is CountSource.LOCAL_TOKENIZER
    assert "template" in count.how
    assert (await engine.count(TextPrompt(text="a a"))).total == 2
    assert (await engine.tokenize("a b"), await engine.detokenize([1, 2])) == ([1, 2], "a b")
    assert not engine.capabilities.counts
    await engine.aclose()


async def test_engine_counts_ids_when_nothing_else_counts() -> None:
    engine = OpenAIEngine(Link("localhost:1"), model="m")
    assert (await engine.count(IdsPrompt(ids=(7, 7, 7)))).total == 3
    for refused in (engine.count(TextPrompt(text="a")), engine.tokenize("a"), engine.detokenize([1])):
        with pytest.raises(UsageError, match="does not count"):
            await refused
    with pytest.raises(UsageError, match="template"):
        await engine.render(())
    await engine.aclose()
