"""What the gateway reads out of engines' answers while they pass: usage, events, refusals."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from longproof.domain.events import Usage
from longproof.gateway.answers import misplaced_error
from longproof.gateway.sse_events import EventFlow, error_at_first, is_error_event
from longproof.gateway.upstream import retry_after_ns
from longproof.gateway.usage import usage_in

USAGE = {"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}}
TOKEN = b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n'
ONLY_USAGE = b'data: {"choices":[],"usage":' + json.dumps(USAGE).encode() + b"}\n\n"
DONE = b"data: [DONE]\n\n"
NS_PER_S = 1_000_000_000
UNTIMED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""How long a draw takes is about the machine."""


@UNTIMED
@given(text=st.text(), before=st.booleans(), detail=st.dictionaries(st.text(max_size=4), st.integers(), max_size=3))
def test_usage_is_found_whatever_the_answer_says(text: str, before: bool, detail: dict[str, int]) -> None:
    said = {"choices": [{"message": {"content": f'"usage":{{"prompt_tokens":1}}{text}'}}]}
    usage = {"usage": {**USAGE, "completion_tokens_details": detail}}
    body = json.dumps({**usage, **said} if before else {**said, **usage}).encode()
    found = usage_in(body)
    assert found is not None
    assert (found.prompt_tokens, found.completion_tokens, found.cached_tokens) == (9, 2, 4)


@pytest.mark.parametrize(
    ("usage", "found"),
    [
        (None, None),
        ({}, None),
        ({"prompt_tokens": -1}, None),
        ({"prompt_tokens": "9"}, None),
        ({"prompt_tokens": 9}, Usage(prompt_tokens=9)),
        # more than the whole prompt cannot have come from a cache
        ({"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 10}}, Usage(prompt_tokens=9)),
    ],
)
def test_only_counts_that_can_be_are_believed(usage: object, found: Usage | None) -> None:
    assert usage_in(json.dumps({"usage": usage}).encode()) == found


@UNTIMED
@given(cuts=st.lists(st.integers(1, len(TOKEN * 3 + ONLY_USAGE + DONE) - 1), max_size=8))
def test_a_stream_without_our_usage_comes_out_wherever_it_is_cut(cuts: list[int]) -> None:
    whole = TOKEN * 3 + ONLY_USAGE + DONE
    places = sorted({0, *cuts, len(whole)})
    flow = EventFlow(hide_usage=True)
    out = b"".join(flow.take(whole[a:b]) for a, b in pairwise(places)) + flow.end()
    assert out == TOKEN * 3 + DONE
    assert flow.done
    assert flow.tokens == 3
    assert flow.usage is not None
    assert flow.usage.prompt_tokens == 9


@UNTIMED
@given(cuts=st.lists(st.integers(1, 400), max_size=8))
def test_nothing_is_changed_when_the_client_asked_for_usage(cuts: list[int]) -> None:
    whole = TOKEN * 3 + ONLY_USAGE + DONE
    places = sorted({0, *(cut for cut in cuts if cut < len(whole)), len(whole)})
    flow = EventFlow(hide_usage=False)
    assert b"".join(flow.take(whole[a:b]) for a, b in pairwise(places)) + flow.end() == whole
    assert flow.done
    assert flow.usage is not None


@pytest.mark.parametrize("hide", [True, False])
def test_half_an_event_is_no_part_of_the_answer_when_the_rest_never_comes(hide: bool) -> None:
    flow = EventFlow(hide_usage=hide)
    assert flow.take(TOKEN + b'data: {"choices":[{"del') + flow.end() == TOKEN
    assert flow.tokens == 1
    error = b'data: {"error":{"message":"gone"}}'  # whole, though nothing ends it
    assert EventFlow(hide_usage=hide).take(error) == b""
    flow = EventFlow(hide_usage=hide)
    assert flow.take(TOKEN + error) + flow.end() == TOKEN + error


def test_the_end_is_seen_when_its_blank_line_is_missing() -> None:
    for hide in (True, False):
        flow = EventFlow(hide_usage=hide)
        out = flow.take(TOKEN + b"data: [DONE]") + flow.end()
        assert out == TOKEN + b"data: [DONE]"
        assert flow.done


@pytest.mark.parametrize(
    ("first", "status"),
    [
        (b'data: {"error":{"message":"busy","code":503}}\n\n', 503),
        (b'data: {"error": {"message": "busy", "code": 429}}\n\ndata: [DONE]\n\n', 429),
        (b'data: {"error":{"message":"busy","code":503}}\r\n\r\n', 503),
        (b'event: error\ndata: {"error":{"message":"too long","code":400}}\n\n', 400),
        (b'data: {"error":{"message":"no memory","code":"oom"}}\n\n', 502),
        (b'data: {"error":"busy"}\n\n', 502),
    ],
)
def test_an_error_that_comes_first_has_the_status_it_names(first: bytes, status: int) -> None:
    error = error_at_first(first)
    assert error is not None
    assert misplaced_error(error) == status


@pytest.mark.parametrize(
    "data", [TOKEN, b'data: {"error":null,"choices":[{"delta":{"content":"x"}}]}\n\n', b": ping\n\n", DONE, b""]
)
def test_what_is_no_error_is_not_taken_for_one(data: bytes) -> None:
    assert error_at_first(data) is None
    assert not is_error_event(data)
    assert misplaced_error(data) is None


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n"])
@pytest.mark.parametrize("size", [1, 5, 1_000])
def test_an_error_in_the_middle_is_a_failure_however_lines_end_and_wherever_it_is_cut(end: bytes, size: int) -> None:
    whole = (TOKEN * 2 + b'data: {"error":{"message":"gone"}}\n\n').replace(b"\n\n", end)
    flow = EventFlow(hide_usage=True)
    out = b"".join(flow.take(whole[at : at + size]) for at in range(0, len(whole), size)) + flow.end()
    assert (out, flow.failed, flow.done, flow.tokens) == (whole, True, False, 2)
    assert flow.closing(1) == DONE  # it was ended in order: the client is told so


def test_a_stream_without_its_last_event_is_whole_when_all_choices_said_why_they_ended() -> None:
    stop = b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\n'
    for data, choices, closing in (
        (TOKEN + stop, 1, DONE),
        (TOKEN + stop, 2, None),
        (TOKEN + stop * 2, 2, DONE),
        (TOKEN, 1, None),
        (b"", 1, None),
        (TOKEN + stop + DONE, 1, b""),
        (TOKEN + DONE, 1, b""),
    ):
        flow = EventFlow(hide_usage=False)
        assert flow.take(data) + flow.end() == data
        assert flow.closing(choices) == closing
    flow = EventFlow(hide_usage=False)
    flow.take(TOKEN + stop[:-2])
    flow.end()
    assert flow.closing(1) == b"\n\n" + DONE  # whose blank line was missing


def test_a_text_that_speaks_of_events_is_one_token_when_it_is_one() -> None:
    flow = EventFlow(hide_usage=False)
    flow.take(b'data: {"choices":[{"delta":{"content":"data: data: [DONE] \\ndata: error"}}]}\n\n')
    assert (flow.tokens, flow.done, flow.failed) == (1, False, False)


def test_usage_in_every_event_is_no_reason_to_stop_counting() -> None:
    flow = EventFlow(hide_usage=True)
    said = b'data: {"choices":[{"delta":{"content":"x"}}],"usage":{"prompt_tokens":9,"completion_tokens":%d}}\n\n'
    out = b"".join(flow.take(said % n) for n in range(1, 6))
    assert out == b"".join(said % n for n in range(1, 6))
    assert flow.tokens == 5


def test_an_error_is_seen_when_it_follows_a_token_in_one_read() -> None:
    assert is_error_event(TOKEN + b'data: {"error":{"message":"gone"}}\n\n')
    assert not is_error_event(b'data: {"choices":[{"delta":{"content":"\\n\\ndata: {\\"error\\""}}]}\n\n')


ROLE = b'data: {"choices":[{"delta":{"role":"assistant","content":""},"finish_reason":null}]}\n\n'


@pytest.mark.parametrize(
    ("data", "tokens"),
    [
        (ROLE, 0),
        (b'data: {"choices":[{"delta":{"role":"assistant","content":null}}]}\n\n', 0),
        (b'data: {"choices":[{"delta":{"role":"assistant","content":"A"}}]}\n\n', 1),
        (TOKEN, 1),
        (ROLE + TOKEN, 1),
        (b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\n', 0),
        (TOKEN + b'data: {"choices":[{"finish_reason": "length", "delta": {"content": ""}}]}\n\n', 1),
        (b'data: {"choices":[{"text":"","finish_reason":"stop"}]}\n\n', 0),
        (b'data: {"choices":[{"delta":{"content":"."},"finish_reason":"stop"}]}\n\n', 1),
        (b'data: {"choices":[{"delta":{"role":"assistant","content":""},"finish_reason":"stop"}]}\n\n', 0),
    ],
)
@pytest.mark.parametrize("size", [1, 40, 1_000])
def test_role_and_finish_are_no_tokens_when_they_come_alone(data: bytes, tokens: int, size: int) -> None:
    flow = EventFlow(hide_usage=False)
    for at in range(0, len(data), size):
        flow.take(data[at : at + size])
    assert flow.tokens == tokens


@pytest.mark.parametrize(
    ("header", "ns"),
    [
        (None, None),
        ("7", 7 * NS_PER_S),
        ("0.5", NS_PER_S // 2),
        ("-3", 0),
        ("99999999", 3_600 * NS_PER_S),
        ("soon", None),
        ("nan", None),
        ("inf", None),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0),
    ],
)
def test_retry_after_is_read_and_never_kept_for_longer_than_an_hour(header: str | None, ns: int | None) -> None:
    assert retry_after_ns(header) == ns
