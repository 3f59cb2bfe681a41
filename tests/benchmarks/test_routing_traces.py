"""The routing benchmark's models by hand-worked numbers, and the marks that routing has to reach on them.

Everything is simulated: the figures are the same on every machine, so a mark that is missed is a change of the policy.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
NS_PER_S = 1_000_000_000
NS_PER_MS = 1_000_000


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield importlib.import_module("routing_traces")
    for name in [name for name in sys.modules if name.split(".")[0] in ("routing", "routing_traces")]:
        del sys.modules[name]


class Notes:
    """A sink that writes down what an engine says, with a heap of its own."""

    def __init__(self) -> None:
        self.due: list[tuple[int, int, object, object]] = []
        self.said: list[tuple[str, str, int]] = []
        self.events: list[object] = []

    def at(self, when_ns: int, engine: object, what: object) -> None:
        self.due.append((when_ns, len(self.due), engine, what))

    def first_token(self, job: object, now_ns: int) -> None:
        self.said.append(("first", job.id, now_ns))  # type: ignore[attr-defined]

    def produced(self, job: object, output_tokens: int, now_ns: int) -> None:
        self.said.append((f"produced {output_tokens}", job.id, now_ns))  # type: ignore[attr-defined]

    def finished(self, job: object, now_ns: int) -> None:
        self.said.append(("finished", job.id, now_ns))  # type: ignore[attr-defined]

    def cache_changed(self, engine: object, events: list[object], now_ns: int) -> None:
        self.events += events

    def play(self) -> None:
        while self.due:
            self.due.sort(key=lambda entry: entry[:2])
            when_ns, _, engine, what = self.due.pop(0)
            engine.on(what, when_ns)  # type: ignore[attr-defined]


def _job(traces: ModuleType, request: str, tokens: int, blocks: tuple[int, ...], output: int = 3) -> object:
    return traces.Job(request, tokens, output, blocks)


def test_the_fifo_engine_serves_in_turn_and_remembers_when_prefixes_repeat(traces: ModuleType) -> None:
    notes = Notes()
    engine = traces.FifoEngine(
        "r1", notes, cache=traces.LruCache(4), block_tokens=100, tokens_per_s=1_000, answer_ns=50 * NS_PER_MS
    )
    first, second, third = (
        _job(traces, "1", 200, (1, 2)),
        _job(traces, "2", 250, (1, 2)),
        _job(traces, "3", 300, (5, 6, 7)),
    )
    for job in (first, second, third):
        engine.submit(job, 0)
    notes.play()
    # 200 ms; then 50 of 250 tokens are new; then 300
    assert [entry for entry in notes.said if entry[0] == "first"] == [
        ("first", "1", 200 * NS_PER_MS),
        ("first", "2", 250 * NS_PER_MS),
        ("first", "3", 550 * NS_PER_MS),
    ]
    assert ("finished", "1", 250 * NS_PER_MS) in notes.said
    assert (first.cached_tokens, second.cached_tokens, third.cached_tokens) == (0, 200, 0)
    assert engine.uncached_tokens == 200 + 50 + 300
    assert [event.blocks for event in notes.events] == [
        (1, 2),
        (),
        (5, 6, 7),
        (2,),
    ]  # the last of the older prompt went


def test_a_wholly_cached_prompt_computes_its_last_block_when_it_comes_again(traces: ModuleType) -> None:
    notes = Notes()
    engine = traces.FifoEngine("r1", notes, cache=traces.LruCache(4), block_tokens=100, tokens_per_s=1_000, answer_ns=0)
    for request in ("1", "2"):
        engine.submit(job := _job(traces, request, 200, (1, 2)), 0)
    notes.play()
    assert job.cached_tokens == 100


def test_the_stepped_engine_runs_prefill_in_steps_beside_streams_when_both_are_there(traces: ModuleType) -> None:
    notes = Notes()
    engine = traces.SteppedEngine("r1", notes, kv_blocks=100, block_tokens=64, step_tokens=1_000, name_tokens=64)

    def prefill_ns(tokens: int) -> int:
        return int((4.209989e-07 * tokens**2 + 1.518344e-02 * tokens + 1.650142e01) * NS_PER_MS)

    def decode_ms(context: int) -> float:
        share = context / 6_400
        return -25.74 * share**2 + 54.01 * share + 5.74

    engine.submit(_job(traces, "1", 1_500, tuple(range(24)), output=3), 0)
    notes.play()
    first_ns = prefill_ns(1_000) + prefill_ns(500)
    # two further tokens; the engine takes both steps at the price of the first
    last_ns = first_ns + 2 * int(decode_ms(1_500) * NS_PER_MS)
    assert notes.said == [("first", "1", first_ns), ("produced 3", "1", last_ns), ("finished", "1", last_ns)]


def test_a_request_waits_in_the_stepped_engine_when_its_blocks_are_not_free(traces: ModuleType) -> None:
    notes = Notes()
    engine = traces.SteppedEngine("r1", notes, kv_blocks=10, block_tokens=64, step_tokens=1_000, name_tokens=64)
    engine.submit(_job(traces, "1", 500, tuple(range(8)), output=10), 0)  # 8 blocks, none more for 510 tokens
    engine.submit(_job(traces, "2", 250, tuple(range(20, 24)), output=1), 0)  # 4 blocks: 2 are free
    notes.play()
    order = [(what, request) for what, request, _ in notes.said if what in ("first", "finished")]
    assert order == [("first", "1"), ("finished", "1"), ("first", "2"), ("finished", "2")]


def test_conversations_stay_where_their_blocks_are_when_caches_are_roomy(traces: ModuleType) -> None:
    for rule in (traces.EVENTS, traces.TRAFFIC):
        outcome = traces.fifo(16_384, 16, 200_000, 32).run(traces.multi_turn(7), rule)
        assert len(outcome.answered()) == 64 * 8
        assert outcome.hit_share >= 0.855
        assert outcome.imbalance <= 1.2


def test_conversations_are_found_again_and_wait_less_than_with_sticky_sessions_when_caches_are_tight(
    traces: ModuleType,
) -> None:
    seeds = (7, 8)
    ours = [traces.fifo(6_144, 16, 200_000, 32).run(traces.multi_turn(seed)) for seed in seeds]
    sticky = [traces.fifo(6_144, 16, 200_000, 32).run(traces.multi_turn(seed), "sticky") for seed in seeds]
    assert min(outcome.hit_share for outcome in ours) >= 0.68
    assert max(outcome.ttft_ms(0.99) for outcome in ours) <= 200
    assert sum(o.ttft_ms(0.99) for o in ours) < sum(o.ttft_ms(0.99) for o in sticky)


def test_short_requests_are_answered_at_once_when_long_prompts_come_between_them(traces: ModuleType) -> None:
    outcome = traces.fifo(65_536, 16, 200_000, 32).run(traces.long_short(7, every=None))
    assert len(outcome.answered()) == 400
    assert outcome.ttft_ms(0.99, "short") <= 100
    assert outcome.ttft_ms(0.99, "long") <= 3_000


def _shared_prompt_trace(path: Path, requests: int) -> Path:
    """The trap of a public trace: everybody begins with one block, and longest match sends all of them to one."""
    rows = [
        {
            "timestamp": number * 250,
            "input_length": 4_096 + 512 * (number % 13),
            "output_length": 1,
            "hash_ids": [0, *(1 + number % 41 * 100 + at for at in range(7 + number % 13))],
        }
        for number in range(requests)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_work_is_spread_and_hits_beat_round_robin_when_every_prompt_begins_alike(
    traces: ModuleType, tmp_path: Path
) -> None:
    trace = _shared_prompt_trace(tmp_path / "trace.jsonl", 800)
    outcomes = {
        rule: traces.fifo(200, 512, 10_000, 0).run(traces.mooncake(trace), rule)
        for rule in (traces.EVENTS, "longest match", "round robin")
    }
    ours, longest, dealt = outcomes.values()
    assert longest.imbalance > 2.0
    assert ours.imbalance <= 1.2
    assert ours.hit_share > dealt.hit_share
    assert ours.ttft_ms(0.5) < min(longest.ttft_ms(0.5), dealt.ttft_ms(0.5))


def test_the_median_is_low_and_the_oldest_wait_bounded_when_more_comes_than_can_be_served(
    traces: ModuleType, tmp_path: Path
) -> None:
    rows = [
        {
            "timestamp": number * 25,
            "input_length": (40_000 if number % 10 == 0 else 2_000),
            "output_length": 100,
            "hash_ids": [number * 100 + at for at in range(80 if number % 10 == 0 else 4)],
        }
        for number in range(1_200)
    ]
    trace = tmp_path / "trace.jsonl"
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def make(name: str, kernel: object) -> object:
        return traces.SteppedEngine(name, kernel, kv_blocks=8_192, block_tokens=64, step_tokens=8_192, name_tokens=512)

    prefill = traces.PrefillCost(ns_per_token=18_600, fixed_ns=16_500_000)
    queue = traces.QueueRule(age_bound_ns=4 * NS_PER_S, overdue_share=0.25, longest_wait_ns=10 * NS_PER_S)
    outcome = traces.Fleet(1_024, 512, prefill, make, queue).run(traces.mooncake(trace))
    assert len(outcome.answered()) + len(outcome.refused()) == 1_200
    assert outcome.refused()  # it was too much
    assert outcome.ttft_ms(0.5) <= 1_000
    assert outcome.ttft_ms(1.0) <= 15_000  # who waits longer than 10 s is told so; the rest is prefill
    assert {job.refused for job in outcome.refused()} == {"queue_timeout"}
