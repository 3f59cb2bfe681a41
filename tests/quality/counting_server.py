"""A server reduced to what haystacks and provers ask of one: a real tokenizer, trained here, behind a chat template."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from longproof.domain.request import ChatMessage, ChatPrompt, CountSource, IdsPrompt, Prompt, TextPrompt, TokenCount
from longproof.engines.base import Capabilities, Engine
from longproof.errors import EngineProtocolError
from longproof.quality.corpora.generated import generated


def byte_level() -> Tokenizer:
    """The family of GPT-2, Llama 3, Qwen and SmolLM2: words and line ends cut apart first."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=2000, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(_lines(), trainer)
    return tokenizer


def marks_merged() -> Tokenizer:
    """As Llama 3 cuts: a mark takes the line ends after it along."""
    tokenizer = Tokenizer(models.BPE())
    pattern = Regex(r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(pattern, "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=2000, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(_lines(), trainer)
    return tokenizer


def sentence_piece() -> Tokenizer:
    """The family of Llama 2: spaces become a letter, the text gets one in front, line ends stand alone."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    spaces = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([spaces, pre_tokenizers.Split(Regex(r"[.,;\n]"), "isolated")])
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=2000, special_tokens=["<unk>"], initial_alphabet=_alphabet())
    tokenizer.train_from_iterator(_lines(), trainer)
    return tokenizer


def glued() -> Tokenizer:
    """Merges across line ends: what a text costs is not the sum of its lines."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=2000, special_tokens=["<unk>"], initial_alphabet=_alphabet())
    tokenizer.train_from_iterator(["".join(_lines()[i : i + 2]) for i in range(300)], trainer)
    return tokenizer


def _lines() -> list[str]:
    return [unit + "\n" for unit in generated(seed=99, tokens=1).units()[:400]]


def _alphabet() -> list[str]:
    return sorted(set("\n".join(_lines())) | set("qzxjvk0123456789_()=:'\"#"))


class CountingServer:
    """An engine that only counts. `gives_ids` False: it counts prompts and tokenizes nothing. `renders`: what its
    template makes of a message's content."""

    def __init__(self, tokenizer: Tokenizer, *, gives_ids: bool = True) -> None:
        self.tokenizer = tokenizer
        self.gives_ids = gives_ids
        self.capabilities = Capabilities(counts=True)
        self.url, self.model = "http://local", "local"
        self.counted = 0
        self.tokenized = 0

    def engine(self) -> Engine:
        """As an Engine: it has what is used here, and no more."""
        return cast("Engine", self)

    def shown(self, content: str) -> str:
        return content

    async def tokenize(self, text: str) -> list[int]:
        if not self.gives_ids:
            raise EngineProtocolError("no such route", url=self.url)
        self.tokenized += 1
        return self.tokenizer.encode(text).ids

    async def render(self, messages: Sequence[ChatMessage]) -> str:
        inside = "".join(f"[{message.role}]\n{self.shown(message.content)}[end]\n" for message in messages)
        return f"[system]\nBe brief.[end]\n{inside}[assistant]\n"

    async def count(self, prompt: Prompt) -> TokenCount:
        self.counted += 1
        assert not isinstance(prompt, IdsPrompt)
        text = await self.render(prompt.messages) if isinstance(prompt, ChatPrompt) else prompt.text
        tokens = 1 + len(self.tokenizer.encode(text).ids)
        return TokenCount(
            total=tokens, content=tokens, template=0, special=None, source=CountSource.SERVER, how="counted here"
        )


def text_of(prompt: Prompt) -> str:
    if isinstance(prompt, ChatPrompt):
        return prompt.messages[0].content
    assert isinstance(prompt, TextPrompt)
    return prompt.text
