"""The OpenAI stream interpreter: what is read from which shape; cuts and line ends change nothing but times."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longproof.domain.events import Channel, EndedBy, TopLogprobs, Usage
from longproof.engines.wire import OpenAIStream


def sse(*documents: object, done: bool = True) -> bytes:
    lines = [d if isinstance(d, str) else f"data: {json.dumps(d, ensure_ascii=False)}" for d in documents]
    return "".join(f"{line}\n\n" for line in [*lines, *(["data: [DONE]"] if done else [])]).encode()


def chat(delta: dict[str, object], finish: str | None = None, **more: object) -> dict[str, object]:
    return {"id": "chatcmpl-1", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **more}


def completion(text: str, finish: str | None = None, **more: object) -> dict[str, object]:
    choice: dict[str, object] = {"index": 0, "text": text, "finish_reason": finish}
    return {"id": "cmpl-1", "choices": [choice | more]}


ROLE = chat({"role": "assistant", "content": None})
USAGE = {"prompt_tokens": 31, "completion_tokens": 3, "total_tokens": 34, "prompt_tokens_details": {"cached_tokens": 7}}
LLAMACPP = sse(
    ROLE,
    chat({"content": "Hé"}),
    chat({"content": "🙂"}),
    chat({}, "length"),
    {"id": "chatcmpl-1", "choices": [], "usage": USAGE, "timings": {"cache_n": 7, "prompt_n": 24, "prompt_ms": 119.6}},
)
REASONING = sse(
    chat({"role": "assistant", "content": ""}),
    chat({"reasoning_content": "hm"}),
    chat({"reasoning": "m"}),
    chat({"content": "42"}),
    chat({}, "stop", usage={"prompt_tokens": 5, "completion_tokens": 4, "reasoning_tokens": 2}),
)
STREAMS = {
    "llamacpp": LLAMACPP,
    "reasoning": REASONING,
    "keep-alives": b": ping\n\n: ping\n\n" + LLAMACPP,
    "completions": sse(completion("a"), completion("b", "length"), {"choices": [], "usage": USAGE}),
    "error": sse(ROLE, chat({"content": "a"}), {"error": {"message": "out of memory", "code": 500}}, done=False),
    "no done": sse(completion("a", "stop"), done=False),
    "unterminated": sse(completion("a", "stop"), done=False) + b"data: [DONE]",
    "malformed": sse(completion("a"), "data: {oops", completion("b", "stop")),
    "json": b'{"choices": [{"message": {"content": "not a stream"}}]}',
    "json error": b'{"error": {"message": "no", "type": "bad", "code": 400, "n_ctx": 512}}',
    "html": b"<!doctype html>\n<p>hello: there</p>\n",
    "empty": b"",
}


def read(*pieces: bytes, max_event_bytes: int = 1 << 20) -> tuple[OpenAIStream, EndedBy]:
    """Feeds pieces at times 10, 20, 30 …, then ends the body in order."""
    stream = OpenAIStream(max_event_bytes=max_event_bytes)
    for number, piece in enumerate(pieces, start=1):
        stream.feed(piece, 10 * number)
    return stream, stream.finish(10 * (len(pieces) + 1))[0]


def facts(stream: OpenAIStream, ended: EndedBy) -> dict[str, object]:
    """Everything but times."""
    return {
        "ended": ended,
        "chunks": [(chunk.chars, chunk.channel) for chunk in stream.chunks],
        "text": stream.text,
        "reasoning": stream.reasoning,
        "comments": stream.comments,
        "finish_reason": stream.finish_reason,
        "usage": stream.usage,
        "logprobs": stream.first_logprobs,
        "error": stream.error,
        "timings": stream.engine_timings,
        "id": stream.engine_request_id,
        "malformed": stream.malformed,
        "seen": [t is not None for t in (stream.first_byte_ns, stream.first_event_ns, stream.first_token_ns)],
    }


# -- times -------------------------------------------------------------------------------------------------------------


def test_first_token_is_the_first_content_when_role_and_keep_alives_come_before() -> None:
    stream, ended = read(b": ping\n\n", sse(ROLE, done=False), sse(chat({"content": ""}), done=False), LLAMACPP)
    assert ended is EndedBy.DONE
    assert (stream.first_byte_ns, stream.first_event_ns, stream.first_token_ns) == (10, 20, 40)
    assert stream.comments == 1


def test_first_token_is_the_reasoning_when_the_answer_comes_later() -> None:
    reasoning, answer = sse(chat({"reasoning": "hm"}), done=False), sse(chat({"content": "42"}))
    stream, _ = read(reasoning, answer)
    assert (stream.first_token_ns, stream.first_answer_token_ns) == (10, 20)
    assert [chunk.channel for chunk in stream.chunks] == [Channel.REASONING, Channel.ANSWER]


def test_time_does_not_go_back_when_the_caller_s_clock_does() -> None:
    stream = OpenAIStream()
    stream.feed(sse(completion("a"), done=False), 50)
    stream.feed(sse(completion("b")), 40)
    assert [chunk.at_ns for chunk in stream.chunks] == [50, 50]


def test_progress_chunk_is_an_event_and_no_token_when_llamacpp_reports_prefill() -> None:
    progress = completion("") | {"prompt_progress": {"total": 900, "cache": 0, "processed": 512, "time_ms": 40}}
    stream, _ = read(sse(progress, done=False))
    assert stream.first_event_ns == 10
    assert stream.first_token_ns is None
    assert stream.engine_timings["prompt_progress_processed"] == 512


# -- content -----------------------------------------------------------------------------------------------------------


def test_chunks_count_characters_not_bytes() -> None:
    stream, _ = read(LLAMACPP)
    assert stream.text == "Hé🙂"
    assert [chunk.chars for chunk in stream.chunks] == [2, 1]


def test_reasoning_is_counted_once_when_both_names_carry_it() -> None:
    stream, _ = read(sse(chat({"reasoning": "abc", "reasoning_content": "abc"})))
    assert stream.reasoning == "abc"
    assert len(stream.chunks) == 1


@pytest.mark.parametrize(
    ("delta", "text"),
    [
        ({"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": '{"a'}}]}, 'f{"a'),
        ({"function_call": {"name": "g", "arguments": "1"}}, "g1"),
        ({"refusal": "I will not"}, "I will not"),
        ({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, "ab"),
    ],
)
def test_tokens_that_are_not_plain_content_count_as_content(delta: dict[str, object], text: str) -> None:
    stream, _ = read(sse(chat(delta)))
    assert stream.text == text
    assert stream.first_token_ns == 10
    assert stream.first_answer_token_ns == 10


def test_deltas_are_handed_out_in_order_with_their_text() -> None:
    stream = OpenAIStream()
    deltas = stream.feed(REASONING, 7)
    assert [(delta.text, delta.chunk.channel) for delta in deltas] == [
        ("hm", Channel.REASONING),
        ("m", Channel.REASONING),
        ("42", Channel.ANSWER),
    ]
    assert tuple(delta.chunk for delta in deltas) == tuple(stream.chunks)


def test_content_is_kept_when_a_string_holds_half_an_emoji() -> None:
    # Python's json.dumps writes a lone surrogate as an escape; it cannot be stored as UTF-8
    stream, _ = read(b'data: {"choices":[{"delta":{"content":"a\\ud83d"}}]}\n\n')
    assert stream.text == "a\ufffd"
    assert stream.malformed == ()


# -- usage, timings, ids -----------------------------------------------------------------------------------------------


def test_usage_is_read_from_the_last_chunk_without_choices() -> None:
    stream, _ = read(LLAMACPP)
    assert stream.usage == Usage(prompt_tokens=31, completion_tokens=3, cached_tokens=7)
    assert stream.engine_timings == {"cache_n": 7.0, "prompt_n": 24.0, "prompt_ms": 119.6}
    assert stream.engine_request_id == "chatcmpl-1"
    assert stream.finish_reason == "length"


def test_finish_reason_stays_when_later_chunks_have_none() -> None:
    stream, _ = read(sse(completion("a", "length"), completion(""), {"choices": [], "usage": USAGE}))
    assert stream.finish_reason == "length"


def test_usage_is_the_last_one_when_every_chunk_carries_it() -> None:
    def with_usage(tokens: int) -> dict[str, object]:
        return chat({"content": "x"}, usage={"prompt_tokens": 9, "completion_tokens": tokens})

    stream, _ = read(sse(with_usage(1), with_usage(2), {"choices": [], "usage": {"completion_tokens": 2}}))
    assert stream.usage == Usage(prompt_tokens=9, completion_tokens=2)


def test_reasoning_tokens_are_read_from_either_place() -> None:
    stream, _ = read(REASONING)
    assert stream.usage == Usage(prompt_tokens=5, completion_tokens=4, reasoning_tokens=2)
    nested = {"completion_tokens": 4, "completion_tokens_details": {"reasoning_tokens": 3}}
    assert read(sse({"choices": [], "usage": nested}))[0].usage == Usage(completion_tokens=4, reasoning_tokens=3)


def test_usage_is_none_when_the_server_sends_none() -> None:
    assert read(STREAMS["no done"])[0].usage is None
    assert read(sse(chat({"content": "a"}, usage=None)))[0].usage is None


@pytest.mark.parametrize("odd", ["12", True, -1.5, 1e300, [1], {"a": 1}])
def test_usage_field_is_absent_when_it_is_no_whole_number(odd: object) -> None:
    stream, _ = read(sse({"choices": [], "usage": {"prompt_tokens": odd, "completion_tokens": 3.0}}))
    assert stream.usage == Usage(prompt_tokens=None, completion_tokens=3)


# -- logprobs ----------------------------------------------------------------------------------------------------------


def test_first_logprobs_are_read_from_chat() -> None:
    top = [{"token": "Hello", "logprob": -0.5}, {"token": "Hi", "logprob": -2.25}]
    entry = {"token": "Hello", "logprob": -0.5, "top_logprobs": top}
    first = chat({"content": "Hello"})
    first["choices"] = [{"delta": {"content": "Hello"}, "logprobs": {"content": [entry]}}]
    later = {"choices": [{"delta": {"content": "!"}, "logprobs": {"content": [{"token": "!", "logprob": -9}]}}]}
    stream, _ = read(sse(ROLE, first, later))
    assert stream.first_logprobs == TopLogprobs(tokens=("Hello", "Hi"), logprobs=(-0.5, -2.25))


def test_first_logprobs_are_read_from_completions_in_vllm_s_shape() -> None:
    # vLLM adds the token it took to the dictionary, wherever it ranks
    logprobs = {"tokens": [" b"], "token_logprobs": [-3.0], "top_logprobs": [{" b": -3.0, " a": -0.25}]}
    stream, _ = read(sse(completion(" b", logprobs=logprobs)))
    assert stream.first_logprobs == TopLogprobs(tokens=(" a", " b"), logprobs=(-0.25, -3.0))


def test_first_logprobs_are_read_from_completions_in_llamacpp_s_shape() -> None:
    top = [{"id": 95, "token": "o", "logprob": -2.5}, {"id": 28, "token": ",", "logprob": -2.75}]
    logprobs = {"content": [{"id": 95, "token": "o", "logprob": -2.5, "top_logprobs": top}]}
    stream, _ = read(sse(completion("o", logprobs=logprobs)))
    assert stream.first_logprobs == TopLogprobs(tokens=("o", ","), logprobs=(-2.5, -2.75))


def test_logprob_is_left_out_when_python_wrote_minus_infinity() -> None:
    body = b'data: {"choices":[{"text":"a","logprobs":{"top_logprobs":[{"a":-0.5,"b":-Infinity,"c":NaN}]}}]}\n\n'
    stream, _ = read(body)
    assert stream.first_logprobs == TopLogprobs(tokens=("a",), logprobs=(-0.5,))
    assert stream.malformed == ()


# -- ends and errors ---------------------------------------------------------------------------------------------------


def test_end_is_done_when_done_came_even_unterminated() -> None:
    assert read(LLAMACPP)[1] is EndedBy.DONE
    assert read(STREAMS["unterminated"])[1] is EndedBy.DONE


def test_end_is_eof_when_the_body_ends_without_done() -> None:
    stream, ended = read(STREAMS["no done"])
    assert ended is EndedBy.EOF
    assert stream.finish_reason == "stop"
    assert read(b"")[1] is EndedBy.EOF
    assert read(b": ping\n\n")[1] is EndedBy.EOF


@pytest.mark.parametrize(
    ("wire", "message", "type_", "code"),
    [
        ('data: {"error": {"message": "m", "type": "t", "code": 503}}', "m", "t", "503"),
        ('data: {"object": "error", "message": "m", "type": "t", "code": "c"}', "m", "t", "c"),
        ('data: {"error": "m"}', "m", None, None),
        ('event: error\ndata: {"message": "m", "code": 1}', "m", None, "1"),
        ('event: error\ndata: {"error": {"message": "m"}}', "m", None, None),
        ("event: error\ndata: m", "m", None, None),
        ('error: {"message": "m"}', "m", None, None),
        ('{"error": {"message": "m"}}', "m", None, None),
    ],
)
def test_error_is_kept_when_it_comes_inside_a_200_stream(
    wire: str, message: str, type_: str | None, code: str | None
) -> None:
    stream, ended = read(sse(ROLE, wire, done=False))
    assert ended is EndedBy.EOF
    assert stream.error is not None
    assert (stream.error.message, stream.error.type, stream.error.code) == (message, type_, code)
    assert stream.error.in_stream
    assert "m" in stream.error.body


def test_error_keeps_its_numbers_and_the_first_one_wins() -> None:
    numbers = {"error": {"message": "too long", "code": 400, "n_prompt_tokens": 600, "n_ctx": 512}}
    stream, _ = read(sse(numbers, {"error": "second"}, "event: error\ndata: third"))
    assert stream.error is not None
    assert stream.error.message == "too long"
    assert stream.error.fields == {"n_prompt_tokens": 600, "n_ctx": 512}


def test_null_error_is_none_when_every_chunk_has_the_field() -> None:
    stream, _ = read(sse(chat({"content": "a"}, error=None)))
    assert stream.error is None
    assert stream.text == "a"


def test_body_is_an_error_when_a_200_is_plain_json_with_one() -> None:
    stream, ended = read(STREAMS["json error"])
    assert ended is EndedBy.EOF
    assert stream.error is not None
    assert stream.error.fields == {"n_ctx": 512}
    assert stream.malformed == ()


@pytest.mark.parametrize("name", ["json", "html"])
def test_body_is_bad_when_it_is_no_event_stream(name: str) -> None:
    stream, ended = read(STREAMS[name])
    assert ended is EndedBy.BAD_BODY
    assert stream.error is None
    assert stream.malformed == (STREAMS[name].decode(),)


def test_bad_body_is_one_fault_when_it_has_many_lines() -> None:
    stream, ended = read(json.dumps({"choices": [{"text": "a"}]}, indent=1).encode())
    assert ended is EndedBy.BAD_BODY
    assert len(stream.malformed) == 1


def test_malformed_events_are_recorded_and_the_rest_is_read() -> None:
    stream, ended = read(sse(completion("a"), "data: {oops", "data: [1]", "data:", completion("b", "stop")))
    assert ended is EndedBy.DONE
    assert stream.text == "ab"
    assert stream.malformed == ("{oops", "[1]")


def test_malformed_list_is_bounded_when_a_server_talks_nonsense() -> None:
    stream, _ = read(sse(*["data: " + "x" * 900] * 40))
    assert len(stream.malformed) == 17
    assert stream.malformed[0] == "x" * 512
    assert stream.malformed[-1] == "… and 24 more"  # 40 events, 16 kept


def test_nothing_after_done_is_believed() -> None:
    stream, _ = read(LLAMACPP + sse(completion("late")))
    assert stream.text == "Hé🙂"
    assert len(stream.malformed) == 2  # the late chunk and the second [DONE]


def test_overflow_is_a_clear_fault_when_a_line_has_no_end() -> None:
    stream, ended = read(sse(ROLE, done=False), b"data: " + b"x" * 300, b"\n\n" + LLAMACPP, max_event_bytes=256)
    assert stream.overflow
    assert stream.malformed == ("an event of more than 256 bytes",)
    assert ended is EndedBy.EOF
    assert stream.first_token_ns is None


# -- cuts --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STREAMS)
def test_facts_are_the_same_when_the_body_is_cut_at_every_byte(name: str) -> None:
    body = STREAMS[name]
    whole = facts(*read(body))
    assert facts(*read(*(body[at : at + 1] for at in range(len(body))))) == whole
    for at in range(len(body)):
        assert facts(*read(body[:at], body[at:])) == whole, at


@pytest.mark.parametrize("end", [b"\r\n", b"\r"])
@pytest.mark.parametrize("name", [name for name in STREAMS if name not in ("html", "json", "json error")])
def test_facts_are_the_same_when_lines_end_another_way(name: str, end: bytes) -> None:
    body = STREAMS[name].replace(b"\n", end)
    whole = facts(*read(STREAMS[name]))
    assert facts(*read(body)) == whole
    assert facts(*read(*(body[at : at + 1] for at in range(len(body))))) == whole


CHUNKS = st.one_of(
    st.text(max_size=8).map(lambda text: chat({"content": text})),
    st.text(max_size=8).map(lambda text: chat({"reasoning_content": text})),
    st.text(max_size=8).map(completion),
    st.sampled_from(["stop", "length"]).map(lambda why: chat({}, why)),
    st.integers(0, 9).map(lambda n: {"choices": [], "usage": {"prompt_tokens": n, "completion_tokens": n}}),
    st.sampled_from([ROLE, ": ping", "data:", "data: {oops", "event: error\ndata: x", "{}"]),
)


@given(
    documents=st.lists(CHUNKS, max_size=10),
    done=st.booleans(),
    end=st.sampled_from([b"\n", b"\r\n", b"\r"]),
    data=st.data(),
)
def test_any_stream_gives_the_same_facts_in_causal_order_when_cut_anywhere(
    documents: list[object], done: bool, end: bytes, data: st.DataObject
) -> None:
    body = sse(*documents, done=done).replace(b"\n", end)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(body)), max_size=8)))
    pieces = [body[a:b] for a, b in pairwise([0, *cuts, len(body)])]
    stream, ended = read(*pieces)
    assert facts(stream, ended) == facts(*read(body))
    seen = [stream.first_byte_ns, stream.first_event_ns, stream.first_token_ns, *(c.at_ns for c in stream.chunks)]
    times = [time for time in seen if time is not None]
    assert times == sorted(times)
    assert (stream.first_token_ns is None) == (not stream.chunks)


@given(
    pieces=st.lists(
        st.one_of(
            st.binary(max_size=80),
            st.recursive(
                st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=4),
                lambda inner: (
                    st.lists(inner, max_size=3)
                    | st.dictionaries(
                        st.sampled_from(
                            [
                                "choices",
                                "delta",
                                "content",
                                "usage",
                                "error",
                                "logprobs",
                                "top_logprobs",
                                "text",
                                "timings",
                            ]
                        ),
                        inner,
                        max_size=4,
                    )
                ),
                max_leaves=12,
            ).map(lambda value: f"data: {json.dumps(value)}\n\n".encode()),
        ),
        max_size=8,
    )
)
def test_nothing_raises_when_the_bytes_are_arbitrary(pieces: list[bytes]) -> None:
    stream, ended = read(*pieces, max_event_bytes=512)
    assert ended in (EndedBy.DONE, EndedBy.EOF, EndedBy.BAD_BODY)
    # everything kept can be written as evidence: UTF-8, finite numbers
    json.dumps(facts(stream, ended), default=repr, allow_nan=False, ensure_ascii=False).encode()


@pytest.mark.parametrize(
    "body", [b'{"a":' * 100_000, b"[" * 100_000, b'{"usage":{"prompt_tokens":' + b"9" * 5000 + b"}}"]
)
def test_nothing_raises_when_json_is_monstrous(body: bytes) -> None:
    stream, _ = read(b"data: " + body + b"\n\n")
    assert stream.usage in (None, Usage())
