"""Lies in the bytes of the stream."""

from __future__ import annotations

import httpx
import pytest

from longproof.testing import HONEST, OPENAI, VLLM, Behaviour
from longproof.testing.engine_log import Ending
from longproof.testing.lies import (
    Crash,
    CrlfLines,
    CutStream,
    EmptyAnswer,
    ErrorInStream,
    FinishWith,
    KeepAlive,
    Lie,
    NoDone,
    ReasoningFirst,
    RoleEarly,
    SlowPrefill,
    SplitUtf8,
    StallStream,
)
from longproof.testing.lying_engine import LyingEngine, lying_engine

NEVER_S = 600.0  # longer than any test: whatever comes before it came without it


def collect(response: httpx.Response, lines: list[str]) -> None:
    """Adds the lines as they come, so that those before a timeout are kept."""
    for line in response.iter_lines():
        lines.append(line)


def engine(*lies: Lie) -> LyingEngine:
    return lying_engine(HONEST.lying(*lies))


@pytest.mark.parametrize("after", [0, 3])
def test_error_object_comes_inside_a_200_stream(after, chat) -> None:
    under_test = engine(ErrorInStream(after_tokens=after, message="out of memory"))
    with under_test as url:
        seen = chat(url)
        whole = chat(url, stream=False)
    assert (seen.status, len(seen.deltas), seen.finish, seen.usage) == (200, after, None, None)
    assert seen.events[-1]["error"]["message"] == "out of memory"
    assert (seen.done, seen.broken) == (True, False)
    assert whole.status == 500
    assert [entry.ending for entry in under_test.log.requests] == [Ending.ERROR] * 2


def test_error_event_has_a_name_and_no_done_when_the_lie_says_so(chat) -> None:
    with engine(ErrorInStream(form="event", then_done=False)) as url:
        seen = chat(url)
    assert b"event: error\ndata: {" in seen.raw
    assert not seen.done


@pytest.mark.parametrize("after", [0, 3])
def test_connection_is_closed_mid_body_when_the_stream_is_cut(after, chat, complete) -> None:
    under_test = engine(CutStream(after_tokens=after))
    with under_test as url:
        for seen in (chat(url), complete(url, "Hi")):
            assert (seen.status, seen.broken, seen.done, len(seen.deltas)) == (200, True, False, after)
            assert seen.finish is None
        assert chat(url, stream=False).broken
    assert {entry.ending for entry in under_test.log.requests} == {Ending.CUT}


def test_stream_ends_inside_an_event_when_cut_there(chat) -> None:
    with engine(CutStream(after_tokens=2, where="in_event")) as url:
        seen = chat(url)
    assert seen.broken
    assert not seen.raw.endswith(b"\n\n")
    assert len(seen.deltas) == 2


def test_stream_ends_inside_a_character_when_cut_there(chat) -> None:
    with engine(CutStream(after_tokens=2, where="in_utf8")) as url:
        seen = chat(url)
    assert seen.broken
    assert seen.raw.endswith(b" na" + "ï".encode()[:1])


def test_done_is_missing_but_all_else_is_there(chat) -> None:
    with engine(NoDone()) as url:
        seen = chat(url)
    assert (seen.done, seen.broken, seen.finish, seen.usage["completion_tokens"]) == (False, False, "length", 8)


@pytest.mark.parametrize(
    ("content", "delta"),
    [
        ("null", {"role": "assistant", "content": None}),
        ("empty", {"role": "assistant", "content": ""}),
        ("absent", {"role": "assistant"}),
    ],
)
def test_role_chunk_comes_before_anything_is_computed(content, delta, chat) -> None:
    under_test = engine(RoleEarly(content=content), SlowPrefill(delay_s=NEVER_S))
    body = {"messages": [{"role": "user", "content": "Hi"}], "stream": True}
    with under_test as url, httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=60) as response:
        line = next(response.iter_lines())
        assert under_test.log.last.first_token_ns is None
    assert '"role":"assistant"' in line
    with engine(RoleEarly(content=content)) as url:
        choices = chat(url).choices
    assert [choice["delta"] for choice in choices if "role" in choice["delta"]] == [delta]


def test_empty_text_chunk_comes_early_when_it_is_a_completion(complete) -> None:
    with engine(RoleEarly()) as url:
        seen = complete(url, "Hi")
    assert seen.choices[0]["text"] == ""
    assert len(seen.deltas) == 8


def test_comments_keep_the_connection_alive_during_prefill(chat) -> None:
    under_test = engine(KeepAlive(every_s=0.01), SlowPrefill(delay_s=NEVER_S))
    body = {"messages": [{"role": "user", "content": "Hi"}], "stream": True}
    with under_test as url, httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=60) as response:
        lines = response.iter_lines()
        seen = [next(lines) for _ in range(6)]
        assert under_test.log.last.first_token_ns is None
    assert seen == [": keep-alive", ""] * 3
    with engine(KeepAlive(every_s=0.01), SlowPrefill(delay_s=0.05)) as url:
        assert len(chat(url).deltas) == 8


def test_not_one_token_comes_when_the_answer_is_empty(chat) -> None:
    for behaviour in (HONEST, Behaviour(dialect=VLLM), Behaviour(dialect=OPENAI)):
        with lying_engine(behaviour.lying(EmptyAnswer())) as url:
            seen = chat(url)
        assert (seen.status, seen.deltas, seen.finish, seen.done) == (200, [], "stop", True)
        assert seen.usage["completion_tokens"] == 0


def test_finish_reason_is_abort_when_the_server_gives_up(chat) -> None:
    with engine(FinishWith(reason="abort", after_tokens=1)) as url:
        seen = chat(url)
    assert (len(seen.deltas), seen.finish) == (1, "abort")


def test_lines_end_in_crlf_when_the_lie_says_so(chat) -> None:
    with engine(CrlfLines(), KeepAlive(), SlowPrefill(delay_s=0.01)) as url:
        seen = chat(url)
    assert seen.raw.count(b"\r\n") == seen.raw.count(b"\n") > 0
    assert len(seen.deltas) == 8


def test_characters_are_split_between_two_reads(chat) -> None:
    with engine(SplitUtf8()) as url:
        seen = chat(url, max_tokens=9)
    assert "é" in seen.text
    assert seen.usage["completion_tokens"] == 9
    torn = [part for part in seen.parts if part[-1] >= 0xC0]
    assert torn
    with pytest.raises(UnicodeDecodeError):
        torn[0].decode()


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_first_tokens_are_reasoning_in_the_field_asked_for(field, chat) -> None:
    lie = ReasoningFirst(tokens=3, field=field)
    with engine(lie) as url:
        seen = chat(url)
        whole = chat(url, stream=False).json["choices"][0]["message"]
    thought = [choice["delta"][field] for choice in seen.choices if field in choice["delta"]]
    assert (len(thought), len(seen.deltas), seen.usage["completion_tokens"]) == (3, 5, 8)
    assert (whole[field], whole["content"]) == ("".join(thought), seen.text)
    with lying_engine(Behaviour(dialect=OPENAI, lies=(lie,))) as url:
        assert chat(url).usage["completion_tokens_details"] == {"reasoning_tokens": 3}


def test_nothing_comes_for_a_while_when_the_stream_stalls() -> None:
    under_test = engine(StallStream(after_tokens=2, for_s=NEVER_S))
    body = {"prompt": "Hi", "stream": True, "max_tokens": 8}
    with under_test as url, httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=1.0) as response:
        lines: list[str] = []
        with pytest.raises(httpx.ReadTimeout):
            collect(response, lines)
    assert len([line for line in lines if line.startswith("data: ")]) == 2


def test_connection_is_reset_after_some_tokens_when_the_engine_crashes(chat) -> None:
    under_test = engine(Crash(after_tokens=3))
    with under_test as url:
        seen = chat(url)
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{url}/health")
    assert (seen.broken, seen.done) == (True, False)
    assert under_test.log.last.output_tokens == 3
    assert under_test.log.last.ending is Ending.CRASHED
