"""Counting against a live engine: the lying engine, with its own tokenizer in files beside it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, normalizers, pre_tokenizers
from tokenizers.models import BPE, WordLevel

from longproof.domain.deployment import EngineKind
from longproof.domain.request import Route
from longproof.engines.link import Link
from longproof.errors import EngineUnreachable
from longproof.gateway.ask import Ask
from longproof.gateway.chat_template import ChatTemplate
from longproof.gateway.count_check import check_counting, learn_rate
from longproof.gateway.count_shape import CountedHere, Estimated, Shape, Trust
from longproof.gateway.counting import SHORT_BYTES, FleetCounting, ModelCounting
from longproof.gateway.engine_count import EngineCount
from longproof.gateway.engine_counts import EngineCounts
from longproof.gateway.local_count import LocalCount
from longproof.gateway.long_text import LONGEST_PIECE_CHARS
from longproof.gateway.model_tokenizer import load_model_tokenizer
from longproof.gateway.ports import Counted
from longproof.gateway.prompt_text import TextSize, text_names
from longproof.gateway.prompt_tokenizer import ModelTokenizer
from longproof.gateway.text_memory import TextMemory
from longproof.policy.hashing import block_names
from longproof.testing.behaviour import Behaviour
from longproof.testing.dialects import LLAMACPP, OPENAI, VLLM
from longproof.testing.fake_tokenizer import CHAT_TEMPLATE, render_chat, tokenizer
from longproof.testing.lies import WrongCount
from longproof.testing.loop_turns import loop_turns
from longproof.testing.lying_engine import lying_engine
from longproof.testing.tokenizer_files import write_tokenizer_files

MODEL = "fake-135m"
KINDS = {EngineKind.VLLM: VLLM, EngineKind.LLAMACPP: LLAMACPP, EngineKind.OPENAI: OPENAI}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer_files(tmp_path_factory.mktemp("model"))


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as found:
        yield found


def ask(fields: dict[str, Any], *, salt: str = "") -> Ask:
    route = Route.CHAT if "messages" in fields else Route.COMPLETIONS
    body = orjson.dumps({"model": MODEL, **fields})
    return Ask(id="1", route=route, model=MODEL, body=body, fields=orjson.loads(body), salt=salt)


def chat(*texts: str, **more: Any) -> Ask:
    roles = ("user", "assistant")
    return ask({"messages": [{"role": roles[i % 2], "content": t} for i, t in enumerate(texts)], **more})


def local(files: Path) -> LocalCount:
    return LocalCount(load_model_tokenizer(files), TextMemory())


class Bench:
    """A counting with a lying engine behind it."""

    def __init__(self, files: Path, behaviour: Behaviour, kind: EngineKind = EngineKind.VLLM) -> None:
        self._engine = lying_engine(behaviour.but(dialect=KINDS[kind], model=MODEL))
        self._kind, self._files = kind, files
        self.alarms: list[str] = []

    async def __aenter__(self) -> Bench:
        self.link = Link(await self._engine.__aenter__())
        self.counting = ModelCounting(
            model=MODEL,
            block_tokens=16,
            local=local(self._files),
            engine=EngineCount(self.link, self._kind, MODEL),
            alarm=self.alarms.append,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.link.aclose()
        await self._engine.__aexit__()


@pytest.fixture
async def bench(files: Path) -> AsyncIterator[Bench]:
    async with Bench(files, Behaviour()) as found:
        yield found


async def test_shapes_are_trusted_one_by_one_when_they_agree(bench: Bench, pool: ThreadPoolExecutor) -> None:
    check = await check_counting(bench.counting, pool)
    # letters outside ASCII are bytes to this engine and unknown to the files: text and chat cannot agree. Parts are put
    # together without a line feed by this engine, with one by vLLM. Only the sample with tools comes out the same
    assert check.trusted == (Shape.TOOLS,)
    assert check.reasons[Shape.TEXT] == "we counted 38 tokens, the engine 50"
    assert check.reasons[Shape.PARTS] == "we counted 82 tokens, the engine 81"


async def test_counts_and_names_are_the_engines_own_when_shapes_are_trusted(
    bench: Bench, pool: ThreadPoolExecutor
) -> None:
    for trust in bench.counting.trust.values():
        trust.compare(1, 1)
    found = await bench.counting.count(chat("How deep is the lake?" * 40, "Very.", "And cold?"), pool)
    text = render_chat([("user", "How deep is the lake?" * 40), ("assistant", "Very."), ("user", "And cold?")])
    ids = tokenizer().encode(text)
    assert (found.input_tokens, found.exact) == (len(ids), True)
    assert found.blocks == block_names(ids, block_tokens=16)
    assert (bench.counting.here, bench.counting.by_engine) == (1, 0)


@pytest.mark.parametrize("kind", [EngineKind.VLLM, EngineKind.LLAMACPP])
async def test_the_engine_counts_when_our_tokenizer_is_not_trusted(
    kind: EngineKind, files: Path, pool: ThreadPoolExecutor
) -> None:
    async with Bench(files, Behaviour(), kind) as bench:
        found = await bench.counting.count(chat("Größe 東京"), pool)
        ids = tokenizer().encode(render_chat([("user", "Größe 東京")]))
        assert (found.input_tokens, found.exact) == (len(ids), True)
        assert found.by_text == 8  # names of the text, were there any: this is too short for a block of 128 tokens
        text = await bench.counting.count(ask({"prompt": "a lake"}), pool)
        assert text.input_tokens == len(tokenizer().encode("a lake"))
        assert (bench.counting.here, bench.counting.by_engine) == (0, 2)


async def test_the_doubt_is_said_when_our_tokenizer_is_not_the_engines(bench: Bench, pool: ThreadPoolExecutor) -> None:
    await check_counting(bench.counting, pool)
    assert bench.counting.doubt.endswith(
        " is not the engine's tokenizer: we counted 38 tokens, the engine 50; lengths are estimated"
    )
    for shape in (Shape.TEXT, Shape.CHAT):
        bench.counting.trust[shape] = Trust()
        bench.counting.trust[shape].compare(1, 1)
    assert bench.counting.doubt == ""
    assert ModelCounting(model=MODEL, block_tokens=16).doubt == ""


async def test_trust_ends_and_is_told_when_ids_are_others_though_as_many(
    tmp_path: Path, pool: ThreadPoolExecutor
) -> None:
    shifted = write_tokenizer_files(tmp_path, off_by=1)
    async with Bench(shifted, Behaviour()) as bench:
        check = await check_counting(bench.counting, pool)
        assert check.trusted == ()
        assert "but others" in check.reasons[Shape.TOOLS]


async def test_alarm_and_fall_back_when_the_engines_usage_disagrees(bench: Bench, pool: ThreadPoolExecutor) -> None:
    for trust in bench.counting.trust.values():
        trust.compare(1, 1)
    found = await bench.counting.count(chat("How deep?"), pool)
    assert isinstance(found, CountedHere)
    bench.counting.told(found, found.input_tokens)
    assert bench.alarms == []
    bench.counting.told(found, found.input_tokens + 3)
    assert len(bench.alarms) == 1
    assert "'chat'" in bench.alarms[0]
    await bench.counting.count(chat("How deep?"), pool)
    assert bench.counting.by_engine == 1
    # another shape goes on here
    parts = ask({"messages": [{"role": "user", "content": [{"type": "text", "text": "How deep?"}]}]})
    await bench.counting.count(parts, pool)
    assert bench.counting.here == 2


async def test_usage_decides_at_start_when_the_engine_has_no_route_that_counts(
    files: Path, pool: ThreadPoolExecutor
) -> None:
    async with Bench(files, Behaviour(), EngineKind.OPENAI) as bench:
        check = await check_counting(bench.counting, pool, link=bench.link)
        assert check.trusted == (Shape.TOOLS,)


async def test_the_bound_is_given_when_nobody_counts(pool: ThreadPoolExecutor) -> None:
    counting = ModelCounting(model=MODEL, block_tokens=16)
    asked = chat("a" * 1000)
    found = await counting.count(asked, pool)
    assert not found.exact
    assert found.input_tokens >= 1000
    # 1 + 4 + 1 bytes of role marks and 1,000 of text are one whole block of 128 tokens of 4.5 bytes
    assert (len(found.blocks), found.by_text) == (1, 8)


async def test_a_dead_engine_leaves_the_bound_when_it_was_to_count(files: Path, pool: ThreadPoolExecutor) -> None:
    async with Bench(files, Behaviour()) as bench:
        await bench._engine.__aexit__()
        found = await bench.counting.count(chat("How deep?"), pool)
        assert not found.exact
        assert bench.counting.by_bound == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": "How deep is the lake? " * 30},
        {"prompt": ["one", "two and three"]},
        {"messages": [{"role": "user", "content": "Größe 東京 \n\t" * 20}]},
        {"messages": [{"role": "user", "content": "x"}] * 30},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "a\u0001b"}]}]},
    ],
)
def test_the_bound_is_never_below_the_count(fields: dict[str, Any], files: Path) -> None:
    counting = ModelCounting(model=MODEL, block_tokens=16, local=local(files))
    asked = ask(fields)
    assert counting.local is not None
    assert counting.bound(asked).input_tokens >= sum(map(len, counting.local.ids(asked.route, asked.fields)))


def _bytes_only(*, normalized: bool) -> LocalCount:
    """The worst vocabulary there can be: every byte of the (normalised) text is a token."""
    alphabet = {letter: number for number, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    made: Any = Tokenizer(BPE(vocab=alphabet, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if normalized:
        made.normalizer = normalizers.NFC()
    template = ChatTemplate(CHAT_TEMPLATE + "{% if tools %}{{ tools | tojson(indent=4) }}{% endif %}", {})
    model = ModelTokenizer(tokenizer=made, template=template, name="bytes", expansion=3 if normalized else 1)
    return LocalCount(model, TextMemory())


WORST = {normalized: _bytes_only(normalized=normalized) for normalized in (False, True)}
SPECIAL = ["\U0001d160" * 30, '"\\\n' * 20, "\u0958" * 30]
"""Texts that grow when they are normalised, or that JSON writes longer."""
TOOL = {
    "type": "function",
    "function": {"name": "f", "description": "\u0958" * 9, "parameters": {"a": [[[[1] * 50] * 3]]}},
}


@settings(max_examples=120, deadline=None)
@given(
    texts=st.lists(st.text(max_size=40) | st.sampled_from(SPECIAL), min_size=1),
    chats=st.booleans(),
    normalized=st.booleans(),
    tools=st.booleans(),
)
def test_the_bound_holds_when_every_byte_is_a_token(
    texts: list[str], chats: bool, normalized: bool, tools: bool
) -> None:
    fields: dict[str, Any] = (
        {"messages": [{"role": "user", "content": t} for t in texts]} if chats else {"prompt": texts}
    )
    if chats and tools:
        fields["tools"] = [TOOL]
    counting = ModelCounting(model=MODEL, block_tokens=16, local=WORST[normalized])
    asked = ask(fields)
    assert counting.local is not None
    assert counting.bound(asked).input_tokens >= sum(map(len, counting.local.ids(asked.route, asked.fields)))


def test_ids_are_exact_at_once_when_they_are_sent_as_ids() -> None:
    counting = ModelCounting(model=MODEL, block_tokens=4)
    ids = list(range(10))
    assert counting.bound(ask({"prompt": ids})) == Counted(
        input_tokens=10, exact=True, blocks=block_names(ids, block_tokens=4)
    )
    assert counting.bound(ask({"prompt": ids}, salt="t")).blocks == block_names(ids, block_tokens=4, salt="t")
    assert not counting.bound(ask({"prompt": [1, -5, "x"]})).exact


async def test_blocks_differ_by_salt_when_texts_are_the_same(files: Path, pool: ThreadPoolExecutor) -> None:
    counting = ModelCounting(model=MODEL, block_tokens=16, local=local(files))
    for trust in counting.trust.values():
        trust.compare(1, 1)
    fields = {"prompt": "How deep is the lake? " * 20}
    one, two = [await counting.count(ask(fields, salt=salt), pool) for salt in ("a", "b")]
    assert one.input_tokens == two.input_tokens
    assert one.blocks
    assert not set(one.blocks) & set(two.blocks)


async def test_the_loop_goes_on_when_a_long_prompt_is_counted(files: Path) -> None:
    counting = ModelCounting(model=MODEL, block_tokens=16, local=local(files))
    counting.trust[Shape.TEXT].compare(1, 1)
    fleet = FleetCounting({MODEL: counting}, workers=1)
    async with loop_turns() as turns:
        found = await fleet.count(ask({"prompt": "the lake is deep and cold " * 20_000}))
    fleet.close()
    assert found.exact
    assert turns.count > 10  # on the loop itself it would be two or three


async def test_an_unknown_model_is_bounded_when_it_is_asked_for() -> None:
    fleet = FleetCounting({})
    try:
        assert not (await fleet.count(chat("hello"))).exact
    finally:
        fleet.close()


def test_trust_comes_back_only_after_agreements_in_a_row() -> None:
    trust = Trust(regain_after=3)
    assert not trust.compare(5, 5)
    assert trust.trusted
    assert trust.compare(5, 6)
    assert "we counted 5 tokens, the engine 6" in trust.reason
    for ours in (7, 7, 8, 7, 7):
        trust.compare(ours, 7)
    assert not trust.trusted
    trust.compare(7, 7)
    assert trust.trusted


async def test_our_count_is_compared_now_and_then_when_the_engine_counts(
    bench: Bench, pool: ThreadPoolExecutor
) -> None:
    # never compared: the first agreement is enough, and the second count is ours
    await bench.counting.count(chat("How deep?"), pool)
    await bench.counting.count(chat("How cold?"), pool)
    assert (bench.counting.by_engine, bench.counting.here) == (1, 1)


async def test_a_lying_count_is_found_when_the_engine_counts_ids_that_are_too_many(
    files: Path, pool: ThreadPoolExecutor
) -> None:
    async with Bench(files, Behaviour(lies=(WrongCount(offset=2),)), EngineKind.LLAMACPP) as bench:
        check = await check_counting(bench.counting, pool)
        assert check.trusted == ()


async def test_an_engine_counts_only_when_the_exact_length_is_wanted_and_a_rate_is_known(
    pool: ThreadPoolExecutor,
) -> None:
    async with lying_engine(Behaviour(dialect=VLLM, model=MODEL)) as url:
        link = Link(url)
        engine = EngineCount(link, EngineKind.VLLM, MODEL)
        counting = ModelCounting(model=MODEL, block_tokens=16, engine=engine)
        assert await learn_rate(counting)
        asked = engine.asked
        prompt = "the lake is deep and cold " * 60
        names = await counting.count(ask({"prompt": prompt}), pool, exact=False)
        assert engine.asked == asked
        exactly = await counting.count(ask({"prompt": prompt}), pool)
        assert engine.asked == asked + 1
        await link.aclose()
    tokens = len(tokenizer().encode(prompt))
    assert (exactly.input_tokens, exactly.exact) == (tokens, True)
    assert not names.exact
    # the samples are not alike at all to this vocabulary, so the margin is wide; the bound would be its 1,560 bytes
    assert tokens <= names.input_tokens < 1_400
    # whoever counts, the same text has the same names
    named = text_names(Route.COMPLETIONS, {"prompt": prompt}, block_bytes=counting.block_bytes, salt="")
    assert exactly.blocks == names.blocks == named != ()


async def test_the_next_engine_counts_and_stays_first_when_one_is_gone() -> None:
    engines = [lying_engine(Behaviour(dialect=VLLM, model=MODEL)) for _ in range(2)]
    links = [Link(await engine.__aenter__()) for engine in engines]
    counts = EngineCounts(EngineCount(link, EngineKind.VLLM, MODEL) for link in links)
    first, second = counts._engines
    await engines[0].__aexit__()
    try:
        (ids,) = await counts.ids(Route.COMPLETIONS, {"prompt": "a lake"})
        assert ids.tolist() == tokenizer().encode("a lake")
        await counts.ids(Route.COMPLETIONS, {"prompt": "a river"})
        assert (first.asked, second.asked) == (1, 2)
        # the same prompt with another allowance is the same prompt
        await counts.ids(Route.COMPLETIONS, {"prompt": "a river", "max_tokens": 7})
        assert second.asked == 2
        await engines[1].__aexit__()
        with pytest.raises(EngineUnreachable):
            await counts.ids(Route.COMPLETIONS, {"prompt": "a mountain"})
        assert (await counts.ids(Route.COMPLETIONS, {"prompt": "a lake"}))[0] == ids
    finally:
        for link in links:
            await link.aclose()


async def test_one_engine_renders_a_prompt_and_never_all_of_them() -> None:
    engines = [lying_engine(Behaviour(dialect=VLLM, model=MODEL)) for _ in range(3)]
    links = [Link(await engine.__aenter__()) for engine in engines]
    counters = [EngineCount(link, EngineKind.VLLM, MODEL) for link in links]
    counts = EngineCounts(counters)
    for text in ("a lake", "a river", "a mountain"):
        await counts.ids(Route.COMPLETIONS, {"prompt": text})
    assert sorted(counter.asked for counter in counters) == [0, 0, 3]
    for link, engine in zip(links, engines, strict=True):
        await link.aclose()
        await engine.__aexit__()


async def test_nothing_is_kept_when_it_would_take_a_quarter_of_the_room() -> None:
    async with lying_engine(Behaviour(dialect=VLLM, model=MODEL)) as url:
        link = Link(url)
        engine = EngineCount(link, EngineKind.VLLM, MODEL)
        counts = EngineCounts([engine], kept_bytes=2_000)
        for _ in range(2):
            await counts.ids(Route.COMPLETIONS, {"prompt": "lake " * 100})  # 100 tokens of 4 bytes, and 300 besides
        assert engine.asked == 2
        for _ in range(2):
            await counts.ids(Route.COMPLETIONS, {"prompt": "lake " * 20})
        assert engine.asked == 3
        for number in range(8):
            await counts.ids(Route.COMPLETIONS, {"prompt": "lake " * 20 + str(number)})
        assert counts._kept_bytes <= 2_000
        await link.aclose()


async def test_names_are_one_chain_when_they_are_made_in_parts(files: Path, pool: ThreadPoolExecutor) -> None:
    counting = ModelCounting(model=MODEL, block_tokens=1, local=local(files))
    counting.trust[Shape.TEXT].compare(1, 1)
    found = await counting.count(ask({"prompt": "the lake is deep " * 1_500}), pool)
    assert found.input_tokens > 2 * 2_048  # more than two parts
    assert found.blocks == block_names(tokenizer().encode("the lake is deep " * 1_500), block_tokens=1)


async def test_a_probe_has_the_names_of_its_tokens_when_prompts_are_named_by_text(pool: ThreadPoolExecutor) -> None:
    async with lying_engine(Behaviour(dialect=VLLM, model=MODEL)) as url:
        link = Link(url)
        counting = ModelCounting(model=MODEL, block_tokens=4, engine=EngineCount(link, EngineKind.VLLM, MODEL))
        found = await counting.by_tokens(ask({"prompt": "How deep is the lake?"}), pool)
        await link.aclose()
    ids = tokenizer().encode("How deep is the lake?")
    assert found == Counted(input_tokens=len(ids), exact=True, blocks=block_names(ids, block_tokens=4))
    nobody = await ModelCounting(model=MODEL, block_tokens=4).by_tokens(ask({"prompt": "How deep?"}), pool)
    assert not nobody.exact


async def test_an_estimate_stands_at_once_when_its_rate_is_known_and_usage_corrects_it() -> None:
    counting = ModelCounting(model=MODEL, block_tokens=16)
    text = "the lake is deep and cold " * 200  # 5,200 bytes
    assert not counting.bound(chat(text)).by_text  # nothing is known yet: the bound
    for _ in range(3):
        counting.rate.learn(TextSize(size_bytes=4_000, messages=0, wide=0.0), 1_000)
    first = counting.bound(chat(text))
    assert isinstance(first, Estimated)
    # 4 bytes a token and 4 tokens around each text, 2 % and a third of 30 % of margin, 32 tokens of template and 8 of
    # a message: 5,200 / (4,000 / 996) · 1.12 + 40
    assert first.input_tokens == 1_491
    assert (first.exact, first.by_text) == (False, 8)
    assert first.blocks
    for _ in range(60):  # this text's tokens are 5 bytes long, says the engine
        counting.told(first, 1_040 + 40)
    corrected = counting.bound(chat(text)).input_tokens
    assert 1_080 <= corrected < 1_300 < first.input_tokens


async def test_a_long_text_is_named_in_a_thread_when_its_length_is_estimated(pool: ThreadPoolExecutor) -> None:
    counting = ModelCounting(model=MODEL, block_tokens=16)
    for _ in range(3):
        counting.rate.learn(TextSize(size_bytes=4_000, messages=0, wide=0.0), 1_000)
    long = chat("lake " * SHORT_BYTES)
    at_once = counting.bound(long)
    assert (at_once.blocks, bool(at_once.by_text)) == ((), True)
    named = await counting.count(long, pool, exact=False)
    assert named.input_tokens == at_once.input_tokens
    assert len(named.blocks) == (5 * SHORT_BYTES + 6) // counting.block_bytes


async def test_our_tokenizer_is_compared_with_the_engine_when_lengths_are_estimated(
    bench: Bench, pool: ThreadPoolExecutor
) -> None:
    assert await learn_rate(bench.counting)
    for trust in bench.counting.trust.values():
        trust.distrust("a test")
    asked = chat("How deep is the lake? " * 20)
    for _ in range(40):
        bound = bench.counting.bound(asked)
        if isinstance(bound, Estimated) and not bound.blocks:  # one in sixteen goes to be counted
            await bench.counting.count(asked, pool, exact=False)
    assert bench.counting.trust[Shape.CHAT].trusted
    assert not bench.counting.bound(asked).by_text


async def test_the_engine_is_not_asked_when_a_text_never_settles(files: Path, pool: ThreadPoolExecutor) -> None:
    async with Bench(files, Behaviour()) as bench:
        bench.counting.trust[Shape.TEXT].compare(1, 1)
        made: Any = Tokenizer(WordLevel({"a": 0}, unk_token="a"))  # one token for a word, however long
        bench.counting.local = LocalCount(ModelTokenizer(tokenizer=made, template=None, name="words"), TextMemory())
        found = await bench.counting.count(ask({"prompt": "x" * (LONGEST_PIECE_CHARS + 1)}), pool)
        assert not found.exact
        assert found.input_tokens > LONGEST_PIECE_CHARS
        assert (bench.counting.by_bound, bench.counting.by_engine) == (1, 0)


def test_a_picture_is_not_counted_by_its_bytes_when_it_is_in_the_body() -> None:
    counting = ModelCounting(model=MODEL, block_tokens=16)
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 1_000_000}}
    sound = {"type": "input_audio", "input_audio": {"data": "A" * 1_000_000, "format": "wav"}}
    text = {"type": "text", "text": "What is this? _url"}
    bound = counting.bound(ask({"messages": [{"role": "user", "content": [text, picture, sound]}]})).input_tokens
    # two of 16,384, and 512 + 16 for a template and a message; the rest are the few hundred bytes around them
    assert 2 * 16_384 + 512 + 16 < bound < 2 * 16_384 + 512 + 16 + 400


def test_there_is_no_bound_when_tools_are_without_end() -> None:
    counting = ModelCounting(model=MODEL, block_tokens=16)
    fields = {"messages": [{"role": "user", "content": "a"}], "tools": [{"a": [1] * 30_000}]}
    assert counting.bound(ask(fields)).input_tokens > 1 << 40


async def test_a_short_prompt_is_counted_at_once_when_long_ones_wait(files: Path) -> None:
    counting = ModelCounting(model=MODEL, block_tokens=16, local=local(files))
    counting.trust[Shape.TEXT].compare(1, 1)
    fleet = FleetCounting({MODEL: counting}, workers=1)
    busy = threading.Event()
    fleet._long.submit(busy.wait)  # a long prompt that takes its time
    long = asyncio.create_task(fleet.count(ask({"prompt": "lake " * (SHORT_BYTES // 4)})))
    short = await fleet.count(ask({"prompt": "lake"}))
    assert short.exact
    assert not long.done()
    busy.set()
    assert (await long).exact
    fleet.close()
