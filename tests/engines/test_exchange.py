"""One streamed request against servers that break in every way: nothing raises, and everything seen is kept."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import pytest

from longproof.clock import SystemClock
from longproof.domain.events import EndedBy, RequestTimeline
from longproof.domain.outcome import Outcome, classify
from longproof.domain.request import GenerationRequest, IdsPrompt, TextPrompt
from longproof.engines.base import OnContent
from longproof.engines.link import Link
from longproof.engines.openai import OpenAIEngine
from longproof.testing.scripted_http import HANG, Reply, ScriptedHttp

PATH = "POST /v1/completions"
DONE = b"data: [DONE]\n\n"


def token(text: str, finish: str | None = None) -> bytes:
    choice = {"index": 0, "text": text, "finish_reason": finish}
    return f"data: {json.dumps({'id': 'cmpl-7', 'choices': [choice]})}\n\n".encode()


async def send(
    reply: Reply, *, on_content: OnContent | None = None, timeout_s: float = 20.0, max_tokens: int = 8
) -> RequestTimeline:
    async with ScriptedHttp({PATH: reply}) as server:
        engine = OpenAIEngine(Link(server.url), model="m")
        try:
            request = GenerationRequest(prompt=TextPrompt(text="x"), max_tokens=max_tokens, timeout_s=timeout_s)
            return await engine.send(request, on_content=on_content)
        finally:
            await engine.aclose()


async def test_timeline_holds_everything_when_all_goes_well() -> None:
    timeline = await send(
        Reply.stream(token("a"), token("b", "length"), DONE, x_request_id="r-1", set_cookie="secret=1", server="s")
    )
    assert timeline.ended_by is EndedBy.DONE
    assert (timeline.status, timeline.text, timeline.finish_reason) == (200, "ab", "length")
    assert timeline.headers == {"content-type": "text/event-stream", "server": "s", "x-request-id": "r-1"}
    assert timeline.engine_request_id == "cmpl-7"
    assert len(timeline.request_id) == 32
    stamps = [
        timeline.submitted_ns,
        timeline.headers_ns,
        timeline.first_byte_ns,
        timeline.first_event_ns,
        timeline.first_token_ns,
        timeline.finished_ns,
    ]
    assert None not in stamps
    assert stamps == sorted(stamps, key=lambda stamp: stamp or 0)


class CountingClock(SystemClock):
    """Counts how often it is read."""

    def __init__(self) -> None:
        self.readings = 0

    def now_ns(self) -> int:
        self.readings += 1
        return self.readings


async def test_submission_is_the_last_moment_before_the_answer_and_not_before_the_connection() -> None:
    async with ScriptedHttp({PATH: Reply.stream(token("a", "stop"), DONE)}) as server:
        engine = OpenAIEngine(Link(server.url, clock=CountingClock()), model="m")
        timeline = await engine.send(GenerationRequest(prompt=TextPrompt(text="x"), max_tokens=1))
        await engine.aclose()
    # reading 1 is before connecting (it stands when no connection comes about), 2 as the body leaves, 3 at the headers
    assert (timeline.submitted_ns, timeline.headers_ns) == (2, 3)


async def test_end_is_done_when_the_server_keeps_the_body_open_after_done() -> None:
    timeline = await send(Reply.stream(token("a", "stop"), DONE, HANG))
    assert timeline.ended_by is EndedBy.DONE
    assert classify(timeline) is Outcome.COMPLETED


async def test_end_is_eof_when_done_is_missing() -> None:
    timeline = await send(Reply.stream(token("a", "stop")))
    assert timeline.ended_by is EndedBy.EOF
    assert classify(timeline) is Outcome.COMPLETED


async def test_end_is_cut_with_all_that_was_seen_when_the_connection_breaks_in_the_body() -> None:
    timeline = await send(Reply.stream(token("a"), b"data: {half", 0.05, reset="end"))
    assert timeline.ended_by is EndedBy.CUT
    assert (timeline.status, timeline.text) == (200, "a")
    assert timeline.transport_error
    assert timeline.malformed == ()
    assert classify(timeline) is Outcome.CUT


async def test_end_is_unreachable_when_the_connection_is_reset_before_the_headers() -> None:
    timeline = await send(Reply(reset="now"))
    assert timeline.ended_by is EndedBy.UNREACHABLE
    assert timeline.status is None
    assert timeline.transport_error
    assert classify(timeline) is Outcome.UNREACHABLE


async def test_end_is_unreachable_when_nobody_listens() -> None:
    async with ScriptedHttp({}) as server:
        url = server.url
    engine = OpenAIEngine(Link(url), model="m")
    timeline = await engine.send(GenerationRequest(prompt=TextPrompt(text="x"), max_tokens=1))
    assert timeline.ended_by is EndedBy.UNREACHABLE
    assert "ConnectError" in (timeline.transport_error or "")
    await engine.aclose()


async def test_end_is_unreachable_when_tls_fails() -> None:
    async with ScriptedHttp({}) as server:
        engine = OpenAIEngine(Link(server.url.replace("http:", "https:")), model="m")
        timeline = await engine.send(GenerationRequest(prompt=TextPrompt(text="x"), max_tokens=1))
        assert timeline.ended_by is EndedBy.UNREACHABLE
        assert timeline.transport_error
        await engine.aclose()


async def test_error_is_kept_verbatim_with_its_numbers_when_the_status_says_error() -> None:
    error = {
        "code": 400,
        "message": "request (600 tokens) exceeds …",
        "type": "exceed_context_size_error",
        "n_ctx": 512,
    }
    timeline = await send(Reply.json({"error": error}, status=400))
    assert timeline.ended_by is EndedBy.HTTP_ERROR
    assert timeline.error is not None
    assert timeline.error.fields == {"n_ctx": 512}
    assert json.loads(timeline.error.body) == {"error": error}
    assert not timeline.error.in_stream
    assert classify(timeline) is Outcome.REFUSED_LENGTH


async def test_retry_after_is_kept_when_the_server_is_busy() -> None:
    timeline = await send(Reply.json({"error": {"message": "queue full"}}, status=429, retry_after="7"))
    assert timeline.headers["retry-after"] == "7"
    assert classify(timeline) is Outcome.REFUSED_BUSY


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ('{"object":"error","message":"old vLLM","type":"BadRequestError","code":400}', "old vLLM"),
        ('{"detail":"fastapi"}', "fastapi"),
        ('{"detail":[{"loc":["body"],"msg":"field required"}]}', '[{"loc":["body"],"msg":"field required"}]'),
        ('{"error":"only words"}', "only words"),
        ('{"message":"a gateway"}', "a gateway"),
        ("<html>502 Bad Gateway</html>", "<html>502 Bad Gateway</html>"),
        ("", ""),
    ],
)
async def test_error_has_words_whatever_shape_it_comes_in(body: str, message: str) -> None:
    timeline = await send(Reply.text(body, status=502))
    assert timeline.error is not None
    assert (timeline.error.message, timeline.error.body) == (message, body)
    assert classify(timeline) is Outcome.SERVER_ERROR


async def test_error_body_is_cut_at_8_kib_when_it_is_longer() -> None:
    timeline = await send(Reply(status=500, pieces=(b"x" * 9000, HANG)), timeout_s=5.0)
    assert timeline.error is not None
    assert timeline.error.body == "x" * 8192
    assert timeline.transport_error is None  # nobody waited for the rest


async def test_error_status_stands_when_its_body_never_ends() -> None:
    timeline = await send(Reply(status=500, pieces=(b"half of it", HANG)), timeout_s=1.0)
    assert timeline.ended_by is EndedBy.HTTP_ERROR
    assert timeline.error is not None
    assert timeline.error.body == "half of it"
    assert timeline.transport_error == "the error's body did not end in time"


async def test_end_is_timeout_when_headers_come_and_no_token() -> None:
    timeline = await send(Reply.stream(b": keep-alive\n\n", HANG), timeout_s=1.0)
    assert timeline.ended_by is EndedBy.TIMEOUT
    assert timeline.status == 200
    assert timeline.first_byte_ns is not None
    assert timeline.first_event_ns is None
    assert classify(timeline) is Outcome.HUNG
    assert timeline.e2e_ns >= 0.9e9  # timers count in floats and may end a hair early


async def test_end_is_timeout_with_the_text_when_tokens_stop_coming() -> None:
    timeline = await send(Reply.stream(token("a"), HANG), timeout_s=1.0)
    assert timeline.text == "a"
    assert classify(timeline) is Outcome.TIMED_OUT


async def test_end_is_timeout_when_not_even_headers_come() -> None:
    timeline = await send(Reply(before_s=HANG), timeout_s=0.3)
    assert timeline.ended_by is EndedBy.TIMEOUT
    assert timeline.status is None
    assert classify(timeline) is Outcome.HUNG


async def test_end_is_bad_body_when_json_answers_a_stream_request() -> None:
    timeline = await send(Reply.json({"choices": [{"text": "all at once"}]}))
    assert timeline.ended_by is EndedBy.BAD_BODY
    assert "all at once" in timeline.malformed[0]
    assert classify(timeline) is Outcome.NOT_A_STREAM


async def test_error_is_believed_when_json_with_200_is_one() -> None:
    timeline = await send(Reply.json({"error": {"message": "no such model"}}))
    assert timeline.error is not None
    assert timeline.error.in_stream
    assert classify(timeline) is Outcome.ERROR_IN_STREAM


async def test_end_is_bad_body_when_the_server_redirects() -> None:
    timeline = await send(Reply.text("", status=307, location="http://127.0.0.1:1/elsewhere"))
    assert timeline.ended_by is EndedBy.BAD_BODY
    assert timeline.transport_error == "redirected to http://127.0.0.1:1/elsewhere"


async def test_error_in_the_stream_is_told_from_a_cut() -> None:
    timeline = await send(Reply.stream(token("a"), b'data: {"error": {"message": "boom", "code": 500}}\n\n', DONE))
    assert timeline.ended_by is EndedBy.DONE
    assert classify(timeline) is Outcome.ERROR_IN_STREAM


async def test_connection_is_closed_when_the_listener_has_had_enough() -> None:
    async with ScriptedHttp({PATH: Reply.stream(token("a"), token("b"), HANG)}) as server:
        engine = OpenAIEngine(Link(server.url), model="m")
        heard: list[str] = []

        def listen(_chunk: object, text: str) -> bool:
            heard.append(text)
            return text != "b"

        timeline = await engine.send(GenerationRequest(prompt=TextPrompt(text="x"), max_tokens=9), on_content=listen)
        assert timeline.ended_by is EndedBy.CANCELLED
        assert heard == ["a", "b"]
        await _until(lambda: server.gone == 1)
        await engine.aclose()


async def test_connection_is_closed_when_our_task_is_cancelled() -> None:
    async with ScriptedHttp({PATH: Reply.stream(token("a"), HANG)}) as server:
        engine = OpenAIEngine(Link(server.url), model="m")
        seen = asyncio.Event()
        request = GenerationRequest(prompt=TextPrompt(text="x"), max_tokens=9)
        task = asyncio.create_task(engine.send(request, on_content=lambda _c, _t: seen.set()))
        await seen.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await _until(lambda: server.gone == 1)
        await engine.aclose()


@pytest.mark.parametrize(
    ("reply", "status", "text"),
    [
        (Reply(before_s=HANG), None, ""),
        (Reply.stream(HANG), 200, ""),
        (Reply.stream(token("a"), HANG), 200, "a"),
    ],
    ids=["before the headers", "before the first byte", "between tokens"],
)
async def test_connection_is_closed_when_we_are_told_to_leave(reply: Reply, status: int | None, text: str) -> None:
    async with ScriptedHttp({PATH: reply}) as server:
        clock = CountingClock()
        engine = OpenAIEngine(Link(server.url, clock=clock), model="m")
        leave, there = asyncio.Event(), asyncio.Event()
        request = GenerationRequest(prompt=TextPrompt(text="x"), max_tokens=9)
        task = asyncio.create_task(engine.send(request, leave=leave, on_content=lambda _c, _t: there.set()))
        await _until(lambda: bool(server.received))
        if text:
            await there.wait()
        elif status:
            await _until(lambda: clock.readings >= 3)  # the headers have come
        leave.set()
        timeline = await task
        assert (timeline.ended_by, timeline.status, timeline.text) == (EndedBy.CANCELLED, status, text)
        assert timeline.transport_error is None
        assert timeline.finished_ns >= timeline.submitted_ns
        await _until(lambda: server.gone == 1)
        await engine.aclose()


async def test_nothing_is_sent_when_we_are_to_leave_before_we_come() -> None:
    async with ScriptedHttp({PATH: Reply.stream(token("a"), DONE)}) as server:
        engine = OpenAIEngine(Link(server.url), model="m")
        leave = asyncio.Event()
        leave.set()
        timeline = await engine.send(GenerationRequest(prompt=TextPrompt(text="x"), max_tokens=9), leave=leave)
        assert timeline.ended_by is EndedBy.CANCELLED
        assert (server.connections, timeline.status) == (0, None)
        await engine.aclose()


async def test_answer_stands_when_we_are_told_to_leave_too_late() -> None:
    async with ScriptedHttp({PATH: Reply.stream(token("a", "stop"), DONE)}) as server:
        engine = OpenAIEngine(Link(server.url), model="m")
        leave = asyncio.Event()
        timeline = await engine.send(GenerationRequest(prompt=TextPrompt(text="x"), max_tokens=9), leave=leave)
        leave.set()
        assert (timeline.ended_by, timeline.text) == (EndedBy.DONE, "a")
        await engine.aclose()


async def test_reading_stops_when_an_event_has_no_end() -> None:
    megabyte = b"x" * (1 << 20)
    timeline = await send(Reply.stream(token("a"), b"data: ", *[megabyte] * 17, HANG))
    assert timeline.ended_by is EndedBy.BAD_BODY
    assert timeline.text == "a"
    assert timeline.transport_error == "an event of more than 16777216 bytes"


async def test_listener_s_own_mistake_is_ours_and_not_recorded() -> None:
    def listen(_chunk: object, _text: str) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await send(Reply.stream(token("a"), DONE), on_content=listen)


async def test_two_hundred_requests_run_together() -> None:
    async with ScriptedHttp({PATH: Reply.stream(token("a"), 0.05, token("b", "length"), DONE)}) as server:
        engine = OpenAIEngine(Link(server.url), model="m")
        request = GenerationRequest(prompt=TextPrompt(text="x"), max_tokens=2)
        timelines = await asyncio.gather(*(engine.send(request) for _ in range(200)))
        assert {timeline.text for timeline in timelines} == {"ab"}
        assert server.connections == 200
        assert len({timeline.request_id for timeline in timelines}) == 200
        await engine.aclose()


async def test_body_arrives_whole_when_the_prompt_is_a_million_ids() -> None:
    async with ScriptedHttp({PATH: Reply.stream(token("a", "length"), DONE)}) as server:
        engine = OpenAIEngine(Link(server.url), model="m")
        ids = tuple(range(1_000_000))
        timeline = await engine.send(GenerationRequest(prompt=IdsPrompt(ids=ids), max_tokens=1))
        assert timeline.ended_by is EndedBy.DONE
        # 10 + 90·2 + 900·3 + 9,000·4 + 90,000·5 + 900,000·6 digits and 999,999 commas
        assert len(server.received[0].body) == timeline.body_bytes
        assert timeline.body_bytes > 5_888_890 + 999_999
        assert server.received[0].json()["prompt"] == list(ids)
        await engine.aclose()


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - the server counts, it does not announce
            await asyncio.sleep(0.01)
