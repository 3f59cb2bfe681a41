"""An engine that is broken or taken over: what it sends harms nobody but whoever asked it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import aiohttp
import pytest
from gateway_standin import MODEL, Shell
from raw_http import raw_server, read_request

from longproof.gateway import answers
from longproof.gateway.answers import engine_problem
from longproof.gateway.fleet import Replica

Start = Callable[..., Awaitable[Shell]]
Until = Callable[..., Awaitable[None]]
Say = Callable[[asyncio.StreamWriter], Awaitable[None]]
OK = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
SECRET = "sk-the-engines-own"


@asynccontextmanager
async def engine_that(say: Say | bytes) -> AsyncIterator[str]:
    """A server that reads one request and says whatever it is told to."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        if isinstance(say, bytes):
            writer.write(say)
            await writer.drain()
        else:
            await say(writer)

    async with raw_server(answer) as port:
        yield f"http://127.0.0.1:{port}"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


@pytest.mark.parametrize(
    "said",
    [
        b"HTTP/1.1 200 OK\r\nX: " + b"a" * (4 << 20),
        b"HTTP/1.1 200 OK\r\n" + b"".join(b"X-%d: a\r\n" % i for i in range(50_000)) + b"\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
        b"HTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 999999999999\r\nContent-Type: application/json\r\n\r\n{",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\nabcde\r\n",
        b"HTTP/9.9 999 x\r\n\r\n",
        b"\x16\x03\x01\x02\x00",
        b"",
    ],
)
async def test_a_client_gets_an_error_in_form_when_an_engine_speaks_no_proper_http(shell: Start, said: bytes) -> None:
    async with engine_that(said) as url:
        gateway = await shell([url])
        response = await gateway.chat()
        assert response.status in (502, 504), await response.text()
        error = (await response.json())["error"]
    assert error["message"]
    assert "Location" not in response.headers
    assert len(gateway.controller.ended) == 1
    assert gateway.intake.open_bytes == 0


async def test_a_stream_without_line_ends_is_passed_on_and_not_collected(shell: Start) -> None:
    whole = b"data: " + b"x" * (6 << 20)

    async def say(writer: asyncio.StreamWriter) -> None:
        writer.write(OK)
        for start in range(0, len(whole), 1 << 16):
            writer.write(chunk(whole[start : start + (1 << 16)]))
            await writer.drain()
        writer.write(chunk(b"\n\ndata: [DONE]\n\n") + b"0\r\n\r\n")
        await writer.drain()

    async with engine_that(say) as url:
        gateway = await shell([url])
        response = await gateway.chat(stream=True)
        seen = b""
        async for data in response.content.iter_any():
            seen += data
    assert seen == whole + b"\n\ndata: [DONE]\n\n"


async def test_no_output_is_charged_below_nothing_when_an_engine_says_done_again_and_again(shell: Start) -> None:
    done = chunk(b"[DONE]\n\n")
    async with engine_that(OK + done * 50 + chunk(b"data: [DONE]\n\n") * 5 + b"0\r\n\r\n") as url:
        gateway = await shell([url])
        await (await gateway.chat(stream=True)).read()
    assert all(spent.output_tokens >= 0 for spent in gateway.books.ends)
    assert len(gateway.books.ends) == 1


async def test_an_answer_without_end_is_given_up_when_it_is_longer_than_the_gateway_holds(
    shell: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers.whole_body, "__defaults__", (1 << 20,))
    told = asyncio.Event()

    async def say(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
        try:
            while True:
                writer.write(chunk(b" " * 65_536))
                await writer.drain()
        except ConnectionError:
            told.set()

    async with engine_that(say) as url:
        gateway = await shell([url])
        response = await gateway.chat()
        code = (await response.json())["error"]["code"]
        async with asyncio.timeout(60):
            await told.wait()  # its connection was dropped
    assert (response.status, code) == (502, "replica_lost")


@pytest.mark.parametrize("status", [400, 404, 422, 500, 501])
async def test_an_engines_page_of_html_never_reaches_a_browser_as_one(shell: Start, status: int) -> None:
    page = b"<script>alert(1)</script>"
    said = b"HTTP/1.1 %d x\r\nContent-Type: text/html\r\nContent-Length: %d\r\n\r\n%s" % (status, len(page), page)
    async with engine_that(said) as url:
        gateway = await shell([url])
        response = await gateway.chat()
        passed = await gateway.session.post(f"{gateway.url}/tokenize", json={"content": "x"})
        assert response.status == passed.status == status
        for answer in (response, passed):
            assert answer.headers["Content-Type"].startswith("application/json")
            assert (await answer.json())["error"]["code"] == "upstream_error"


@pytest.mark.parametrize("status", [401, 403])
async def test_the_engines_own_key_never_reaches_a_client_when_the_engine_repeats_it(shell: Start, status: int) -> None:
    body = b'{"error":{"message":"wrong key %s"}}' % SECRET.encode()
    said = b"HTTP/1.1 %d x\r\nContent-Type: application/json\r\nX-Key: %s\r\nContent-Length: %d\r\n\r\n%s"
    async with engine_that(said % (status, SECRET.encode(), len(body), body)) as url:
        gateway = await shell([url])
        fleet = next(iter(gateway.routes.exact.values())).__self__._around.fleet  # type: ignore[attr-defined]
        fleet.take([Replica(name="r0", url=url, models=(MODEL,), authorization=f"Bearer {SECRET}")])
        for answer in (
            await gateway.chat(),
            await gateway.session.post(f"{gateway.url}/tokenize", json={"content": "x"}),
        ):
            shown = await answer.text() + str(answer.headers)
            assert answer.status == 502
            assert SECRET not in shown


async def test_a_header_of_an_engine_cannot_add_one_to_the_answer(shell: Start) -> None:
    body = b'{"choices":[]}'
    said = (
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nSet-Cookie: a=b\r\nX-Longproof-Replica: other\r\n"
        b"Access-Control-Allow-Origin: *\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    )
    async with engine_that(said) as url:
        gateway = await shell([url])
        response: aiohttp.ClientResponse = await gateway.chat()
    assert response.status == 200
    assert response.headers["X-Longproof-Replica"] == "r0"
    assert not {"Set-Cookie", "Access-Control-Allow-Origin"} & set(response.headers)


def test_an_error_is_passed_on_as_it_is_when_it_is_in_form() -> None:
    assert engine_problem(400, b'{"error":{"message":"no","code":400}}') is None
    assert engine_problem(400, b'{"error":"no"}') is None
    for body, message in (
        (b'{"object":"error","message":"too long"}', "too long"),
        (b'{"detail":"Not Found"}', "Not Found"),
        (b"[]", "[]"),
        (b"", "no reason was given"),
        (b"\xff", "\ufffd"),
    ):
        problem = engine_problem(400, body)
        assert problem is not None
        assert problem.message == message
