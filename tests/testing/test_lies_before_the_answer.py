"""Lies told before the first byte of an answer: refusals, pages, silence, death."""

from __future__ import annotations

import httpx
import pytest

from longproof.testing import HONEST, Behaviour
from longproof.testing.engine_log import Ending
from longproof.testing.lies import Crash, Hang, HtmlAnswer, Lie, Refuse, SlowHeaders
from longproof.testing.lying_engine import LyingEngine, lying_engine

CHAT = {"messages": [{"role": "user", "content": "Hi"}], "stream": True, "max_tokens": 4}
NOTHING_COMES = httpx.Timeout(60.0, read=0.3)
"""For what never answers: whoever waits for nothing need not wait long, and a busy machine has time to connect."""


def engine(*lies: Lie) -> LyingEngine:
    return lying_engine(HONEST.lying(*lies))


def test_busy_server_says_when_to_come_again(chat) -> None:
    under_test = engine(Refuse(status=429, retry_after_s=7))
    with under_test as url:
        seen = chat(url)
    assert (seen.status, seen.headers["retry-after"]) == (429, "7")
    assert seen.json["error"]["type"] == "rate_limit_error"
    assert under_test.log.last.ending is Ending.REFUSED


def test_server_is_unavailable_without_saying_until_when(chat) -> None:
    with engine(Refuse(status=503, retry_after_s=None)) as url:
        seen = chat(url)
    assert seen.status == 503
    assert "retry-after" not in seen.headers


@pytest.mark.parametrize(
    ("form", "kind", "raw"),
    [
        ("text", "text/plain", b"no"),
        ("html", "text/html", b"<html>"),
        ("list", "application/json", b'["no"]'),
        ("string", "application/json", b'"no"'),
        ("empty", "text/plain", b""),
        ("openai", "application/json", b'{"error": {"message": "no", "type": "rate_limit_error", "param": null'),
    ],
)
def test_error_body_has_the_form_asked_for(form, kind, raw, chat) -> None:
    with engine(Refuse(status=500, message="no", form=form)) as url:
        seen = chat(url)
    assert seen.status == 500
    assert seen.headers["content-type"].startswith(kind)
    assert seen.raw.startswith(raw)
    assert (seen.raw == b"") == (form == "empty")


def test_answer_is_a_web_page_when_the_server_is_none(chat) -> None:
    with engine(HtmlAnswer()) as url:
        seen = chat(url)
    assert (seen.status, seen.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert seen.raw.startswith(b"<!doctype html>")


def test_not_one_byte_comes_when_it_hangs_but_health_is_fine() -> None:
    under_test = engine(Hang())
    with under_test as url:
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{url}/v1/chat/completions", json=CHAT, timeout=NOTHING_COMES)
        assert httpx.get(f"{url}/health").json() == {"status": "ok"}
        under_test.log.wait_for(lambda log: log.last.ending is Ending.DISCONNECTED)
    assert under_test.log.last.headers_ns is None


def test_headers_come_at_once_when_it_hangs_that_way() -> None:
    with (
        engine(Hang(headers="at_once")) as url,
        httpx.stream("POST", f"{url}/v1/chat/completions", json=CHAT, timeout=1.0) as response,
    ):
        assert response.status_code == 200
        with pytest.raises(httpx.ReadTimeout):
            response.read()


def test_only_long_prompts_hang_when_the_lie_has_a_border(complete) -> None:
    with engine(Hang(above_tokens=100)) as url:
        assert len(complete(url, [300] * 100).deltas) == 8
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{url}/v1/completions", json={"prompt": [300] * 101}, timeout=NOTHING_COMES)
        assert len(complete(url, [300] * 100).deltas) == 8


def test_everything_is_refused_after_a_crash_until_it_is_started_again(chat) -> None:
    under_test = engine(Crash())
    with under_test as url:
        with pytest.raises(httpx.TransportError):
            chat(url)
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{url}/health")
        assert not under_test.alive
        under_test.behave(HONEST)
        assert under_test.start() == url
        assert chat(url).status == 200
    assert [entry.ending for entry in under_test.log.requests] == [Ending.CRASHED, Ending.COMPLETED]


def test_headers_wait_when_they_are_slow(chat) -> None:
    under_test = engine(SlowHeaders(delay_s=0.1))
    with under_test as url:
        chat(url)
    entry = under_test.log.last
    assert entry.headers_ns - entry.received_ns >= 90_000_000


def test_refusals_of_the_pool_are_about_load_when_it_would_fit_later(complete) -> None:
    behaviour = Behaviour(kv_capacity_tokens=1000, over_capacity="refuse", token_s=600.0)
    with lying_engine(behaviour) as url:
        body = {"prompt": [300] * 800, "max_tokens": 8, "stream": True}
        with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=60):
            refused = complete(url, [300] * 800)
    assert refused.status == 503
    assert "808 tokens needed, 192 free" in refused.json["error"]["message"]
