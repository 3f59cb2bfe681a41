"""The ways to a server: TLS, proxies of the environment, and what is said when there is no way."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest
import trustme
from raw_http import STREAM, Serve, answers, raw_server, read_request

from longproof.domain.events import EndedBy, RequestTimeline
from longproof.domain.request import GenerationRequest, TextPrompt
from longproof.engines.dial import Proxy, proxy_for
from longproof.engines.link import Link
from longproof.engines.openai import OpenAIEngine
from longproof.errors import UsageError

REPLY = b"HTTP/1.1 200 OK\r\n\r\n" + STREAM
NAMES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
def tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ssl.SSLContext:
    """A server's side, for llm.example and 127.0.0.1; ours trusts its authority."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "authority.pem"))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authority.pem"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("llm.example", "127.0.0.1").configure_cert(context)
    return context


async def ask(url: str) -> RequestTimeline:
    engine = OpenAIEngine(Link(url), model="m")
    try:
        return await engine.send(GenerationRequest(prompt=TextPrompt(text="x"), max_tokens=8, timeout_s=60.0))
    finally:
        await engine.aclose()


def proxy(asked: list[tuple[str, dict[str, str]]], port: int, refusal: bytes = b"") -> Serve:
    """A proxy that leads every tunnel to `port` of this machine, or refuses."""

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
        if writer.can_write_eof():
            writer.write_eof()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line, headers, _ = await read_request(reader)
        asked.append((line, headers))
        if refusal or not line.startswith("CONNECT"):
            writer.write(refusal or REPLY)
            return
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        there_reader, there_writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            await asyncio.gather(pump(reader, there_writer), pump(there_reader, writer), return_exceptions=True)
        finally:
            there_writer.close()

    return serve


async def test_answer_comes_over_tls_when_the_authority_is_trusted(tls: ssl.SSLContext) -> None:
    async with raw_server(answers(REPLY), tls) as port:
        timeline = await ask(f"https://127.0.0.1:{port}")
    assert (timeline.ended_by, timeline.text) == (EndedBy.DONE, "ab")


async def test_long_body_arrives_over_tls(tls: ssl.SSLContext) -> None:
    bodies: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        bodies.append((await read_request(reader))[2])
        writer.write(REPLY)

    async with raw_server(serve, tls) as port:
        engine = OpenAIEngine(Link(f"https://127.0.0.1:{port}"), model="m")
        timeline = await engine.send(GenerationRequest(prompt=TextPrompt(text="long " * 400_000), max_tokens=8))
        await engine.aclose()
    assert timeline.ended_by is EndedBy.DONE
    assert b"long " * 400_000 in bodies[0]


async def test_there_is_no_answer_when_the_authority_is_not_trusted() -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)
    async with raw_server(answers(REPLY), context) as port:
        timeline = await ask(f"https://127.0.0.1:{port}")
    assert timeline.ended_by is EndedBy.UNREACHABLE
    assert "ConnectError" in (timeline.transport_error or "")
    assert "certificate verify failed" in (timeline.transport_error or "")


async def test_there_is_no_answer_when_the_certificate_is_for_another_name(
    tls: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with raw_server(answers(REPLY), tls) as port, raw_server(proxy([], port)) as proxy_port:
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{proxy_port}")
        timeline = await ask("https://other.example")
    assert timeline.ended_by is EndedBy.UNREACHABLE
    assert "certificate" in (timeline.transport_error or "")


async def test_proxy_is_told_the_whole_url_when_the_target_is_http(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, dict[str, str]]] = []
    async with raw_server(proxy(asked, 0)) as port:
        monkeypatch.setenv("http_proxy", f"http://user:p%40ss@127.0.0.1:{port}")
        timeline = await ask("http://llm.example/x")
    assert (timeline.ended_by, timeline.text) == (EndedBy.DONE, "ab")
    ((line, headers),) = asked
    assert line == "POST http://llm.example/x/v1/completions HTTP/1.1"
    assert headers["host"] == "llm.example"
    assert headers["proxy-authorization"] == "Basic dXNlcjpwQHNz"  # base64 of user:p@ss


async def test_proxy_leads_to_the_target_when_that_is_https(
    tls: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, dict[str, str]]] = []
    async with raw_server(answers(REPLY), tls) as port, raw_server(proxy(asked, port)) as proxy_port:
        monkeypatch.setenv("ALL_PROXY", f"127.0.0.1:{proxy_port}")
        timeline = await ask("https://llm.example")
    assert (timeline.ended_by, timeline.text) == (EndedBy.DONE, "ab")
    ((line, headers),) = asked
    assert line == "CONNECT llm.example:443 HTTP/1.1"
    assert headers == {"host": "llm.example:443"}


@pytest.mark.parametrize(
    ("refusal", "words"),
    [
        (b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n", "the proxy answered: HTTP/1.1 407"),
        (b"", "closed the connection"),
    ],
)
async def test_there_is_no_answer_when_the_proxy_leads_nowhere(
    refusal: bytes, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(refusal)

    async with raw_server(serve) as port:
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{port}")
        timeline = await ask("https://llm.example")
    assert timeline.ended_by is EndedBy.UNREACHABLE
    assert words in (timeline.transport_error or "")


async def test_proxy_is_not_used_when_the_host_is_this_machine_or_excepted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("all_proxy", "http://proxy.example:3128")
    monkeypatch.setenv("no_proxy", "inside.example")
    assert proxy_for("http://127.0.0.1:8000") is None
    assert proxy_for("http://llm.inside.example") is None
    assert proxy_for("https://llm.example") == Proxy(host="proxy.example", port=3128)
    monkeypatch.setenv("http_proxy", "http://other.example")
    assert proxy_for("http://llm.example") == Proxy(host="other.example", port=80)


def test_proxy_that_is_none_of_http_is_refused_with_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("all_proxy", "socks5://127.0.0.1:1080")
    with pytest.raises(UsageError, match="socks5") as refused:
        Link("http://llm.example")
    assert "no_proxy" in refused.value.advice


async def test_there_is_no_answer_when_the_host_has_no_address() -> None:
    timeline = await ask("http://nowhere.invalid")
    assert timeline.ended_by is EndedBy.UNREACHABLE
    assert "ConnectError" in (timeline.transport_error or "")
