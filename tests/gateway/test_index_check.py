"""The index's self-test, against engines that publish rightly and wrongly. Waits are short; the reasons matter."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from longproof.clock import SystemClock
from longproof.domain.deployment import EngineKind
from longproof.domain.fleet import ReplicaState
from longproof.domain.kv_event import KvEvent, KvStored
from longproof.engines.link import Link
from longproof.engines.registry import connect
from longproof.gateway.ask import Ask
from longproof.gateway.counting import FleetCounting, ModelCounting
from longproof.gateway.engine_count import EngineCount
from longproof.gateway.index_check import CheckRules, IndexCheck, Probed
from longproof.gateway.index_health import IndexState, Mark, diagnose, over_credit, running_trouble, wrong_size
from longproof.gateway.kv_sequence import Sequence
from longproof.gateway.kv_stream import FeedState, KvSource
from longproof.gateway.kv_translate import Translator
from longproof.gateway.local_count import LocalCount
from longproof.gateway.model_tokenizer import load_model_tokenizer
from longproof.gateway.ports import Counted
from longproof.gateway.text_memory import TextMemory
from longproof.gateway.watch import Watch, Watched, WatchRules
from longproof.testing.behaviour import Behaviour
from longproof.testing.dialects import VLLM
from longproof.testing.kv_publisher import KvEvents
from longproof.testing.lie import Lie
from longproof.testing.lies import SlowPrefill
from longproof.testing.lying_engine import LyingEngine, lying_engine
from longproof.testing.tokenizer_files import write_tokenizer_files

MODEL = "fake-135m"


class Controller:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.blocks: set[int] = set()
        self.states: list[ReplicaState] = []
        self.samples = 0

    def on_sample(self, replica: str, sample: object, now_ns: int) -> list[object]:
        self.samples += 1
        return []

    def on_kv_event(self, replica: str, event: KvEvent, now_ns: int) -> None:
        if isinstance(event, KvStored):
            self.blocks |= set(event.blocks)

    def on_replica(self, replica: str, state: ReplicaState, now_ns: int) -> list[object]:
        self.states.append(state)
        return []


class Fleet:
    """One engine that publishes, watched."""

    def __init__(self, engine: LyingEngine, counting: FleetCounting, watch: Watch, controller: Controller) -> None:
        self.engine, self.counting, self.watch, self.controller = engine, counting, watch, controller
        self.trusted: list[bool] = []

    def health(self) -> tuple[IndexState, str]:
        (found,) = self.watch.index_health()
        return found.state, found.reason

    async def settled(self) -> tuple[IndexState, str]:
        await until(lambda: self.health()[0] is not IndexState.CHECKING)
        return self.health()

    async def becomes(self, state: IndexState, words: str = "") -> None:
        """Waits for a state with such a reason. A probe is repeated: on a busy machine the first may come before the
        connection, and have another reason."""
        try:
            await until(lambda: self.health()[0] is state and words in self.health()[1])
        except TimeoutError:
            raise AssertionError(self.health()) from None


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - what is waited for happens in threads and engines
            await asyncio.sleep(0.01)


@asynccontextmanager
async def fleet(
    events: KvEvents,
    *,
    topic: str = "",
    endpoint: str | None = None,
    block_tokens: int = 16,
    tokenizer: Path | None = None,
    wait_s: float = 1.0,
    doubt: str = "",
    lies: tuple[Lie, ...] = (),
    credit: Callable[[str], tuple[int, int] | None] = lambda _: None,
) -> AsyncIterator[Fleet]:
    lying = lying_engine(Behaviour(dialect=VLLM, model=MODEL, kv_events=events, lies=lies))
    async with lying as url:
        link = Link(url)
        engine = await connect(url)
        local = None if tokenizer is None else LocalCount(load_model_tokenizer(tokenizer), TextMemory())
        count = ModelCounting(
            model=MODEL, block_tokens=block_tokens, local=local, engine=EngineCount(link, EngineKind.VLLM, MODEL)
        )
        if local is not None:
            for trust in count.trust.values():
                trust.compare(1, 1)
        counting = FleetCounting({MODEL: count}, workers=1)
        controller = Controller()
        trusted: list[bool] = []
        source = KvSource(
            replica="a",
            endpoint=endpoint or lying.kv_publisher.endpoint,
            topic=topic,
            block_tokens=block_tokens,
            engine_block_tokens=block_tokens,
        )

        def probed(states: object) -> Probed:
            return Probed(replica="a", model=MODEL, link=link, block_tokens=block_tokens, states=states)  # type: ignore[arg-type]

        watched = Watched(name="a", engine=engine, connect=lambda: connect(url), sources=(source,), probed=probed)
        rules = WatchRules(
            every_s=0.05,
            check=CheckRules(count=counting.by_tokens, credit=credit, wait_s=wait_s, retry_s=0.2),
            trust=lambda _, good: trusted.append(good),
            doubt=lambda _: doubt,
        )
        watch = Watch([watched], controller, lambda _: None, SystemClock(), rules)  # type: ignore[arg-type]
        found = Fleet(lying, counting, watch, controller)
        found.trusted = trusted
        watch.start()
        try:
            yield found
        finally:
            await watch.close()
            counting.close()
            await link.aclose()
            await engine.aclose()


@pytest.mark.parametrize("wire", ["map", "list"])
async def test_the_index_is_ok_when_the_probes_blocks_come(wire: str) -> None:
    async with fleet(KvEvents(wire=wire), wait_s=5) as found:  # type: ignore[arg-type]
        await found.becomes(IndexState.OK)
        assert found.controller.blocks
        assert found.controller.samples > 0


async def test_the_index_is_degraded_when_the_check_itself_fails() -> None:
    async def count(_: Ask) -> Counted:
        raise RuntimeError("a bug of ours")

    link = Link("http://127.0.0.1:9")
    one = Probed(replica="a", model=MODEL, link=link, block_tokens=16, states=())
    check = IndexCheck([one], CheckRules(count=count, retry_s=0.01), lambda _: None)
    check.start()
    await until(lambda: check.health()[0].state is IndexState.DEGRADED)
    assert "log says how" in check.health()[0].reason
    await check.close()
    await link.aclose()


async def test_the_index_is_ok_when_the_engine_seeds_its_hashes_in_its_own_way() -> None:
    async with fleet(KvEvents(hash_seed=99), wait_s=5) as found:
        await found.becomes(IndexState.OK)


async def test_degraded_by_topic_when_events_come_under_another() -> None:
    async with fleet(KvEvents(topic="kv@b"), topic="kv@a") as found:
        await found.becomes(IndexState.DEGRADED, "events come under the topic 'kv@b', not under 'kv@a' (kv_topic)")
        assert set(found.trusted) == {False}


async def test_degraded_by_block_size_when_the_engines_is_another() -> None:
    async with fleet(KvEvents(block_tokens=24)) as found:
        await found.becomes(IndexState.DEGRADED, "the engine's blocks are of 24 tokens, not of 16 (block_tokens)")


async def test_degraded_by_block_size_when_it_could_be_translated_but_is_not_as_told() -> None:
    async with fleet(KvEvents(block_tokens=8)) as found:
        await found.becomes(IndexState.DEGRADED, "the engine's blocks are of 8 tokens, not of 16 (block_tokens)")


async def test_degraded_by_tokenizer_when_ours_makes_other_ids(tmp_path: Path) -> None:
    async with fleet(KvEvents(), tokenizer=write_tokenizer_files(tmp_path, off_by=1)) as found:
        await found.becomes(IndexState.DEGRADED, "our tokenizer or template is not the engine's")


async def test_degraded_by_tokenizer_when_the_engine_counts_in_place_of_ours() -> None:
    async with fleet(KvEvents(), wait_s=5, doubt="m is not the engine's tokenizer") as found:
        await until(lambda: found.health() == (IndexState.DEGRADED, "m is not the engine's tokenizer"))
        assert found.trusted == []  # the events are good all the same


async def test_a_busy_engine_is_waited_for_when_its_answer_takes_long() -> None:
    # prefill of the probe takes longer than events may take after the answer
    async with fleet(KvEvents(), lies=(SlowPrefill(delay_s=2.5),), wait_s=2.0) as found:
        assert await found.settled() == (IndexState.OK, "")


async def test_degraded_by_silence_when_nothing_is_published() -> None:
    async with fleet(KvEvents(silent=True), wait_s=0.4) as found:
        await found.becomes(IndexState.DEGRADED, "no event came from tcp://127.0.0.1:")


async def test_degraded_by_connection_when_nothing_listens_there() -> None:
    async with fleet(KvEvents(), endpoint="tcp://127.0.0.1:9", wait_s=0.4) as found:
        await found.becomes(IndexState.DEGRADED, "no publisher answers at tcp://127.0.0.1:9 (kv_events)")


async def test_ok_again_and_trusted_when_the_engine_comes_back_as_it_should_be() -> None:
    async with fleet(KvEvents(), wait_s=2) as found:
        await found.becomes(IndexState.OK)
        found.engine.crash()
        await until(lambda: ReplicaState.DOWN in found.controller.states)
        assert "ConnectError" in found.watch.why_down("a")
        await asyncio.to_thread(found.engine.start)
        await until(lambda: ReplicaState.RESTARTED in found.controller.states)
        await until(lambda: found.health()[0] is IndexState.OK)
        assert found.watch.why_down("a") == ""


async def test_degraded_by_credit_when_replies_do_not_find_what_the_index_promised() -> None:  # vllm#49125
    promised = [(0, 0)]
    async with fleet(KvEvents(), wait_s=5, credit=lambda _: promised[0]) as found:
        await found.becomes(IndexState.OK)
        promised[0] = (1_000, 10)
        await found.becomes(IndexState.DEGRADED, "of 1,000 blocks that the index promised, replies used 10")
        await until(lambda: found.trusted[-1:] == [False])


async def test_a_probe_cannot_be_made_when_nobody_counts() -> None:
    async def nobody(_: Ask) -> Counted:
        return Counted(input_tokens=10, exact=False)

    async with fleet(KvEvents()) as found:
        await found.watch.index.close()  # type: ignore[union-attr]
        check = found.watch.index._checks["a"]  # type: ignore[union-attr]
        check._rules = CheckRules(count=nobody, wait_s=0.2)
        assert "cannot be counted" in await check._probe()


def _state(*, connected: bool = True, topic: str = "") -> FeedState:
    source = KvSource(replica="a", endpoint="tcp://h:1", topic=topic, block_tokens=16)
    return FeedState(
        source=source, translator=Translator(block_tokens=16), sequence=Sequence(), connected=connected, messages=5
    )


def test_unreadable_messages_are_the_reason_when_they_came() -> None:
    state = _state()
    mark = Mark.of(state)
    state.messages, state.unreadable = 6, 1
    assert "cannot be read" in diagnose(state, mark)


def test_hashes_that_do_not_hang_together_are_the_reason_when_blocks_follow_unknown_ones() -> None:
    state = _state()
    mark = Mark.of(state)
    state.messages = 6
    state.translator.figures.orphans = 3
    assert diagnose(state, mark).startswith("3 blocks follow blocks that were never told of")


def test_running_trouble_is_told_when_many_blocks_follow_unknown_ones() -> None:
    state = _state()
    mark = Mark.of(state)
    figures = state.translator.figures
    figures.stored, figures.orphans = 400, 50
    assert running_trouble(state, mark) == ""  # 50 of 450 are a ninth
    figures.orphans = 200
    assert running_trouble(state, mark).startswith("200 of 600 stored blocks")
    later = Mark.of(state)
    assert running_trouble(state, later) == ""
    figures.stored, figures.conflicts = 600, 100
    assert running_trouble(state, later).startswith("100 hashes stand for other tokens than before")
    state.connected = False
    assert "is lost" in running_trouble(state, mark)


def test_a_size_that_cannot_be_told_in_ours_is_wrong_when_the_engine_announced_none() -> None:
    state = _state()
    state.translator.engine_block_tokens = Counter({1: 100, 32: 5})
    assert wrong_size(state) == ""
    state.translator.engine_block_tokens[24] = 1
    assert "cannot be told in blocks of 16" in wrong_size(state)


def test_over_credit_is_told_when_replies_find_less_than_half() -> None:
    assert over_credit(199, 0) == ""
    assert over_credit(200, 100) == ""
    assert over_credit(200, 99) == "of 200 blocks that the index promised, replies used 99"
