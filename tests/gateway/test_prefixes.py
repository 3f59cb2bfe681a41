"""Pinned prefixes over HTTP, before a real gateway process and lying engines that publish what they cache."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from test_serve import Gateway

from longproof.testing.dialects import VLLM
from longproof.testing.kv_publisher import KvEvents
from longproof.testing.lying_engine import HONEST, LyingEngine, lying_engine

MODEL = "fake-135m"
HANDBOOK = {"role": "system", "content": "The handbook says: " + "always look twice, " * 400}
ADMIN, USER = "the-admin-key", "a-user-key"
Start = Callable[..., Gateway]


@pytest.fixture
def engines() -> Iterator[tuple[LyingEngine, LyingEngine, list[str]]]:
    """Two that tell what they cache."""
    with ExitStack() as closing:
        both = [lying_engine(HONEST.but(dialect=VLLM, token_s=0.0, kv_events=KvEvents(replay=True))) for _ in range(2)]
        urls = [closing.enter_context(engine) for engine in both]
        yield both[0], both[1], urls


@pytest.fixture
def start(engines: tuple[LyingEngine, LyingEngine, list[str]], tmp_path: Path) -> Iterator[Start]:
    """Starts a gateway before both, always with the same state directory."""
    first, second, urls = engines
    running: list[Gateway] = []

    def run(*, keys: bool = False) -> Gateway:
        text = ""
        for name, engine, url in (("a", first, urls[0]), ("b", second, urls[1])):
            text += f'[[replica]]\nname = "{name}"\nurl = "{url}"\nprefill_rate = 100000\n'
            text += f'kv_events = "{engine.kv_publisher.endpoint}"\nkv_replay = "{engine.kv_publisher.replay}"\n'
        if keys:
            for name, admin in (("boss", "true"), ("clerk", "false")):
                text += f'[[key]]\nname = "{name}"\nenv = "{name.upper()}_KEY"\ntenant = "office"\nadmin = {admin}\n'
        fleet = tmp_path / "fleet.toml"
        fleet.write_text(text)
        running.append(Gateway([str(fleet)], tmp_path / "state", {"BOSS_KEY": ADMIN, "CLERK_KEY": USER}))
        return running[-1].up()

    yield run
    for one in running:
        one.close()


def call(gateway: Gateway, method: str, path: str, key: str = "", body: Any = None) -> httpx.Response:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return httpx.request(method, gateway.url + path, json=body, headers=headers, timeout=30)


def pin(gateway: Gateway, name: str = "handbook", key: str = "", **fields: Any) -> httpx.Response:
    body = {"model": MODEL, "messages": [HANDBOOK], **fields}
    return call(gateway, "PUT", f"/v1/prefixes/{name}", key, body)


def until(gateway: Gateway, fits: Callable[[dict[str, Any]], bool], name: str = "handbook") -> dict[str, Any]:
    """The prefix, once it is as wanted."""
    shown: dict[str, Any] = {}
    for _ in range(600):
        shown = call(gateway, "GET", f"/v1/prefixes/{name}").json()
        if fits(shown):
            return shown
        time.sleep(0.05)
    raise AssertionError(json.dumps(shown) + "\n" + "\n".join(gateway.lines))


def warm(shown: dict[str, Any]) -> bool:
    return bool(shown["warmed"]) and all(shown["held_tokens"].values())


def test_a_prefix_is_warm_before_anybody_asks_when_it_was_pinned(
    start: Start, engines: tuple[LyingEngine, LyingEngine, list[str]]
) -> None:
    gateway = start()
    answer = pin(gateway)
    assert answer.status_code == 201, answer.text
    shown = until(gateway, warm)
    (home,) = shown["replicas"]
    question = {"model": MODEL, "messages": [HANDBOOK, {"role": "user", "content": "And then?"}], "max_tokens": 2}
    asked = call(gateway, "POST", "/v1/chat/completions", body=question)
    assert asked.headers["X-Longproof-Replica"] == home
    assert asked.json()["usage"]["prompt_tokens_details"]["cached_tokens"] >= 16 * shown["blocks"]
    after = until(gateway, lambda one: one["requests"] == 1)
    assert (after["hits"], after["warmed"]) == (1, 1)
    listed = call(gateway, "GET", "/v1/prefixes").json()["data"]
    assert [one["name"] for one in listed] == ["handbook"]
    figures = call(gateway, "GET", "/metrics").text
    assert "prefix_requests_total{" in figures
    assert 'prefix_replicas{prefix="handbook"} 1.0' in figures
    sent = [r for engine in engines[:2] for r in engine.log.requests if r.path == "/v1/chat/completions"]
    assert [served.output_tokens for served in sent] == [1, 2]  # the warm-up, and the question


def test_a_prefix_lies_on_several_replicas_and_is_gone_when_told(start: Start) -> None:
    gateway = start()
    assert pin(gateway, copies=2).status_code == 201
    shown = until(gateway, lambda one: one["warmed"] == 2 and warm(one))
    assert sorted(shown["replicas"]) == ["a", "b"]
    assert pin(gateway, copies=1).status_code == 200  # replaced
    assert call(gateway, "DELETE", "/v1/prefixes/handbook").status_code == 204
    assert call(gateway, "DELETE", "/v1/prefixes/handbook").status_code == 404
    gone = call(gateway, "GET", "/v1/prefixes/handbook")
    assert (gone.status_code, gone.json()["error"]["code"]) == (404, "prefix_not_found")


def test_a_prefix_is_still_pinned_when_the_gateway_was_killed_and_started_again(start: Start, tmp_path: Path) -> None:
    gateway = start()
    assert pin(gateway).status_code == 201
    stored = tmp_path / "state" / "prefixes" / "handbook.json"
    assert stored.stat().st_mode & 0o777 == 0o600
    gateway.process.kill()
    gateway.process.wait(30)
    again = start()
    assert until(again, lambda one: "name" in one and warm(one))["model"] == MODEL
    assert call(again, "DELETE", "/v1/prefixes/handbook").status_code == 204
    assert not stored.exists()


def test_only_keys_with_admin_may_pin_when_there_are_keys_and_refusals_say_why(start: Start) -> None:
    gateway = start(keys=True)
    assert pin(gateway).status_code == 401
    refused = pin(gateway, key=USER)
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "not_admin")
    assert call(gateway, "GET", "/v1/prefixes", USER).status_code == 403
    assert pin(gateway, key=ADMIN).status_code == 201
    for name, fields, status, said in (
        ("..%2fetc", {}, 400, "named by"),
        ("x" * 65, {}, 400, "named by"),
        ("x", {"model": "http://10.0.0.1/"}, 404, "not served"),
        ("x", {"messages": []}, 400, "messages"),
        ("x", {"copies": 3}, 400, "'copies' must be 1 to 2"),
        ("x", {"copies": True}, 400, "'copies'"),
    ):
        answer = pin(gateway, name, key=ADMIN, **fields)
        assert (answer.status_code, said in answer.json()["error"]["message"]) == (status, True), answer.text


def test_a_prefix_that_cannot_be_written_down_says_so(start: Start, tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "prefixes").write_text("no directory")
    gateway = start()
    answer = pin(gateway)
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "prefix_not_stored"), answer.text
    assert until(gateway, warm)["name"] == "handbook"  # pinned all the same, until the next start
