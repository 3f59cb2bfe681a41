"""Prompts of an exact length, against tokenizers of several families, the lying engine being honest, and the embedded
llama.cpp.

`LocalServer` is a server reduced to what the builder asks of one: a real tokenizer (trained here) behind a chat
template.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from longproof.asking.prompts import Insert, LengthUnproven, PromptBuilder
from longproof.asking.words import OPENERS, WORDS
from longproof.domain.request import (
    ChatMessage,
    ChatPrompt,
    CountSource,
    GenerationRequest,
    IdsPrompt,
    Prompt,
    Route,
    TextPrompt,
    TokenCount,
)
from longproof.engines.base import Capabilities, Engine
from longproof.engines.registry import connect
from longproof.errors import EngineProtocolError, EngineUnreachable
from longproof.testing.dialects import LLAMACPP, OPENAI, VLLM, Dialect
from longproof.testing.lies import NoUsage
from longproof.testing.lying_engine import HONEST, LyingEngine, lying_engine

Train = Callable[[], Tokenizer]
CODES = (
    Insert(depth=0.0, text="The HEAD code is 4821."),
    Insert(depth=0.5, text="The MIDDLE code is 9376."),
    Insert(depth=1.0, text="The TAIL code is 1503."),
)
QUESTION = "What are the three codes?"


def byte_level() -> Tokenizer:
    """The family of GPT-2, Llama 3, Qwen and SmolLM2: bytes, words cut apart first."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=3000, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(corpus(), trainer)
    return tokenizer


def sentence_piece() -> Tokenizer:
    """The family of Llama 2 and Mistral: spaces become a letter, the text gets one in front, marks stand alone."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    spaces = pre_tokenizers.Metaspace(prepend_scheme="first")
    marks = pre_tokenizers.Split(Regex(r"[.\n\[\]]"), behavior="isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([spaces, marks])
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=3000, special_tokens=["<unk>"])
    tokenizer.train_from_iterator(corpus(), trainer)
    return tokenizer


def few_words() -> Tokenizer:
    """Knows only a part of our words: the others take several tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=900, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(corpus(words=WORDS[::3]), trainer)
    return tokenizer


def glued() -> Tokenizer:
    """Merges words with the marks and breaks around them: what a text costs is not the sum of its words."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=3000, special_tokens=["<unk>"])
    tokenizer.train_from_iterator(corpus(), trainer)
    return tokenizer


def letters() -> Tokenizer:
    """One token per byte: no word is one token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=256, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(["a"], trainer)
    return tokenizer


def corpus(words: Sequence[str] = WORDS) -> list[str]:
    """Every word and opener often enough to be learned whole, in sentences and paragraphs."""
    lines = [f"{OPENERS[i % len(OPENERS)]} {word} {word} {word}.\n\n" for i, word in enumerate(words)]
    return [f"{line} {opener} {line}" for line in lines for opener in OPENERS[:4]]


class LocalServer:
    """An engine that only counts. `default_system`: its template puts a system message before chats without one;
    `system`: it takes system messages at all. `counted` are the prompts it was asked about."""

    def __init__(
        self, tokenizer: Tokenizer, *, default_system: str = "", system: bool = True, counts: bool = True
    ) -> None:
        self.tokenizer = tokenizer
        self.default_system = default_system
        self.system = system
        self.capabilities = Capabilities(token_ids=counts, counts=counts)
        self.url, self.model = "http://local", "local"
        self.counted: list[Prompt] = []

    async def tokenize(self, text: str) -> list[int]:
        return self.tokenizer.encode(text).ids

    async def render(self, messages: Sequence[ChatMessage]) -> str:
        if any(message.role == "system" for message in messages) and not self.system:
            raise EngineProtocolError("System role not supported", url=self.url)
        shown = [message for message in messages if message.role == "system"] or [
            ChatMessage(role="system", content=self.default_system)
        ] * bool(self.default_system)
        shown += [message for message in messages if message.role != "system"]
        return "".join(f"[{message.role}]\n{message.content}[end]\n" for message in shown) + "[assistant]\n"

    async def count(self, prompt: Prompt) -> TokenCount:
        self.counted.append(prompt)
        text = await self.render(prompt.messages) if isinstance(prompt, ChatPrompt) else getattr(prompt, "text", "")
        tokens = len(prompt.ids) if isinstance(prompt, IdsPrompt) else 1 + len(self.tokenizer.encode(text).ids)
        return TokenCount(
            total=tokens, content=tokens, template=0, special=None, source=CountSource.SERVER, how="counted here"
        )


def builder(engine: object, *, route: Route = Route.CHAT, salt: str = "salt") -> PromptBuilder:
    server: Engine = engine  # type: ignore[assignment] - LocalServer has what the builder uses, and no more
    return PromptBuilder(server, route=route, seed=7, salt=salt)


def text_of(prompt: Prompt) -> str:
    if isinstance(prompt, ChatPrompt):
        return "\n\n".join(message.content for message in prompt.messages)
    assert isinstance(prompt, TextPrompt)
    return prompt.text


@pytest.fixture(scope="module", params=[byte_level, sentence_piece, few_words], ids=lambda train: train.__name__)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    train: Train = request.param
    return train()


@pytest.mark.parametrize("default_system", ["", "You are a helpful assistant named Local."])
async def test_every_length_is_exact_when_the_server_counts(tokenizer: Tokenizer, default_system: str) -> None:
    """From the minimum on, each of the next 150 lengths: the change from bare words to sentences lies within."""
    server = LocalServer(tokenizer, default_system=default_system)
    prompts = builder(server)
    minimum = await prompts.minimum_tokens()
    for total in range(minimum, minimum + 150):
        built = await prompts.exact(total, nonce=prompts.nonce(f"length {total}"))
        assert (built.count.total, built.count.source) == (total, CountSource.SERVER)
        assert (await server.count(built.prompt)).total == total


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(  # breaks cost one more or less than predicted, so that a text drawn anew for every correction is off again
    total=3896, depths=[1.0, 0.14149750314464338], question=QUESTION, route=Route.CHAT
)
@given(
    total=st.integers(150, 4000),
    depths=st.lists(st.floats(0, 1), max_size=5),
    question=st.sampled_from(["", QUESTION]),
    route=st.sampled_from([Route.CHAT, Route.COMPLETIONS]),
)
async def test_length_is_exact_and_inserts_are_whole_when_they_stand_anywhere(
    tokenizer: Tokenizer, total: int, depths: list[float], question: str, route: Route
) -> None:
    server = LocalServer(tokenizer)
    server.capabilities = Capabilities(counts=True)  # no ids: the completions route gets text
    prompts = builder(server, route=route)
    inserts = [Insert(depth=depth, text=f"Marker {index} stands here.") for index, depth in enumerate(depths)]
    built = await prompts.exact(total, nonce=prompts.nonce("n"), inserts=inserts, question=question)
    assert (await server.count(built.prompt)).total == total
    text = text_of(built.prompt)
    places = [text.index(insert.text) for insert in sorted(inserts, key=lambda insert: insert.depth)]
    assert places == sorted(places)
    assert text.startswith(prompts.nonce("n"))
    assert text.endswith(question)


async def test_no_wrong_length_is_promised_when_costs_do_not_add_up() -> None:
    """Most lengths are found by drawing the tail anew; the others are refused, and none is wrong."""
    server = LocalServer(glued())
    prompts = builder(server)
    minimum = await prompts.minimum_tokens()
    found = 0
    for total in range(minimum, minimum + 400, 7):
        try:
            built = await prompts.exact(total, nonce=prompts.nonce(f"length {total}"))
        except LengthUnproven:
            continue
        assert (await server.count(built.prompt)).total == total
        found += 1
    assert found > 40  # of 58


async def test_inserts_stand_at_their_depths_when_there_is_filler_enough(tokenizer: Tokenizer) -> None:
    prompts = builder(LocalServer(tokenizer))
    built = await prompts.exact(4000, nonce=prompts.nonce("n"), inserts=CODES, question=QUESTION)
    text = text_of(built.prompt)
    head, middle, tail = (text.index(insert.text) for insert in CODES)
    assert text[:head].strip() == prompts.nonce("n")
    assert middle / len(text) == pytest.approx(0.5, abs=0.05)
    assert text[tail + len(CODES[2].text) :].strip() == QUESTION


async def test_prefix_is_the_same_and_tail_is_new_when_the_tail_is_redrawn(tokenizer: Tokenizer) -> None:
    """2,000 tokens of filler less nonce and template: the tail is the last 1/16, at least 64 tokens, so 5 % at most
    plus a paragraph's beginning."""
    prompts = builder(LocalServer(tokenizer))
    nonce = prompts.nonce("n")
    first, again, other = [
        text_of((await prompts.exact(2000, nonce=nonce, question=QUESTION, tail_nonce=tail)).prompt)
        for tail in (None, None, "another")
    ]
    assert first == again
    common = next(i for i, (a, b) in enumerate(zip(first, other, strict=False)) if a != b)
    assert 0.9 < common / len(first) < 0.97
    assert other.endswith(QUESTION)


async def test_nothing_is_shared_but_the_template_when_nonces_differ() -> None:
    server = LocalServer(byte_level(), default_system="You are a helpful assistant named Local.")
    prompts = builder(server)
    ids = [
        server.tokenizer.encode(await server.render(prompt.messages)).ids
        for index in range(40)
        if isinstance(prompt := (await prompts.exact(400, nonce=prompts.nonce(f"{index}"))).prompt, ChatPrompt)
    ]
    shared = max(next(i for i, (a, b) in enumerate(zip(one, two, strict=True)) if a != b) for one, two in pairwise(ids))
    assert shared < await prompts.most_shared_tokens()
    assert len({tuple(one) for one in ids}) == 40


async def test_nonce_goes_into_a_system_message_when_the_template_has_a_default_one() -> None:
    """`[system]\\n` is in front of the nonce then, and not the default text."""
    tokenizer = byte_level()
    for server, role in (
        (LocalServer(tokenizer), "user"),
        (LocalServer(tokenizer, default_system="You are a helpful assistant."), "system"),
        (LocalServer(tokenizer, default_system="You are a helpful assistant.", system=False), "user"),
    ):
        prompts = builder(server)
        built = await prompts.exact(200, nonce=prompts.nonce("n"))
        assert isinstance(built.prompt, ChatPrompt)
        assert built.prompt.messages[0].role == role
        assert built.prompt.messages[0].content.startswith(prompts.nonce("n"))


async def test_filler_is_plain_varied_text_when_it_is_long() -> None:
    prompts = builder(LocalServer(byte_level()))
    text = text_of((await prompts.exact(20_000, nonce=prompts.nonce("n"))).prompt)
    assert not any(char.isdigit() for char in text)
    assert 200 < text.count("\n\n") < 1000  # paragraphs of about six sentences of 13 tokens: 20,000 / 78 = 256
    sentences = Counter(text.replace("\n\n", " ").split(". "))
    assert sentences.most_common(1)[0][1] <= 2


async def test_one_full_count_is_enough_when_costs_add_up() -> None:
    """Two short counts (without filler, with the shortest) and one whole: a million tokens must not be counted
    twice.
    """
    server = LocalServer(byte_level())
    prompts = builder(server)
    await prompts.exact(300, nonce=prompts.nonce("learn"))
    server.counted.clear()
    await prompts.exact(30_000, nonce=prompts.nonce("n"))
    long = [prompt for prompt in server.counted if len(text_of(prompt)) > 10_000]
    assert (len(server.counted), len(long)) == (3, 1)


async def test_same_prompt_comes_out_when_seed_nonce_and_server_are_the_same() -> None:
    tokenizer = byte_level()
    built = [
        (await builder(LocalServer(tokenizer), salt=salt).exact(700, nonce="river stone light", inserts=CODES)).prompt
        for salt in ("one", "other")
    ]
    assert built[0] == built[1]


async def test_nonces_differ_when_salt_or_key_does() -> None:
    server = LocalServer(byte_level())
    nonces = {builder(server, salt=salt).nonce(key) for salt in ("one", "other") for key in ("a", "b")}
    assert len(nonces) == 4
    assert builder(server, salt="one").nonce("a") in nonces


async def test_length_is_refused_with_the_closest_when_it_cannot_hold_what_must_be_in_it() -> None:
    server = LocalServer(byte_level())
    prompts = builder(server)
    with pytest.raises(LengthUnproven) as refused:
        await prompts.exact(20, nonce=prompts.nonce("n"), inserts=CODES, question=QUESTION)
    closest = refused.value.closest_tokens
    assert closest is not None
    assert closest > 20
    assert (
        await prompts.exact(closest, nonce=prompts.nonce("n"), inserts=CODES, question=QUESTION)
    ).count.total == closest


async def test_length_is_unproven_when_no_word_is_one_token() -> None:
    prompts = builder(LocalServer(letters()))
    with pytest.raises(LengthUnproven, match="one token each"):
        await prompts.exact(500, nonce=prompts.nonce("n"))


async def test_length_is_unproven_when_the_count_never_settles() -> None:
    """A server whose count jumps by one with every call cannot prove a length, and must not make us loop."""

    class Restless(LocalServer):
        async def count(self, prompt: Prompt) -> TokenCount:
            count = await super().count(prompt)
            total = count.total + len(self.counted)
            return TokenCount(
                total=total, content=total, template=0, special=None, source=CountSource.SERVER, how="restless"
            )

    server = Restless(byte_level())
    prompts = builder(server)
    with pytest.raises(LengthUnproven, match="never to that many"):
        await prompts.exact(500, nonce=prompts.nonce("n"))
    assert len(server.counted) <= 10  # two short ones and eight attempts


async def test_a_refusal_to_count_is_unproven_and_a_lost_server_is_not_when_building() -> None:
    class Broken(LocalServer):
        problem: Exception = EngineProtocolError("501 Not Implemented", url="http://local")

        async def count(self, prompt: Prompt) -> TokenCount:
            raise self.problem

    server = Broken(byte_level())
    with pytest.raises(LengthUnproven, match="501 Not Implemented"):
        await builder(server).exact(500, nonce="river")
    server.problem = EngineUnreachable("connection refused", url="http://local")
    with pytest.raises(EngineUnreachable):
        await builder(server).exact(500, nonce="river")


async def test_ids_are_plain_words_of_any_number_when_the_engine_takes_ids(tokenizer: Tokenizer) -> None:
    server = LocalServer(tokenizer)
    prompts = builder(server)
    nonce_ids = tokenizer.encode(prompts.nonce("n")).ids
    allowed = set(tokenizer.encode(" ".join(["So it began", *WORDS, "."]) + " ice.").ids) | set(nonce_ids)
    for total in (1, 2, len(nonce_ids) - 1, len(nonce_ids), len(nonce_ids) + 1, 777):
        built = await prompts.ids(total, nonce=prompts.nonce("n"))
        assert isinstance(built.prompt, IdsPrompt)
        assert (len(built.prompt.ids), built.count.total, built.count.source) == (total, total, CountSource.IDS)
        assert list(built.prompt.ids[: len(nonce_ids)]) == nonce_ids[:total]
        assert set(built.prompt.ids) <= allowed
    with pytest.raises(LengthUnproven, match="shorter than one"):
        await prompts.ids(0, nonce=prompts.nonce("n"))


async def test_completions_get_ids_with_whole_inserts_when_the_engine_takes_ids() -> None:
    server = LocalServer(byte_level())
    prompts = builder(server, route=Route.COMPLETIONS)
    assert await prompts.minimum_tokens() == 1
    for total in (120, 1000):
        built = await prompts.exact(total, nonce=prompts.nonce("n"), inserts=CODES, question=QUESTION)
        assert isinstance(built.prompt, IdsPrompt)
        assert len(built.prompt.ids) == total
        text = server.tokenizer.decode(list(built.prompt.ids))
        assert text.startswith(prompts.nonce("n"))
        assert text.endswith(QUESTION)
        assert [text.count(insert.text) for insert in CODES] == [1, 1, 1]
    with pytest.raises(LengthUnproven):
        await prompts.exact(20, nonce=prompts.nonce("n"), inserts=CODES, question=QUESTION)


async def test_ids_are_refused_when_the_engine_takes_none() -> None:
    server = LocalServer(byte_level(), counts=False)
    with pytest.raises(LengthUnproven, match="takes no token ids"):
        await builder(server).ids(100, nonce="river")


@pytest.fixture(params=[LLAMACPP, VLLM, OPENAI], ids=lambda dialect: dialect.name)
async def honest(request: pytest.FixtureRequest) -> AsyncIterator[tuple[LyingEngine, Engine]]:
    dialect: Dialect = request.param
    server = lying_engine(HONEST.but(dialect=dialect, adds_bos=dialect is VLLM))
    async with server as url:
        engine = await connect(url)
        yield server, engine
        await engine.aclose()


@pytest.mark.parametrize("route", list(Route))
async def test_usage_is_the_wanted_length_when_an_honest_server_answers(
    honest: tuple[LyingEngine, Engine], route: Route
) -> None:
    _, engine = honest
    prompts = builder(engine, route=route)
    minimum = await prompts.minimum_tokens()
    for total in (minimum, minimum + 1, minimum + 40, 333, 1024, 3001):
        built = await prompts.exact(total, nonce=prompts.nonce(f"length {total}"))
        answer = await engine.send(GenerationRequest(prompt=built.prompt, max_tokens=1))
        assert answer.usage is not None
        assert answer.usage.prompt_tokens == built.count.total == total


async def test_calibration_never_sends_the_prompt_itself_when_the_server_cannot_count() -> None:
    """A prompt that was sent to be counted would not be cold: its words must not have been there before, and building
    it again must not send anything."""
    server = lying_engine(HONEST.but(dialect=OPENAI))
    async with server as url:
        engine = await connect(url)
        prompts = builder(engine)
        built = await prompts.exact(900, nonce=prompts.nonce("n"))
        assert built.count.source is CountSource.USAGE
        calibration = len(server.log.requests)
        assert max(request.prompt_tokens or 0 for request in server.log.requests) < 400
        assert await prompts.exact(900, nonce=prompts.nonce("n")) == built
        assert len(server.log.requests) == calibration
        answer = await engine.send(GenerationRequest(prompt=built.prompt, max_tokens=1))
        assert answer.usage is not None
        assert answer.usage.prompt_tokens == 900
        assert server.log.last.cached_tokens < await prompts.most_shared_tokens()
        await engine.aclose()


async def test_length_is_unproven_when_nobody_counts_and_usage_is_missing() -> None:
    server = lying_engine(HONEST.but(dialect=OPENAI).lying(NoUsage()))
    async with server as url:
        engine = await connect(url)
        with pytest.raises(LengthUnproven, match="neither counts tokens nor reports usage"):
            await builder(engine).exact(900, nonce="river stone")
        await engine.aclose()


def test_depth_is_refused_when_it_is_outside_the_prompt() -> None:
    with pytest.raises(ValueError, match="depth"):
        Insert(depth=1.5, text="x")


@pytest.mark.engine
async def test_lengths_are_what_the_embedded_engine_uses_when_it_is_asked(embedded_url: str) -> None:
    """Counts for many lengths, usage for a few (a real prefill takes a second here)."""
    engine = await connect(embedded_url)
    prompts = builder(engine)
    minimum = await prompts.minimum_tokens()
    for total in (*range(minimum, minimum + 40), *range(64, 4096, 173)):
        built = await prompts.exact(total, nonce=prompts.nonce(f"length {total}"))
        assert built.count.total == total
    for total in (minimum, 120):
        built = await prompts.exact(total, nonce=prompts.nonce(f"sent {total}"))
        answer = await engine.send(GenerationRequest(prompt=built.prompt, max_tokens=1, cold=True))
        assert answer.usage is not None
        assert (answer.usage.prompt_tokens, answer.usage.cached_tokens) == (total, 0)
    for total in (1, 7, 90):
        built = await prompts.ids(total, nonce=prompts.nonce(f"ids {total}"))
        answer = await engine.send(GenerationRequest(prompt=built.prompt, max_tokens=1, cold=True))
        assert answer.usage is not None
        assert answer.usage.prompt_tokens == total
    await engine.aclose()


@pytest.mark.engine
async def test_only_the_template_is_cached_when_fresh_prompts_follow_each_other(embedded_url: str) -> None:
    engine = await connect(embedded_url)
    prompts = builder(engine)
    most = await prompts.most_shared_tokens()
    cached: list[int] = []
    for index in range(2):
        built = await prompts.exact(100, nonce=prompts.nonce(f"fresh {index}"))
        answer = await engine.send(GenerationRequest(prompt=built.prompt, max_tokens=1))
        assert answer.usage is not None
        cached.append(answer.usage.cached_tokens or 0)
    assert max(cached) < most
    await engine.aclose()
