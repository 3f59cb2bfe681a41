"""Without lies the engine is what an OpenAI client expects of llama.cpp, and its numbers are true."""

from __future__ import annotations

import subprocess
import sys

import httpx
import pytest

from longproof.testing import HONEST, LLAMACPP, OPENAI, VLLM, Behaviour, OverCapacity
from longproof.testing.dialects import Dialect
from longproof.testing.fake_tokenizer import render_chat, tokenizer
from longproof.testing.lying_engine import lying_engine

QUESTION = "What are the HEAD, MIDDLE and TAIL codes? Answer with the three numbers only."
CANARIES = "The HEAD code is 4821. So far. The MIDDLE code is 7360. So good. The TAIL code is 1177. "
DIALECTS = pytest.mark.parametrize("dialect", [LLAMACPP, VLLM, OPENAI], ids=lambda dialect: dialect.name)


@DIALECTS
def test_stream_has_the_openai_shape(dialect: Dialect, chat) -> None:
    with lying_engine(Behaviour(dialect=dialect)) as url:
        seen = chat(url, "Tell me a story.", max_tokens=5)
    assert (seen.status, seen.done, seen.broken) == (200, True, False)
    assert seen.headers["content-type"].startswith("text/event-stream")
    assert seen.choices[0]["delta"]["role"] == "assistant"
    assert not seen.choices[0]["delta"]["content"]
    assert len(seen.deltas) == 5
    assert [c["finish_reason"] for c in seen.choices].count("length") == 1
    assert seen.choices[-1]["finish_reason"] == "length"
    assert seen.events[-1]["choices"] == []
    ids = {event["id"] for event in seen.events}
    assert len(ids) == 1
    for event in seen.events:
        assert (event["object"], event["model"]) == ("chat.completion.chunk", "fake-135m")


@DIALECTS
def test_whole_answer_says_what_the_stream_says(dialect: Dialect, chat, complete) -> None:
    with lying_engine(Behaviour(dialect=dialect)) as url:
        streamed, whole = chat(url, "Tell me"), chat(url, "Tell me", stream=False).json
        text_streamed, text_whole = complete(url, "Tell me"), complete(url, "Tell me", stream=False).json
    assert whole["choices"][0]["message"]["content"] == streamed.text
    assert whole["object"] == "chat.completion"
    assert text_whole["choices"][0]["text"] == text_streamed.text
    for answer in (whole, text_whole):
        assert answer["choices"][0]["finish_reason"] == "length"
        assert answer["usage"]["completion_tokens"] == 8


@DIALECTS
def test_usage_counts_the_rendered_template(dialect: Dialect, chat) -> None:
    engine = lying_engine(Behaviour(dialect=dialect))
    with engine as url:
        seen = chat(url, "How are you?", max_tokens=3)
    expected = len(tokenizer().encode(render_chat([("user", "How are you?")])))
    assert seen.usage is not None
    assert seen.usage["prompt_tokens"] == expected == engine.log.last.prompt_tokens == engine.log.last.read_tokens
    assert seen.usage["completion_tokens"] == 3 == engine.log.last.output_tokens
    assert seen.usage["total_tokens"] == expected + 3
    assert engine.log.last.claimed_usage == seen.usage


def test_llamacpp_counts_before_sending_what_it_uses_after(chat) -> None:
    body = {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What now? 12 é"}]}
    with lying_engine() as url:
        counted = httpx.post(f"{url}/v1/chat/completions/input_tokens", json=body).json()["input_tokens"]
        rendered = httpx.post(f"{url}/apply-template", json=body).json()["prompt"]
        asked = {"content": rendered, "add_special": True, "parse_special": True}
        ids = httpx.post(f"{url}/tokenize", json=asked).json()["tokens"]
        back = httpx.post(f"{url}/detokenize", json={"tokens": ids}).json()["content"]
        used = chat(url, messages=body["messages"]).usage["prompt_tokens"]
    assert counted == len(ids) == used
    assert back == rendered


def test_vllm_counts_before_sending_what_it_uses_after(chat) -> None:
    messages = [{"role": "user", "content": "What now?"}]
    with lying_engine(Behaviour(dialect=VLLM, adds_bos=True)) as url:
        counted = httpx.post(f"{url}/tokenize", json={"messages": messages}).json()
        used = chat(url, messages=messages).usage["prompt_tokens"]
    assert counted["count"] == len(counted["tokens"]) == used
    assert counted["max_model_len"] == 8192


@DIALECTS
def test_codes_are_answered_and_the_answer_ends_by_itself(dialect: Dialect, chat) -> None:
    with lying_engine(Behaviour(dialect=dialect)) as url:
        seen = chat(url, CANARIES + QUESTION, max_tokens=40)
    assert (seen.text, seen.finish) == ("4821 7360 1177", "stop")


def test_exactly_as_many_tokens_come_when_eos_is_ignored(chat) -> None:
    with lying_engine() as url:
        seen = chat(url, CANARIES + QUESTION, max_tokens=40, ignore_eos=True)
    assert seen.usage["completion_tokens"] == 40
    assert seen.finish == "length"
    assert seen.text.startswith("4821 7360 1177")


def test_exact_output_cannot_be_had_from_plain_openai(chat) -> None:
    with lying_engine(Behaviour(dialect=OPENAI)) as url:
        seen = chat(url, CANARIES + QUESTION, max_tokens=40, ignore_eos=True, min_tokens=40)
    assert seen.finish == "stop"


def test_llamacpp_clamps_the_output_and_refuses_a_prompt_that_fills_the_window(complete) -> None:
    engine = lying_engine(Behaviour(window_tokens=512))
    with engine as url:
        # 510 + 16 > 512: two tokens are left
        near = complete(url, [300] * 510, max_tokens=16)
        full = complete(url, [300] * 512, max_tokens=16)
    assert (len(near.deltas), near.finish, near.usage["completion_tokens"]) == (2, "length", 2)
    assert full.status == 400
    assert full.json["error"] == {
        "code": 400,
        "message": "request (512 tokens) exceeds the available context size (512 tokens), try increasing it",
        "type": "exceed_context_size_error",
        "n_prompt_tokens": 512,
        "n_ctx": 512,
    }
    assert [entry.ending.value for entry in engine.log.requests] == ["completed", "refused"]


def test_vllm_speaks_its_own_words_at_the_edge(complete) -> None:
    with lying_engine(Behaviour(dialect=VLLM, window_tokens=512)) as url:
        near = complete(url, [300] * 511, max_tokens=16, stream_options={"include_usage": True})
        full = complete(url, [300] * 512, max_tokens=16)
        above = complete(url, [300] * 600, max_tokens=16)
        wants = complete(url, [300] * 510, max_tokens=16, min_tokens=16)
    assert near.usage["completion_tokens"] == 1
    assert full.json["error"]["message"] == "max_tokens must be at least 1, got 0."
    assert "maximum context length is 512 tokens" in above.json["error"]["message"]
    assert "less than or equal to max_tokens=2, got 16" in wants.json["error"]["message"]
    assert {answer.status for answer in (full, above, wants)} == {400}


def test_plain_openai_refuses_what_does_not_fit_with_its_output(complete) -> None:
    with lying_engine(Behaviour(dialect=OPENAI, window_tokens=64)) as url:
        fits = complete(url, "a" + " word" * 55, max_tokens=8)
        refused = complete(url, "a" + " word" * 56, max_tokens=8)  # 57 + 8 > 64
        ids = complete(url, [300] * 4)
    assert fits.status == 200
    assert (refused.status, refused.json["error"]["code"]) == (400, "context_length_exceeded")
    assert ids.status == 400


def test_prefix_is_cached_and_reported_when_it_was_seen_before(complete) -> None:
    engine = lying_engine()
    with engine as url:
        first = complete(url, list(range(300, 500)))
        again = complete(url, list(range(300, 500)))
        other_tail = complete(url, [*range(300, 400), *range(700, 800)])
        forbidden = complete(url, list(range(300, 500)), cache_prompt=False)
    # at least one token is always computed: 199 of 200; the other tail shares 100
    assert [seen.cached for seen in (first, again, other_tail, forbidden)] == [0, 199, 100, 0]
    assert [entry.cached_tokens for entry in engine.log.requests] == [0, 199, 100, 0]


def test_cached_tokens_take_no_prefill_time(complete) -> None:
    engine = lying_engine(Behaviour(prefill_tokens_per_s=1000.0))
    with engine as url:
        cold = complete(url, list(range(300, 500)))
        warm = complete(url, list(range(300, 500)))
    # 200 tokens at 1,000/s are 200 ms, 1 token is 1 ms: the simulated times, not measured ones
    assert [seen.events[-1]["timings"]["prompt_ms"] for seen in (cold, warm)] == [200.0, 1.0]
    entry = engine.log.requests[0]
    assert entry.first_token_ns - entry.admitted_ns >= 180_000_000


def test_vllm_caches_in_blocks_and_per_salt(complete) -> None:
    usage = {"stream_options": {"include_usage": True}}
    with lying_engine(Behaviour(dialect=VLLM)) as url:
        complete(url, [300] * 100, cache_salt="a")
        same = complete(url, [300] * 100, cache_salt="a", **usage)
        other = complete(url, [300] * 100, cache_salt="b", **usage)
    assert (same.cached, other.cached) == (96, 0)  # 6 blocks of 16


def test_logprobs_follow_what_was_read(chat, complete) -> None:
    with lying_engine() as url:
        one, same = (chat(url, "Hi", logprobs=True, top_logprobs=3) for _ in range(2))
        text = complete(url, "Hi", logprobs=2)
    first = [choice["logprobs"]["content"][0] for choice in one.choices if choice.get("logprobs")]
    assert first == [choice["logprobs"]["content"][0] for choice in same.choices if choice.get("logprobs")]
    assert [len(entry["top_logprobs"]) for entry in first] == [3] * 8
    assert len(text.choices[0]["logprobs"]["content"][0]["top_logprobs"]) == 2


def test_completions_report_logprobs_in_the_old_form_when_the_dialect_does(complete) -> None:
    with lying_engine(Behaviour(dialect=VLLM)) as url:
        logprobs = [choice["logprobs"] for choice in complete(url, "Hi", logprobs=2, max_tokens=2).choices]
    assert [len(entry["top_logprobs"][0]) for entry in logprobs] == [2, 2]
    # the second token begins where the first ends
    assert [entry["text_offset"][0] for entry in logprobs] == [0, len(logprobs[0]["tokens"][0])]


def test_second_request_waits_when_the_pool_is_taken(complete) -> None:
    engine = lying_engine(Behaviour(window_tokens=512, slots=1, prefill_tokens_per_s=1000.0))
    with engine as url:
        complete(url, [300] * 100)
        complete(url, [700] * 100)
    first, second = engine.log.requests
    assert second.admitted_ns >= first.finished_ns


@pytest.mark.parametrize(("policy", "status"), [("refuse", 400), ("hang", 200), ("queue", 200)])
def test_request_larger_than_the_pool_meets_the_policy(policy: str, status: int, complete) -> None:
    behaviour = Behaviour(kv_capacity_tokens=1000, over_capacity=OverCapacity(policy))
    with lying_engine(behaviour) as url, httpx.Client(timeout=1.0) as client:
        assert complete(url, [300] * 900).status == 200
        body = {"prompt": [300] * 2000, "max_tokens": 8, "stream": True}
        with client.stream("POST", f"{url}/v1/completions", json=body) as response:
            assert response.status_code == status
            if status == 400:
                assert "2008 tokens of KV cache" in response.read().decode()
            else:
                with pytest.raises(httpx.ReadTimeout):
                    response.read()
        assert complete(url, [300] * 10).status == 200  # the hung request's client left, so its place is free


def test_metrics_tell_what_was_done(complete) -> None:
    with lying_engine() as url, lying_engine(Behaviour(dialect=VLLM)) as vllm_url:
        for target in (url, vllm_url):
            complete(target, [300] * 100, max_tokens=5)
            complete(target, [300] * 100, max_tokens=5)
        llamacpp = httpx.get(f"{url}/metrics").text
        vllm = httpx.get(f"{vllm_url}/metrics").text
    # llama.cpp: 100 + 1 processed, 99 cached; vLLM: 200 queried, 6 blocks of 16 hit
    assert "llamacpp:prompt_tokens_total 101\n" in llamacpp
    assert "llamacpp:prompt_tokens_cached_total 99\n" in llamacpp
    assert "llamacpp:tokens_predicted_total 10\n" in llamacpp
    assert 'vllm:prefix_cache_hits_total{engine="0",model_name="fake-135m"} 96.0' in vllm
    assert 'vllm:time_to_first_token_seconds_count{engine="0",model_name="fake-135m"} 2.0' in vllm


def test_wrong_key_is_refused_and_health_is_open() -> None:
    with lying_engine(HONEST.but(api_key="sekret")) as url:
        assert httpx.get(f"{url}/health").status_code == 200
        wrong = httpx.get(f"{url}/v1/models", headers={"authorization": "Bearer nope"})
        right = httpx.get(f"{url}/v1/models", headers={"authorization": "Bearer sekret"})
    assert (wrong.status_code, wrong.json()["error"]["type"]) == (401, "authentication_error")
    assert right.status_code == 200


def test_unknown_model_is_refused_where_the_dialect_checks(chat) -> None:
    with lying_engine() as url:
        assert chat(url, model="nope").status == 200  # llama.cpp serves whatever it has
    for behaviour in (Behaviour(dialect=VLLM), Behaviour(dialect=OPENAI), Behaviour(checks_model=True)):
        with lying_engine(behaviour) as url:
            refused = chat(url, model="nope")
        assert refused.status == 404
        assert "`nope` does not exist" in refused.json["error"]["message"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", b"{bad"),
        ("/v1/chat/completions", b"[]"),
        ("/v1/chat/completions", b'{"messages":[]}'),
        ("/v1/chat/completions", b'{"messages":["Hi"]}'),
        ("/v1/completions", b"{}"),
        ("/v1/completions", b'{"prompt":[99999999]}'),
        ("/v1/completions", b'{"prompt":["a"]}'),
        ("/detokenize", b'{"tokens":[-1]}'),
    ],
)
def test_nonsense_is_refused(path: str, body: bytes) -> None:
    with lying_engine() as url:
        answer = httpx.post(url + path, content=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"]


def test_unknown_route_is_not_found() -> None:
    for dialect in (LLAMACPP, VLLM, OPENAI):
        with lying_engine(Behaviour(dialect=dialect)) as url:
            assert httpx.get(f"{url}/no/such/route").status_code == 404
            assert httpx.get(f"{url}/metrics").status_code == (404 if dialect is OPENAI else 200)


def test_importing_builders_loads_no_web_server() -> None:
    code = "import sys, longproof.testing.builders; sys.exit('uvicorn' in sys.modules or 'starlette' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
