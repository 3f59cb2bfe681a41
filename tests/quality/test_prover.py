"""Prompts around items: their length, their needles, what they share, and what is refused; on servers that count well,
oddly, wrongly or not at all."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from counting_server import CountingServer, byte_level, glued, marks_merged, sentence_piece, text_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from longproof.asking.exact import LengthUnproven
from longproof.domain.request import CountSource, GenerationRequest, Prompt, Route, TokenCount
from longproof.engines.base import Engine
from longproof.engines.registry import connect
from longproof.errors import CorpusError, EngineProtocolError, EngineUnreachable
from longproof.quality.corpora.corpus import Document, TextCorpus
from longproof.quality.corpora.generated import generated
from longproof.quality.haystack import TokenizedCorpus, tokenize_corpus
from longproof.quality.item import Item, Needle
from longproof.quality.proof import first_missing
from longproof.quality.prover import Prover, length_check
from longproof.testing import HONEST, LyingEngine
from longproof.testing.behaviour import Behaviour
from longproof.testing.dialects import LLAMACPP, OPENAI, VLLM
from longproof.testing.lies import TruncateInput, WrongCount

PROSE = generated(seed=5, tokens=2_000)
NONCE = "day eye lot air new cup"


def item_of(*depths: float, index: int = 0, question: str = "What is the passcode for Fjord?") -> Item:
    needles = tuple(
        Needle(text=f"The passcode for Fjord {number} is {index}{711_097 + number}.", depth=depth)
        for number, depth in enumerate(depths)
    )
    return Item(
        family="literal",
        index=index,
        seed=f"0/literal/{index}",
        needles=needles,
        question=question,
        answers=("711097",),
        candidates=("711097",),
    )


ITEM = item_of(0.2, 0.6)


async def on(server: CountingServer, *, route: Route = Route.CHAT) -> tuple[Prover, TokenizedCorpus]:
    corpus = await tokenize_corpus(server.engine(), PROSE, route=route)
    return Prover(server.engine(), route=route), corpus


@asynccontextmanager
async def proving(behaviour: Behaviour, **wishes: bool) -> AsyncIterator[tuple[Engine, Prover, TokenizedCorpus]]:
    with LyingEngine(behaviour) as url:
        engine = await connect(url)
        try:
            corpus = await tokenize_corpus(engine, PROSE, route=Route.CHAT)
            yield engine, Prover(engine, route=Route.CHAT, **wishes), corpus
        finally:
            await engine.aclose()


async def used(engine: Engine, prompt: Prompt) -> int | None:
    timeline = await engine.send(GenerationRequest(prompt=prompt, max_tokens=1))
    return None if timeline.usage is None else timeline.usage.prompt_tokens


@pytest.fixture(scope="module", params=[byte_level, marks_merged, sentence_piece], ids=lambda train: train.__name__)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    train: Callable[[], Tokenizer] = request.param
    return train()


# -- length and needles -----------------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    target=st.integers(300, 12_000),
    depths=st.lists(st.floats(0, 1), max_size=6),
    nonce=st.sampled_from(["", NONCE]),
    route=st.sampled_from([Route.CHAT, Route.COMPLETIONS]),
    index=st.integers(0, 99),
)
async def test_every_length_is_reached_with_needles_whole_when_tokens_add_up(
    tokenizer: Tokenizer, target: int, depths: list[float], nonce: str, route: Route, index: int
) -> None:
    server = CountingServer(tokenizer)
    prover, corpus = await on(server, route=route)
    item = item_of(*sorted(depths), index=index)
    built = await prover.item(item, corpus, target, nonce=nonce)
    assert abs(built.count.total - target) <= 1
    assert built.count == await server.count(built.prompt)
    text = text_of(built.prompt)
    assert text.startswith(nonce)
    asked = item.question if route is Route.CHAT else f"Question: {item.question}\nAnswer:"
    assert text.endswith(f"\n\n{asked}")
    places = [text.index(needle.text) for needle in item.needles]
    assert places == sorted(places)
    lines = text.removeprefix(f"{nonce}\n\n").removesuffix(f"\n\n{asked}").split("\n")
    assert len(set(lines)) == len(lines)
    assert set(lines) <= {*PROSE.units(), *(needle.text for needle in item.needles)}
    # within one unit of the depth: the largest unit over all of the filler
    assert built.haystack is not None
    largest = int(corpus.tokens[built.haystack.units].max()) / built.haystack.tokens
    if depths:
        nearest = min(item.needles, key=lambda needle: abs(needle.depth - item.depth))
        assert built.depth in [d for d, n in zip(built.depths, item.needles, strict=True) if n.depth == nearest.depth]
    assert all(abs(depth - needle.depth) <= largest for depth, needle in zip(built.depths, item.needles, strict=True))
    again = await Prover(server.engine(), route=route).item(item, corpus, target, nonce=nonce)
    assert text_of(again.prompt) == text


async def test_no_wrong_length_is_promised_when_costs_do_not_add_up() -> None:
    server = CountingServer(glued())
    prover, corpus = await on(server)
    reached = 0
    for target in range(700, 6_000, 265):
        try:
            built = await prover.item(ITEM, corpus, target)
        except LengthUnproven:
            continue
        assert abs((await server.count(built.prompt)).total - target) <= 1
        reached += 1
    assert reached >= 18  # of 20


async def test_lengths_are_reached_when_the_server_counts_and_gives_no_ids() -> None:
    server = CountingServer(byte_level(), gives_ids=False)
    prover, corpus = await on(server)
    assert corpus.how.startswith("batches shared out")
    for target in range(500, 6_000, 611):
        built = await prover.item(ITEM, corpus, target)
        assert abs((await server.count(built.prompt)).total - target) <= 1


@pytest.mark.parametrize("dialect", [LLAMACPP, VLLM], ids=["llama.cpp", "vLLM"])
async def test_usage_is_the_count_when_the_prompt_is_sent(dialect: object) -> None:
    async with proving(replace(HONEST, dialect=dialect)) as (engine, prover, corpus):  # type: ignore[arg-type]
        for target in (400, 1_111, 3_000):
            built = await prover.item(ITEM, corpus, target, nonce=NONCE)
            assert (built.count.total, built.count.source) == (target, CountSource.SERVER)
            assert length_check(built.count, await used(engine, built.prompt)).proven
            assert built.checked_in == "the server's rendering"
            assert built.corpus_sha256 == PROSE.manifest_sha256


async def test_the_window_can_be_filled_to_its_last_token() -> None:
    async with proving(replace(HONEST, window_tokens=2_048)) as (engine, prover, corpus):
        built = await prover.item(ITEM, corpus, 2_047)
        assert await used(engine, built.prompt) == 2_047


# -- after the call ---------------------------------------------------------------------------------------------------


async def test_a_length_is_not_proven_when_the_server_counts_wrongly() -> None:
    async with proving(HONEST.lying(WrongCount(offset=3))) as (engine, prover, corpus):
        built = await prover.item(ITEM, corpus, 1_000)
        check = length_check(built.count, await used(engine, built.prompt))
    assert not check.proven
    assert "1,000 tokens were counted" in check.why
    assert "usage says 997" in check.why


async def test_a_length_is_not_proven_when_the_server_cuts_the_prompt() -> None:
    async with proving(HONEST.lying(TruncateInput(keep_tokens=512))) as (engine, prover, corpus):
        built = await prover.item(ITEM, corpus, 1_000)
        check = length_check(built.count, await used(engine, built.prompt))
    assert (check.proven, "usage says 512" in check.why) == (False, True)


def test_a_length_is_not_proven_when_there_is_no_usage() -> None:
    count = TokenCount(total=5, content=5, template=0, special=None, source=CountSource.SERVER, how="counted here")
    assert length_check(count, 5).proven
    assert length_check(count, None).why == "the server reports no usage.prompt_tokens"


# -- sharing ----------------------------------------------------------------------------------------------------------


async def test_the_haystack_is_the_same_when_questions_share_it(tokenizer: Tokenizer) -> None:
    prover, corpus = await on(CountingServer(tokenizer))
    items = [
        replace(item_of(0.1 + 0.2 * index, index=index), question=f"{'Please tell me. ' * index}What is it?")
        for index in range(4)
    ]
    built = [await prover.item(item, corpus, 3_000, nonce=NONCE, cluster=items) for item in items]
    texts = [text_of(one.prompt) for one in built]
    common = next(i for i, letters in enumerate(zip(*texts, strict=False)) if len(set(letters)) > 1)
    assert all(abs(one.count.total - 3_000) <= 1 for one in built)
    # what differs: a few units of about 100 characters at the end, and the question
    assert all(len(text) - common < 800 for text in texts)
    assert all(texts[0][:common].count(item.needles[0].text) == 1 for item in items)
    assert len({one.cluster for one in built}) == 1
    alone = await prover.item(items[0], corpus, 3_000, nonce=NONCE)
    assert alone.cluster != built[0].cluster
    assert items[1].needles[0].text not in text_of(alone.prompt)


async def test_one_haystack_serves_twins_when_they_are_a_pair() -> None:
    prover, corpus = await on(CountingServer(byte_level()))
    present = replace(ITEM, pair="0/absent/0")
    absent = replace(item_of(0.2, index=1), pair="0/absent/0")
    one, other = [await prover.item(item, corpus, 3_000) for item in (present, absent)]
    assert one.haystack is not None
    assert other.haystack is not None
    assert len(set(one.haystack.units.tolist()) & set(other.haystack.units.tolist())) > 0.9 * len(one.haystack.units)


async def test_nothing_is_shared_when_nonces_differ() -> None:
    prover, corpus = await on(CountingServer(byte_level()))
    one = await prover.item(ITEM, corpus, 1_000, nonce=NONCE)
    other = await prover.item(ITEM, corpus, 1_000, nonce="cow pig owl fox bee ant")
    assert text_of(one.prompt)[0] != text_of(other.prompt)[0]


# -- controls ---------------------------------------------------------------------------------------------------------


async def test_controls_hold_the_question_alone_or_with_its_evidence() -> None:
    prover, _ = await on(CountingServer(byte_level()))
    closed = await prover.closed_book(ITEM, nonce=NONCE)
    assert text_of(closed.prompt) == f"{NONCE}\n\n{ITEM.question}"
    evidence = await prover.evidence_only(ITEM)
    assert text_of(evidence.prompt) == f"{ITEM.needles[0].text}\n{ITEM.needles[1].text}\n\n{ITEM.question}"
    assert (closed.target_tokens, closed.haystack, closed.depths) == (None, None, ())
    assert evidence.count.total > closed.count.total


# -- refusals ---------------------------------------------------------------------------------------------------------


async def test_a_target_is_refused_when_it_does_not_hold_the_evidence() -> None:
    prover, corpus = await on(CountingServer(byte_level()))
    least = (await prover.evidence_only(ITEM)).count.total
    assert abs((await prover.item(ITEM, corpus, least)).count.total - least) <= 1
    with pytest.raises(LengthUnproven, match="do not hold template, needles and question") as refused:
        await prover.item(ITEM, corpus, least - 2)
    assert refused.value.closest_tokens == least
    with pytest.raises(LengthUnproven, match="no whole units of corpus generated make up the 5 tokens"):
        await prover.item(ITEM, corpus, least + 5)


async def test_a_corpus_is_refused_when_it_is_shorter_than_the_target() -> None:
    prover, corpus = await on(CountingServer(byte_level()))
    with pytest.raises(CorpusError, match="too short for a prompt of"):
        await prover.item(ITEM, corpus, 1_000_000)


class Swallowing(CountingServer):
    """Its template leaves digits out, as one might that strips what it takes for a phone number."""

    def shown(self, content: str) -> str:
        return content.replace("711097", "[number]")


async def test_a_prompt_is_refused_when_the_template_changes_a_needle() -> None:
    prover, corpus = await on(Swallowing(byte_level()))
    with pytest.raises(LengthUnproven, match="does not stand verbatim and in its order in what the server makes"):
        await prover.item(ITEM, corpus, 1_000)


class Spacing(CountingServer):
    """Tidies white space up, as detokenizing may."""

    def shown(self, content: str) -> str:
        return content.replace(" .", ".").replace("\n", " ")


async def test_a_prompt_is_proven_when_the_rendering_only_tidies_white_space() -> None:
    prover, corpus = await on(Spacing(byte_level()))
    assert (await prover.item(ITEM, corpus, 1_000)).checked_in == "the server's rendering"


class Unable(CountingServer):
    """Refuses to count long prompts and to render any."""

    async def count(self, prompt: Prompt) -> TokenCount:
        if len(text_of(prompt)) > 2_000:
            raise EngineProtocolError("413 too large to count", url=self.url)
        return await super().count(prompt)

    async def render(self, messages: object) -> str:  # type: ignore[override]
        if self.counted:
            raise EngineProtocolError("no such route", url=self.url)
        return await super().render(messages)  # type: ignore[arg-type]


async def test_a_length_is_unproven_when_the_server_refuses_to_count() -> None:
    prover, corpus = await on(Unable(byte_level()), route=Route.COMPLETIONS)
    with pytest.raises(LengthUnproven, match="the server would not count: 413 too large to count"):
        await prover.item(ITEM, corpus, 3_000)


async def test_a_server_that_is_gone_stays_that() -> None:
    engine = LyingEngine()
    with engine as url:
        client = await connect(url)
        corpus = await tokenize_corpus(client, PROSE, route=Route.CHAT)
    try:
        with pytest.raises(EngineUnreachable):
            await Prover(client, route=Route.CHAT).item(ITEM, corpus, 1_000)
    finally:
        await client.aclose()


# -- servers that do not count ----------------------------------------------------------------------------------------


async def test_a_length_is_unproven_when_nobody_counts() -> None:
    async with proving(replace(HONEST, dialect=OPENAI)) as (_, prover, corpus):
        with pytest.raises(LengthUnproven, match="counts only what it answers"):
            await prover.item(ITEM, corpus, 1_000)


async def test_the_length_is_learned_behind_another_nonce_when_that_is_allowed() -> None:
    async with proving(replace(HONEST, dialect=OPENAI), sends_to_count=True) as (engine, prover, corpus):
        built = await prover.item(ITEM, corpus, 1_000, nonce=NONCE)
        assert built.count.source is CountSource.USAGE
        timeline = await engine.send(GenerationRequest(prompt=built.prompt, max_tokens=1))
        assert timeline.usage is not None
        assert length_check(built.count, timeline.usage.prompt_tokens).proven
        assert abs(built.count.total - 1_000) <= 1
        # template and first word are shared with what was sent to be counted, and no more
        assert (timeline.usage.cached_tokens or 0) < 40


# -- the parts --------------------------------------------------------------------------------------------------------


def test_a_missing_part_is_found_when_order_or_words_are_wrong() -> None:
    assert first_missing("a b c", ["a", "b", "c"]) is None
    assert first_missing("a b c", ["b", "a"]) == 1
    assert first_missing("a b c", ["a", "a"]) == 1
    assert first_missing("a b c", ["x"]) == 0


async def test_needles_with_the_same_text_stand_once_when_items_share_them() -> None:
    prover, corpus = await on(CountingServer(byte_level()))
    first, second = ITEM, replace(ITEM, index=9, seed="0/literal/9", question="And the second?")
    built = await prover.item(second, corpus, 2_000, cluster=(first, second))
    assert all(text_of(built.prompt).count(needle.text) == 1 for needle in ITEM.needles)


async def test_code_stays_whole_when_needles_are_functions() -> None:
    names = [f"f_{a}{b}{c}" for a in "abcdefgh" for b in "ijklmnop" for c in "qrstuvwx"]
    source = "\n\n".join(
        f"def {name}():\n    x = {number % 90}\n\n    return x{' + 1' * (number % 5)}"
        for number, name in enumerate(names)
    )
    texts = TextCorpus(name="code", kind="code", licence="ours", documents=[Document(name="m.py", text=source)])
    server = CountingServer(byte_level())
    corpus = await tokenize_corpus(server.engine(), texts, route=Route.CHAT)
    needle = Needle(text="def hidden_harbor():\n\n    limit = 7\n\n    return limit", depth=0.4)
    item = replace(ITEM, needles=(needle,), kind="code", question="What is limit?")
    built = await Prover(server.engine(), route=Route.CHAT).item(item, corpus, 2_000)
    compile(text_of(built.prompt).removesuffix("What is limit?"), "prompt", "exec")
    assert built.depths[0] == pytest.approx(0.4, abs=0.03)
