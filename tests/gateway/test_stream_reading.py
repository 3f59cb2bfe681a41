"""What the gateway reads out of engines' answers while they pass: usage, events, refusals."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from longproof.domain.events import Usage
from longproof.gateway.replies import busy_in_stream, is_error_event, tokenless_events
from longproof.gateway.sse_events import EventFlow
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
    assert flow.events == 4  # three tokens, and the usage
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
    assert flow.events == 1
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
    ("first", "code"),
    [
        (b'data: {"error":{"message":"busy","code":503}}\n\n', 503),
        (b'data: {"error": {"message": "busy", "code": 429}}\n\ndata: [DONE]\n\n', 429),
        (b'data: {"error":{"message":"no memory","code":500}}\n\n', None),
        (b'data: {"error":"busy"}\n\n', None),
        (b'data: {"error', None),
        (TOKEN, None),
    ],
)
def test_a_refusal_inside_a_stream_is_one_only_when_it_says_so(first: bytes, code: int | None) -> None:
    assert busy_in_stream(first) == code


def test_an_error_is_seen_when_it_follows_a_token_in_one_read() -> None:
    assert is_error_event(TOKEN + b'data: {"error":{"message":"gone"}}\n\n')
    assert not is_error_event(b'data: {"choices":[{"delta":{"content":"\\n\\ndata: {\\"error\\""}}]}\n\n')


ROLE = b'data: {"choices":[{"delta":{"role":"assistant","content":""},"finish_reason":null}]}\n\n'


@pytest.mark.parametrize(
    ("data", "tokenless"),
    [
        (ROLE, 1),
        (b'data: {"choices":[{"delta":{"role":"assistant","content":null}}]}\n\n', 1),
        (b'data: {"choices":[{"delta":{"role":"assistant","content":"A"}}]}\n\n', 0),
        (TOKEN, 0),
        (ROLE + TOKEN, 1),
        (b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\n', 1),
        (TOKEN + b'data: {"choices":[{"finish_reason": "length", "delta": {"content": ""}}]}\n\n', 1),
        (b'data: {"choices":[{"text":"","finish_reason":"stop"}]}\n\n', 1),
        (b'data: {"choices":[{"delta":{"content":"."},"finish_reason":"stop"}]}\n\n', 0),
        (b'data: {"choices":[{"delta":{"role":"assistant","content":""},"finish_reason":"stop"}]}\n\n', 1),
    ],
)
def test_role_and_finish_are_no_tokens_when_they_come_alone(data: bytes, tokenless: int) -> None:
    assert tokenless_events(data, begun=False) == tokenless


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
