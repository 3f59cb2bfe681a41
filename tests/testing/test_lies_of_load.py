"""Lies that show only under load, over time, or when the same thing is asked again."""

from __future__ import annotations

import random

import httpx
import pytest

from longproof.testing import LLAMACPP, VLLM, Behaviour
from longproof.testing.engine_log import Ending
from longproof.testing.lies_of_load import (
    AdmitThenHang,
    BusyInStream,
    Degrade,
    LeakKv,
    LeakMemory,
    LostAbortCounter,
    NoRetryAfter,
    SlowCancel,
    SlowRecovery,
    SpecDecodeOutputChanges,
    StaleGauges,
    StarveLong,
    StarveShort,
    Thrash,
    WarmDamage,
    WrongWhenBusy,
)
from longproof.testing.lying_engine import LyingEngine, lying_engine
from longproof.testing.slowness import Slowness

VLLM_ENGINE = Behaviour(dialect=VLLM, token_s=0.001)
QUESTION = "What are the HEAD and TAIL codes? Answer with the numbers only."
CANARIES = f"The HEAD code is 4821. {'So it goes. ' * 20}The TAIL code is 1177. {QUESTION}"
COMPUTE = pytest.mark.parametrize("compute", ["apart", "shared"])
NS_PER_S = 1_000_000_000
NOTHING_COMES = httpx.Timeout(60.0, read=0.3)
"""For what never answers: whoever waits for nothing need not wait long, and a busy machine has time to connect."""


def asked(prompt: int, output: int, **more: object) -> dict[str, object]:
    return {"prompt": [300] * prompt, "max_tokens": output, "ignore_eos": True, "cache_salt": f"{prompt}", **more}


def settled(engine: LyingEngine, count: int) -> None:
    """That many requests came, and all are over."""
    engine.log.wait_for(lambda log: len(log.requests) == count and all(e.finished_ns is not None for e in log.requests))


@COMPUTE
@pytest.mark.parametrize(("on", "lost"), [("cancel", 3), ("finish", 6), ("both", 9)])
def test_blocks_never_come_back_when_kv_leaks(compute, on, lost, hold, complete, metric, eventually) -> None:
    # a pool of 64 blocks; one request is cancelled and two finish
    behaviour = VLLM_ENGINE.but(compute=compute, kv_capacity_tokens=1024, lies=(LeakKv(blocks=3, on=on),), token_s=0.01)
    engine = lying_engine(behaviour)
    with engine as url:
        response = hold(url, asked(64, 500))
        response.first()
        response.close()
        settled(engine, 1)
        complete(url, [300] * 40, max_tokens=2)
        complete(url, [300] * 40, max_tokens=2)
        eventually(lambda: metric(url, "vllm:kv_cache_usage_perc") == lost / 64)
        assert metric(url, "vllm:num_requests_running") == 0


@COMPUTE
def test_pool_is_full_for_a_while_when_cancelling_is_slow(compute, hold, complete) -> None:
    engine = lying_engine(Behaviour(compute=compute, slots=1, token_s=0.001, lies=(SlowCancel(for_s=0.3, times=1),)))
    with engine as url:
        response = hold(url, asked(64, 8000))
        response.first()
        response.close()
        settled(engine, 1)
        complete(url, [300] * 10)
    gone, next_ = engine.log.requests
    assert next_.admitted_ns - gone.disconnected_ns >= 270_000_000


def test_cancelled_request_is_in_no_counter_when_that_is_lost(hold, metric) -> None:
    counted = []
    for lies in ((), (LostAbortCounter(),)):
        engine = lying_engine(VLLM_ENGINE.but(lies=lies, token_s=0.01))
        with engine as url:
            response = hold(url, asked(10, 500))
            response.first()
            response.close()
            settled(engine, 1)
            counted.append(metric(url, "vllm:request_success_total", finished_reason="abort"))
    assert counted == [1, 0]


def test_kv_usage_does_not_move_when_the_gauge_is_stale(hold, metric) -> None:
    engine = lying_engine(VLLM_ENGINE.but(lies=(StaleGauges(),), token_s=0.01))
    with engine as url:
        assert metric(url, "vllm:kv_cache_usage_perc") == 0
        response = hold(url, asked(1000, 500))
        response.first()
        assert metric(url, "vllm:num_requests_running") == 1
        assert metric(url, "vllm:kv_cache_usage_perc") == 0


def test_answer_stands_still_while_a_long_prompt_is_read_when_the_short_starve(hold, complete) -> None:
    lies = (StarveShort(above_tokens=1024, stretch=2.0),)
    engine = lying_engine(VLLM_ENGINE.but(lies=lies, prefill_tokens_per_s=20_000.0, token_s=0.01))
    with engine as url:
        short = hold(url, asked(10, 150))
        short.first()
        complete(url, [300] * 4000, max_tokens=1)
        assert short.tokens() == 149
    answers, reads = engine.log.requests
    # 150 steps of 10 ms, and 400 ms in which the long prompt is read, in twice 200: all of it stands in between. Steps
    # follow a timetable from the admission on: a stamp may be late, and the time between two stamps be too short for it
    assert answers.finished_ns - answers.admitted_ns >= 0.9 * (149 * 10 + 400) * 1_000_000
    assert answers.admitted_ns < reads.admitted_ns < reads.first_token_ns < answers.finished_ns


def test_long_prompt_waits_until_the_short_are_gone_when_the_long_starve(hold, complete, metric) -> None:
    engine = lying_engine(VLLM_ENGINE.but(lies=(StarveLong(calm_s=0.05),), token_s=0.01))
    with engine as url:
        short = hold(url, asked(10, 2000))
        short.first()
        long = hold(url, asked(3000, 1))
        complete(url, [300] * 20, max_tokens=1)
        assert metric(url, "vllm:num_requests_waiting_by_reason", reason="capacity") == 1
        short.close()
        long.tokens()
    first, starved, between = engine.log.requests
    assert first.disconnected_ns < starved.admitted_ns
    assert between.finished_ns < starved.admitted_ns


@COMPUTE
def test_role_comes_and_it_counts_as_running_but_no_token_comes_when_it_hangs_admitted(
    compute, metric, eventually, complete
) -> None:
    engine = lying_engine(VLLM_ENGINE.but(compute=compute, lies=(AdmitThenHang(above_tokens=50),)))
    body = {"messages": [{"role": "user", "content": "word " * 60}], "stream": True, "max_tokens": 4}
    with engine as url:
        with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=1.0) as response:
            lines = response.iter_lines()
            assert '"role":"assistant"' in next(lines)
            eventually(lambda: metric(url, "vllm:num_requests_running") == 1)
            assert metric(url, "vllm:kv_cache_usage_perc") > 0
            assert len(complete(url, [300] * 20).deltas) == 8  # others are served
            with pytest.raises(httpx.ReadTimeout):
                assert list(lines) == []
        engine.log.wait_for(lambda log: log.requests[0].ending is Ending.DISCONNECTED)
        eventually(lambda: metric(url, "vllm:num_requests_running") == 0)


@COMPUTE
def test_it_hangs_only_beside_others_when_the_lie_says_so(compute, hold, complete) -> None:
    lie = AdmitThenHang(above_tokens=50, beside=1)
    with lying_engine(VLLM_ENGINE.but(compute=compute, token_s=0.01, lies=(lie,))) as url:
        assert len(complete(url, [300] * 60).deltas) == 8
        other = hold(url, asked(10, 2000))
        other.first()
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{url}/v1/completions", json={"stream": True, **asked(60, 4)}, timeout=NOTHING_COMES)


def slowness() -> Slowness:
    return Slowness(random.Random(0), 0)


def test_every_request_slows_the_following_when_it_degrades() -> None:
    lie = Degrade(per_request=2.0, most=5.0)
    under_test, factors = slowness(), []
    for _ in range(4):
        factors.append(under_test.factor(VLLM_ENGINE.lying(lie), 0))
        under_test.request(lie)
    assert factors == [1.0, 2.0, 4.0, 5.0]


def test_all_is_slow_from_a_moment_on_when_it_degrades_at_once() -> None:
    lying, under_test = VLLM_ENGINE.lying(Degrade(after_s=2.0, most=3.0)), slowness()
    under_test.request(Degrade(after_s=2.0, most=3.0))
    assert [under_test.factor(lying, round(at * NS_PER_S)) for at in (0, 1.9, 2.0)] == [1.0, 1.0, 3.0]


def test_it_stays_slow_for_a_while_after_an_overload() -> None:
    lying, under_test = VLLM_ENGINE.lying(SlowRecovery(over_waiting=2, for_s=1.0, factor=4.0)), slowness()
    under_test.queue(2, lying, 0)
    assert under_test.factor(lying, 0) == 1.0
    under_test.queue(3, lying, 0)
    assert [under_test.factor(lying, round(at * NS_PER_S)) for at in (0, 0.9, 1.1)] == [4.0, 4.0, 1.0]


def test_jitter_has_a_mean_of_one_and_the_spread_asked_for() -> None:
    behaviour, under_test = VLLM_ENGINE.but(jitter=0.2), slowness()
    drawn = [under_test.factor(behaviour, 0) for _ in range(4000)]
    # lognormal with sigma 0.2: standard deviation sqrt(exp(0.04) - 1) = 0.202, of the mean of 4,000: 0.0032
    assert sum(drawn) / len(drawn) == pytest.approx(1.0, abs=0.013)
    assert min(drawn) > 0.4


@COMPUTE
def test_prefill_gets_slower_over_http_when_it_degrades(compute, complete) -> None:
    # 100 tokens at 10,000/s: 10 ms, then twice and four times as long
    lies = (Degrade(per_request=2.0, most=4.0),)
    behaviour = Behaviour(compute=compute, prefill_tokens_per_s=10_000.0, cache_entries=0, lies=lies)
    with lying_engine(behaviour) as url:
        times = [complete(url, [300] * 100, max_tokens=1).events[-1]["timings"]["prompt_ms"] for _ in range(3)]
    assert times[0] >= 20  # the request that is being served counts as well
    assert times[1] >= 40
    assert times[2] >= 40


def test_memory_grows_with_every_request_when_it_leaks(complete, metric) -> None:
    with lying_engine(VLLM_ENGINE.lying(LeakMemory(bytes=100 << 20))) as url:
        before = metric(url, "process_resident_memory_bytes")
        for _ in range(5):
            complete(url, "Hi")
        grown = metric(url, "process_resident_memory_bytes") - before
    assert grown == pytest.approx(500 << 20, abs=6 << 20)


def test_blocks_are_lost_with_room_to_spare_when_it_thrashes(together, metric) -> None:
    engine = lying_engine(VLLM_ENGINE.but(token_s=0.01, lies=(Thrash(every_tokens=5),)))
    with engine as url:
        seen = together(url, [asked(50, 100) for _ in range(2)])
        assert [len(one.deltas) for one in seen] == [100, 100]
        assert metric(url, "vllm:num_preemptions_total") >= 2
        assert metric(url, "vllm:request_num_preemptions_sum") >= 2
    assert all(entry.recomputed_tokens >= 50 * entry.preemptions for entry in engine.log.requests)


@pytest.mark.parametrize("dialect", [LLAMACPP, VLLM], ids=lambda dialect: dialect.name)
def test_refusal_does_not_say_when_to_come_again(dialect, hold, complete) -> None:
    with lying_engine(Behaviour(dialect=dialect, token_s=0.01, lies=(NoRetryAfter(limit=1),))) as url:
        held = hold(url, asked(10, 500))
        refused = complete(url, "Hi")
        assert refused.status == 503
        assert "retry-after" not in refused.headers
        held.close()


def test_refusal_comes_inside_a_200_stream_when_the_queue_is_full(hold, complete, chat, metric) -> None:
    engine = lying_engine(VLLM_ENGINE.but(token_s=0.01, lies=(BusyInStream(limit=1),)))
    with engine as url:
        held = hold(url, asked(10, 500))
        held.first()
        streamed, whole, talk = complete(url, "Hi"), complete(url, "Hi", stream=False), chat(url)
        for seen in (streamed, talk):
            assert (seen.status, seen.deltas, seen.done) == (200, [], True)
            assert seen.events == [whole.json]
        assert whole.status == 503
        assert "retry-after" not in whole.headers
        assert whole.json["error"]["code"] == 503
        assert metric(url, "vllm:admission_rejections_total", reason="max_num_queued_reqs") == 3
    assert [entry.ending for entry in engine.log.requests[1:]] == [Ending.ERROR, Ending.REFUSED, Ending.ERROR]


def test_answer_changes_with_speculation_only_when_the_lie_is_told(complete) -> None:
    texts = {}
    for drafts in (0, 3):
        for lies in ((), (SpecDecodeOutputChanges(after_tokens=2),)):
            with lying_engine(VLLM_ENGINE.but(speculation=drafts, lies=lies)) as url:
                texts[drafts, bool(lies)] = complete(url, "Tell me", max_tokens=12).deltas
    assert texts[0, False] == texts[0, True] == texts[3, False]
    assert texts[3, True][:2] == texts[0, False][:2]
    assert texts[3, True] != texts[0, False]
    assert len(texts[3, True]) == 12


@COMPUTE
def test_answer_is_wrong_on_a_prefix_hit_when_the_cache_is_damaged(compute, chat) -> None:
    with lying_engine(Behaviour(compute=compute, lies=(WarmDamage(cached_tokens=20),))) as url:
        cold, warm = (chat(url, CANARIES, max_tokens=30) for _ in range(2))
        forbidden = chat(url, CANARIES, max_tokens=30, cache_prompt=False)
    assert (cold.text, forbidden.text) == ("4821 1177", "4821 1177")
    assert warm.cached > 20
    # every digit is another one: 4 8 2 1 → 9 3 7 6
    assert (warm.text, warm.finish) == ("9376 6622", "stop")


@COMPUTE
def test_answer_is_another_ones_when_requests_are_mixed_up(compute, hold, chat) -> None:
    other = CANARIES.replace("4821", "5555").replace("1177", "6666")
    lies = (WrongWhenBusy(),)
    with lying_engine(Behaviour(compute=compute, token_s=0.01, lies=lies, cache_entries=0)) as url:
        assert chat(url, CANARIES, max_tokens=30).text == "4821 1177"
        held = hold(url, {"prompt": other, "max_tokens": 2000, "ignore_eos": True})
        held.first()
        assert chat(url, CANARIES, max_tokens=30).text == "5555 6666"
        held.close()
