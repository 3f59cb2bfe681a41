"""Lies about how much was read, written, counted and cached: each is visible on the wire, and the log has the truth."""

from __future__ import annotations

import httpx
import pytest

from longproof.testing import HONEST, VLLM, Behaviour
from longproof.testing.lies import (
    BigChunks,
    ClaimWindow,
    ClampOutput,
    FalseCached,
    HideCached,
    IgnoreCold,
    Lie,
    NoUsage,
    TruncateInput,
    WrongCount,
    WrongUsage,
)
from longproof.testing.lying_engine import LyingEngine, lying_engine

FILLER = " word" * 60
QUESTION = " What are the HEAD, MIDDLE and TAIL codes? Answer with the three numbers only."
LONG = f"The HEAD code is 4821.{FILLER} The MIDDLE code is 7360.{FILLER} The TAIL code is 1177.{QUESTION}"


def engine(*lies: Lie) -> LyingEngine:
    return lying_engine(HONEST.lying(*lies))


@pytest.mark.parametrize(
    ("lose", "keep", "answer"),
    [
        # 190 tokens: template 18, three sentences of 10, two fillers of 60, question 17, template 5
        # spared are question and template: 17 + 5 = 22
        ("head", 130, "7360 1177"),
        ("middle", 130, "4821 1177"),
        ("tail", 130, "4821 7360"),
    ],
)
def test_lost_code_is_missing_from_the_answer_when_input_is_truncated(lose, keep, answer, chat) -> None:
    under_test = engine(TruncateInput(keep_tokens=keep, lose=lose, spare_tail_tokens=22))
    with under_test as url:
        seen = chat(url, LONG, max_tokens=40)
    assert seen.text == answer
    assert under_test.log.last.read_tokens == keep == seen.usage["prompt_tokens"]
    assert under_test.log.last.prompt_tokens > keep


def test_question_itself_is_lost_when_the_tail_is_cut_without_sparing_anything(chat) -> None:
    with engine(TruncateInput(keep_tokens=130, lose="tail")) as url:
        seen = chat(url, LONG, max_tokens=40)
    assert "4821" not in seen.text
    assert seen.finish == "length"


def test_usage_claims_the_whole_prompt_when_the_lie_says_so(chat) -> None:
    under_test = engine(TruncateInput(keep_tokens=130, lose="head", usage="sent"))
    with under_test as url:
        seen = chat(url, LONG, max_tokens=40)
    assert seen.usage["prompt_tokens"] == under_test.log.last.prompt_tokens > 130
    assert seen.text == "7360 1177"


def test_logprobs_do_not_see_the_lost_head(complete) -> None:
    body = {"logprobs": 3, "max_tokens": 1}
    one, other = [1000, *range(300, 400)], [2000, *range(300, 400)]
    with lying_engine() as url:
        honest = [complete(url, ids, **body).choices[0] for ids in (one, other)]
    with engine(TruncateInput(keep_tokens=100)) as url:
        lying = [complete(url, ids, **body).choices[0] for ids in (one, other)]
    assert honest[0] != honest[1]
    assert lying[0] == lying[1]


def test_input_longer_than_the_window_is_swallowed_when_truncated(complete) -> None:
    under_test = lying_engine(Behaviour(window_tokens=512, lies=(TruncateInput(keep_tokens=500),)))
    with under_test as url:
        seen = complete(url, [300] * 5000, max_tokens=8)
    assert (seen.status, seen.usage["prompt_tokens"], under_test.log.last.prompt_tokens) == (200, 500, 5000)


def test_prompt_below_the_limit_is_read_whole_when_the_lie_truncates(chat) -> None:
    under_test = engine(TruncateInput(keep_tokens=130))
    with under_test as url:
        chat(url, "Hi")
    assert under_test.log.last.read_tokens == under_test.log.last.prompt_tokens


@pytest.mark.parametrize("finish", ["length", "stop"])
def test_output_is_shorter_than_asked_when_clamped(finish, chat) -> None:
    with engine(ClampOutput(tokens=2, finish=finish)) as url:
        seen = chat(url, max_tokens=8, ignore_eos=True)
        short = chat(url, max_tokens=1)
    assert (len(seen.deltas), seen.usage["completion_tokens"], seen.finish) == (2, 2, finish)
    assert (len(short.deltas), short.finish) == (1, "length")


def test_usage_is_wrong_when_scaled_and_shifted(complete) -> None:
    lie = WrongUsage(prompt_scale=0.5, prompt_offset=3, completion_offset=-5)
    with engine(lie) as url:
        usage = complete(url, [300] * 100).usage
    assert usage["prompt_tokens"] == 53  # 100 / 2 + 3
    assert usage["completion_tokens"] == 3  # 8 - 5
    assert usage["total_tokens"] == 56


def test_usage_and_timings_are_missing_when_withheld(chat, complete) -> None:
    with engine(NoUsage()) as url:
        for seen in (chat(url), complete(url, "Hi")):
            assert seen.usage is None
            assert not any("timings" in event for event in seen.events)
            assert (seen.finish, seen.done, len(seen.deltas)) == ("length", True, 8)
        assert "usage" not in chat(url, stream=False).json


def test_counting_endpoints_are_off_when_the_lie_says_so(chat) -> None:
    body = {"messages": [{"role": "user", "content": "Hi"}]}
    with engine(WrongCount(offset=-2)) as url:
        counted = httpx.post(f"{url}/v1/chat/completions/input_tokens", json=body).json()["input_tokens"]
        ids = httpx.post(f"{url}/tokenize", json={"content": "a b c d"}).json()["tokens"]
        used = chat(url).usage["prompt_tokens"]
    assert (counted, len(ids)) == (used - 2, 2)
    with lying_engine(Behaviour(dialect=VLLM, lies=(WrongCount(offset=3),))) as url:
        assert httpx.post(f"{url}/tokenize", json=body).json()["count"] == used + 3


def test_fresh_prompt_is_reported_as_cached_when_the_lie_says_so(complete) -> None:
    under_test = engine(FalseCached(fraction=0.5))
    with under_test as url:
        seen = complete(url, [300] * 100, cache_prompt=False)
    assert seen.cached == 50
    assert under_test.log.last.cached_tokens == 0


@pytest.mark.parametrize(("in_metrics", "shown"), [(True, 0), (False, 99)])
def test_cache_hit_is_hidden_when_the_lie_says_so(in_metrics, shown, complete) -> None:
    under_test = engine(HideCached(in_metrics=in_metrics))
    with under_test as url:
        seen = [complete(url, list(range(300, 400))) for _ in range(2)]
        metrics = httpx.get(f"{url}/metrics").text
    assert [one.cached for one in seen] == [0, 0]
    assert [entry.cached_tokens for entry in under_test.log.requests] == [0, 99]
    assert f"llamacpp:prompt_tokens_cached_total {shown}\n" in metrics


def test_cold_request_is_served_warm_when_the_wish_is_ignored(complete) -> None:
    with engine(IgnoreCold()) as url:
        seen = [complete(url, list(range(300, 400)), cache_prompt=False) for _ in range(2)]
    assert [one.cached for one in seen] == [0, 99]


def test_chunks_are_fewer_than_tokens_when_they_are_big(chat) -> None:
    with engine(BigChunks(tokens=3)) as url:
        seen = chat(url, max_tokens=8, logprobs=True)
    assert (len(seen.deltas), seen.usage["completion_tokens"]) == (3, 8)  # 3 + 3 + 2
    assert [len(c["logprobs"]["content"]) for c in seen.choices if c.get("logprobs")] == [3, 3, 2]


def test_window_is_claimed_but_not_had(complete) -> None:
    with lying_engine(Behaviour(window_tokens=512, lies=(ClaimWindow(tokens=131_072),))) as url:
        props = httpx.get(f"{url}/props").json()
        models = httpx.get(f"{url}/v1/models").json()
        slots = httpx.get(f"{url}/slots").json()
        refused = complete(url, [300] * 600)
    claims = {
        props["default_generation_settings"]["n_ctx"],
        models["data"][0]["meta"]["n_ctx"],
        slots[0]["n_ctx"],
    }
    assert claims == {131_072}
    assert refused.json["error"]["n_ctx"] == 512
