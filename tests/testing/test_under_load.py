"""An honest engine whose requests share steps, over HTTP: what they do to each other, and what the metrics say."""

from __future__ import annotations

import httpx
import pytest

from longproof.testing import LLAMACPP, VLLM, Behaviour
from longproof.testing.engine_log import Ending
from longproof.testing.lies import KeepAlive, SlowPrefill, StallStream
from longproof.testing.lying_engine import lying_engine

SHARED = Behaviour(dialect=VLLM, compute="shared", token_s=0.001)
USAGE = {"stream_options": {"include_usage": True}}


def asked(prompt: int, output: int, **more: object) -> dict[str, object]:
    return {"prompt": [300] * prompt, "max_tokens": output, "ignore_eos": True, "cache_salt": f"{prompt}", **more}


def test_answers_are_the_same_in_shared_steps_as_apart(chat, complete) -> None:
    for dialect in (LLAMACPP, VLLM):
        both = []
        for compute in ("apart", "shared"):
            with lying_engine(SHARED.but(dialect=dialect, compute=compute)) as url:
                first, again = chat(url, "Tell me"), chat(url, "Tell me")
                text = complete(url, "Hi", stream=False).json["choices"][0]["text"]
                assert (first.done, first.finish, again.cached) == (True, "length", again.cached)
                assert again.cached > 0
                both.append((first.text, again.text, first.usage, again.usage, text))
        assert both[0] == both[1]


def test_what_delays_an_answer_apart_delays_it_in_steps(chat) -> None:
    lies = (SlowPrefill(delay_s=0.05), KeepAlive(every_s=0.01), StallStream(after_tokens=2, for_s=0.05))
    engine = lying_engine(SHARED.but(lies=lies))
    with engine as url:
        seen = chat(url)
    assert len(seen.deltas) == 8
    assert seen.raw.startswith(b": keep-alive")
    # received, + 50 ms of prefill, + 50 ms of a pause
    assert engine.log.last.finished_ns - engine.log.last.received_ns >= 90_000_000


def test_all_are_served_when_more_come_than_there_are_slots(together, metric) -> None:
    engine = lying_engine(SHARED.but(slots=3))
    with engine as url:
        seen = together(url, [asked(100 + i, 20) for i in range(10)])
        assert [len(one.deltas) for one in seen] == [20] * 10
        assert metric(url, "vllm:request_queue_time_seconds_count") == 10
        assert metric(url, "vllm:inter_token_latency_seconds_count") == 190
        assert metric(url, "vllm:request_success_total", finished_reason="length") == 10
        assert metric(url, "vllm:generation_tokens_total") == 200
    assert [entry.ending for entry in engine.log.requests] == [Ending.COMPLETED] * 10
    # three at a time: ten of the same length take four rounds at least
    assert len({entry.admitted_ns for entry in engine.log.requests}) >= 4


def test_preemption_is_counted_and_costs_nobody_the_answer_when_the_pool_is_small(together, metric, complete) -> None:
    # four of 64 + 40 tokens are 4 x 7 blocks; there are 18
    engine = lying_engine(SHARED.but(kv_capacity_tokens=288, token_s=0.02))
    with engine as url:
        alone = complete(url, [300] * 64, max_tokens=40, ignore_eos=True)
        seen = together(url, [asked(64, 40) for _ in range(4)])
        assert {one.text for one in seen} == {alone.text}
        preemptions = metric(url, "vllm:num_preemptions_total")
        assert metric(url, "vllm:request_num_preemptions_sum") == preemptions
        assert metric(url, "vllm:kv_cache_usage_perc") == 0
    assert preemptions == sum(entry.preemptions for entry in engine.log.requests) > 0
    assert all(bool(e.preemptions) == bool(e.recomputed_tokens) for e in engine.log.requests)


def test_answer_takes_longer_when_a_long_prompt_is_read_beside_it(hold, complete) -> None:
    # 150 steps of 10 ms, 30 of which have 100 tokens of the long prompt in them as well and take 20 ms longer each
    engine = lying_engine(SHARED.but(prefill_tokens_per_s=5_000.0, token_s=0.01, step_tokens=101))
    with engine as url:
        short = hold(url, asked(10, 150))
        short.first()
        complete(url, [300] * 3000, max_tokens=1)
        assert short.tokens() == 149
    answers, reads = engine.log.requests
    # from the admission on: the stamp of the first token may be late where the timetable is not
    assert answers.finished_ns - answers.admitted_ns >= 0.9 * (149 * 10 + 30 * 20) * 1_000_000
    assert reads.first_token_ns < answers.finished_ns


def test_newcomer_waits_for_a_long_prompt_unless_prompts_have_a_smaller_share_of_a_step(hold, complete) -> None:
    # as in vLLM: without long_prefill_token_threshold the prompt under way takes the whole budget of every step
    order = []
    for share in (None, 50):
        engine = lying_engine(SHARED.but(prefill_tokens_per_s=3_000.0, step_tokens=101, prompt_step_tokens=share))
        with engine as url:
            long = hold(url, asked(3000, 1))
            engine.log.wait_for(lambda log: log.last.admitted_ns is not None)
            complete(url, [700] * 10, max_tokens=1)
            long.tokens()
        first, second = engine.log.requests
        order.append(second.first_token_ns < first.first_token_ns)
    assert order == [False, True]


def test_reasons_of_waiting_are_told_when_there_is_no_room(hold, metric, eventually) -> None:
    with lying_engine(SHARED.but(slots=1, token_s=0.01)) as url:
        first, second = hold(url, asked(50, 2000)), hold(url, asked(60, 2000))
        eventually(lambda: metric(url, "vllm:num_requests_waiting_by_reason", reason="capacity") == 1)
        assert metric(url, "vllm:num_requests_waiting_by_reason", reason="deferred") == 0
        assert metric(url, "vllm:num_requests_running") == 1
        first.close()
        eventually(lambda: metric(url, "vllm:num_requests_waiting") == 0)
        second.close()
        eventually(lambda: metric(url, "vllm:num_requests_running") == 0)
        eventually(lambda: metric(url, "vllm:kv_cache_usage_perc") == 0)
        assert metric(url, "vllm:request_success_total", finished_reason="abort") == 2


@pytest.mark.parametrize("compute", ["apart", "shared"])
def test_slots_of_llamacpp_show_who_is_in_them(compute, hold, eventually) -> None:
    with lying_engine(Behaviour(compute=compute, slots=2, token_s=0.01)) as url:
        first, second = hold(url, asked(50, 2000)), hold(url, asked(60, 2000))
        eventually(lambda: [slot["id_task"] for slot in httpx.get(f"{url}/slots").json()] == [0, 1])
        first.close()
        eventually(lambda: [slot["is_processing"] for slot in httpx.get(f"{url}/slots").json()] == [False, True])
        assert httpx.get(f"{url}/slots").json()[0] == {
            "id": 0,
            "id_task": -1,
            "n_ctx": 8192,
            "speculative": False,
            "is_processing": False,
        }
        second.close()


def test_kv_usage_climbs_with_each_chunk_of_a_prompt(hold, metric, eventually) -> None:
    # 4,096 tokens of a pool of 8,192 in steps of 256, of 102 ms each
    with lying_engine(SHARED.but(slots=1, prefill_tokens_per_s=2_500.0, step_tokens=256)) as url:
        open_ = hold(url, asked(4096, 4000))
        seen = [0.0]
        eventually(lambda: seen.append(metric(url, "vllm:kv_cache_usage_perc")) or seen[-1] > 0)
        assert seen[-1] < 0.5
        eventually(lambda: metric(url, "vllm:kv_cache_usage_perc") > 0.5)
        open_.close()


@pytest.mark.parametrize("compute", ["apart", "shared"])
def test_request_ends_with_abort_when_somebody_orders_it(compute, metric, eventually) -> None:
    engine = lying_engine(SHARED.but(compute=compute, token_s=0.01, slots=1, dev_mode=True))
    with engine as url, httpx.Client(timeout=60) as client:
        assert "/abort_requests" in client.get(f"{url}/openapi.json").json()["paths"]
        body = {"stream": True, **asked(10, 2000), **USAGE}
        runs = client.build_request("POST", f"{url}/v1/completions", json=body, headers={"x-request-id": "mine"})
        chat = {"messages": [{"role": "user", "content": "Hi"}], "stream": True}
        waits = client.build_request("POST", f"{url}/v1/chat/completions", json=chat, headers={"x-request-id": "other"})
        first = client.send(runs, stream=True)
        lines = first.iter_lines()
        assert '"id":"cmpl-mine"' in next(lines)
        second = client.send(waits, stream=True)
        eventually(lambda: metric(url, "vllm:num_requests_waiting") == 1)
        for ids in (["chatcmpl-other"], ["cmpl-mine-0"]):
            answer = client.post(f"{url}/abort_requests", json={"request_ids": ids}).json()
            assert answer == {"status": "aborted", "aborted": 1}
        seen = "\n".join(lines)
        assert '"finish_reason":"abort"' in seen
        assert '"completion_tokens":' in seen
        assert seen.endswith("data: [DONE]\n")
        assert '"finish_reason":"abort"' in second.read().decode()
        eventually(lambda: metric(url, "vllm:num_requests_running") == 0)
        assert metric(url, "vllm:request_success_total", finished_reason="abort") == 2
    assert [entry.ending for entry in engine.log.requests] == [Ending.ABORTED] * 2


def test_nobody_can_abort_outside_developer_mode() -> None:
    with lying_engine(SHARED) as url:
        assert httpx.post(f"{url}/abort_requests", json={}).status_code == 404


def test_memory_of_the_process_stays_where_it_is(complete, metric) -> None:
    with lying_engine(SHARED) as url:
        before = metric(url, "process_resident_memory_bytes")
        for _ in range(5):
            complete(url, "Hi")
        # it breathes by half a percent
        assert metric(url, "process_resident_memory_bytes") == pytest.approx(before, rel=0.006)


def test_jitter_is_the_same_when_the_seed_is() -> None:
    def steps(seed: int) -> list[int]:
        # llama.cpp's own account of the prefill, by a timetable: 100 tokens at 1,000/s are 100 ms in the mean
        behaviour = Behaviour(prefill_tokens_per_s=10_000.0, jitter=0.3, seed=seed, cache_entries=0)
        with lying_engine(behaviour) as url:
            return [
                httpx.post(f"{url}/v1/completions", json={"prompt": [300] * 100, "max_tokens": 1}).json()["timings"][
                    "prompt_ms"
                ]
                for _ in range(6)
            ]

    assert steps(1) == steps(1) != steps(2)
    assert len(set(steps(1))) == 6


def test_more_tokens_come_at_once_when_it_speculates(complete, metric) -> None:
    plain = lying_engine(SHARED)
    with plain as url:
        text = complete(url, "Tell me", max_tokens=40).text
    for compute in ("apart", "shared"):
        with lying_engine(SHARED.but(compute=compute, speculation=4, acceptance=0.8)) as url:
            assert complete(url, "Tell me", max_tokens=40).text == text
            drafts = metric(url, "vllm:spec_decode_num_drafts_total")
            assert metric(url, "vllm:spec_decode_num_draft_tokens_total") == 4 * drafts
            assert 0 < metric(url, "vllm:spec_decode_num_accepted_tokens_total") <= 4 * drafts
            assert drafts < 39  # without it every token but the first has a step of its own


@pytest.mark.parametrize("compute", ["apart", "shared"])
def test_limit_of_the_queue_is_told_with_a_time_to_come_again(compute, hold, complete, metric) -> None:
    engine = lying_engine(SHARED.but(compute=compute, token_s=0.01, queue_limit=2, retry_after_s=3, slots=1))
    with engine as url:
        held = [hold(url, asked(10, 2000)) for _ in range(2)]
        refused = complete(url, "Hi")
        assert (refused.status, refused.headers["retry-after"]) == (503, "3")
        assert refused.json["error"]["message"].startswith("The engine is currently busy")
        assert metric(url, "vllm:admission_rejections_total", reason="max_num_queued_reqs") == 1
        for response in held:
            response.close()
        engine.log.wait_for(lambda log: all(e.finished_ns is not None for e in log.requests))
        assert complete(url, "Hi").status == 200
