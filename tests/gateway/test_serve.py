"""The gateway as a process of its own: started by the command, with everything wired, stopped by signals."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme

from longproof.gateway.decisions import replay_log
from longproof.gateway.ledger_store import open_ledger
from longproof.testing.dialects import VLLM
from longproof.testing.engine_log import Ending, Served
from longproof.testing.lies import Refuse
from longproof.testing.lying_engine import HONEST, LyingEngine, lying_engine

MODEL = "fake-135m"
FAST = HONEST.but(dialect=VLLM, token_s=0.0)
Run = Callable[..., "Gateway"]


class Gateway:
    """A running ``longproof serve``. `lines` is what it wrote so far."""

    def __init__(self, arguments: list[str], state: Path, environment: dict[str, str]) -> None:
        command = [sys.executable, "-m", "longproof", "serve", "--port", "0", "--state", str(state), *arguments]
        self.process = subprocess.Popen(
            command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env={**os.environ, **environment}
        )
        self.lines: list[str] = []
        self.url = ""
        self._up = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def up(self) -> Gateway:
        assert self._up.wait(300), "\n".join(self.lines)
        assert self.url, "\n".join(self.lines)
        return self

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.rstrip())
            if "serving at " in line:
                self.url = line.partition("serving at ")[2].strip().removesuffix("/v1")
                self._up.set()
        self._up.set()

    def terminate(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(30)
        self._reader.join(5)
        assert self.process.stderr is not None
        self.process.stderr.close()


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Run]:
    """``gateway("--engines", url)``: starts one; all end with the test."""
    running: list[Gateway] = []

    def run(*arguments: str, **environment: str) -> Gateway:
        running.append(Gateway(list(arguments), tmp_path / f"state-{len(running)}", environment))
        return running[-1].up()

    yield run
    for one in running:
        one.close()


def chat(url: str, text: str = "Hi", **fields: Any) -> httpx.Response:
    body = {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 4, **fields}
    return httpx.post(f"{url}/v1/chat/completions", json=body, timeout=30)


def chats(engine: LyingEngine) -> list[Served]:
    """What was asked of it by clients; the gateway's own questions at the start use the other route."""
    return [served for served in engine.log.requests if served.path == "/v1/chat/completions"]


def ledger_rows(state: Path) -> list[tuple[str, int]]:
    """Ending and output tokens of every request that is settled."""
    ledger = open_ledger(state / "usage" / "ledger.sqlite")
    try:
        return [(end.ending, end.output_tokens) for _, end in ledger.settled()]
    finally:
        ledger.close()


def test_everything_is_served_and_metered_when_started_with_engines(gateway: Run, tmp_path: Path) -> None:
    one, two = lying_engine(FAST), lying_engine(FAST)
    with one as first, two as second:
        running = gateway("--engines", f"{first},{second}")
        answers = [chat(running.url, f"question {i}") for i in range(6)]
        stream = chat(running.url, "one more", stream=True)
        models = httpx.get(f"{running.url}/v1/models", timeout=30).json()
        ready = httpx.get(f"{running.url}/ready", timeout=30).status_code
        code = running.terminate()
    assert [answer.status_code for answer in answers] == [200] * 6
    assert stream.text.endswith("data: [DONE]\n\n")
    assert [entry["id"] for entry in models["data"]] == [MODEL]
    assert (ready, code) == (200, 0)
    assert len(chats(one)) + len(chats(two)) == 7
    assert ledger_rows(tmp_path / "state-0") == [("completed", 4)] * 7


def test_what_is_open_is_finished_and_nothing_new_is_taken_when_it_is_told_to_end(gateway: Run) -> None:
    engine = lying_engine(FAST.but(token_s=0.05))
    with engine as url:
        running = gateway("--engines", url)
        found: list[str] = []
        reader = threading.Thread(target=lambda: found.append(chat(running.url, stream=True, max_tokens=20).text))
        reader.start()
        engine.log.wait_for(lambda _: any(served.output_tokens > 1 for served in chats(engine)))
        running.process.send_signal(signal.SIGTERM)
        _until(lambda: _refused(running.url))
        code = running.process.wait(60)
        reader.join()
    assert code == 0
    assert found[0].count('"content"') >= 19
    assert found[0].endswith("data: [DONE]\n\n")
    assert engine.log.last.ending is Ending.COMPLETED


def test_it_ends_at_once_when_it_is_told_to_before_it_has_started(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as engine:  # takes connections and says nothing
        url = f"http://127.0.0.1:{engine.getsockname()[1]}"
        starting = Gateway(["--engines", url, "--engines-within", "1h"], tmp_path, {})
        engine.settimeout(300)
        asking, _ = engine.accept()  # it is being asked what it serves
        code = starting.terminate()
        asking.close()
        starting.close()
    assert code == 0
    assert [line for line in starting.lines if "stopped before it was started" in line]


def test_open_requests_are_cut_off_when_it_is_told_to_end_twice(gateway: Run) -> None:
    engine = lying_engine(FAST.but(token_s=0.5))
    with engine as url:
        running = gateway("--engines", url)
        failures: list[Exception] = []

        def ask() -> None:
            try:
                chat(running.url, stream=True, max_tokens=1_000)
            except httpx.TransportError as problem:
                failures.append(problem)

        reader = threading.Thread(target=ask)
        reader.start()
        engine.log.wait_for(lambda _: bool(chats(engine)))
        running.process.send_signal(signal.SIGTERM)
        _until(lambda: any("draining" in line for line in running.lines))
        running.process.send_signal(signal.SIGTERM)
        code = running.process.wait(60)
        reader.join()
        engine.log.wait_for(lambda log: log.last.ending is Ending.DISCONNECTED)
    assert code == 1
    assert len(failures) == 1


def test_a_request_that_can_never_fit_is_refused_at_once_with_the_limit(gateway: Run) -> None:
    engine = lying_engine(FAST.but(window_tokens=256))
    with engine as url:
        running = gateway("--engines", url)
        answer = chat(running.url, "word " * 300)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["limit"]) == (400, "context_length_exceeded", 256)
    assert error["actual"] > 256
    assert "retry-after" not in answer.headers
    assert chats(engine) == []


@pytest.mark.parametrize("status", [429, 503])
def test_the_engines_retry_after_is_kept_when_every_replica_refuses(gateway: Run, status: int) -> None:
    refusing = FAST.lying(Refuse(status=status, retry_after_s=60))
    one, two = lying_engine(refusing), lying_engine(refusing)
    with one as first, two as second:
        running = gateway("--engines", f"{first},{second}")
        answers = [chat(running.url) for _ in range(3)]
    assert {answer.status_code for answer in answers} <= {429, 503}
    assert all(1 <= int(answer.headers["retry-after"]) <= 60 for answer in answers)
    # once each, and not again before the minute is over
    assert (len(chats(one)), len(chats(two))) == (1, 1)


def test_a_dead_replica_does_not_keep_the_fleet_from_starting(gateway: Run) -> None:
    with lying_engine(FAST) as url:
        running = gateway("--engines", f"http://127.0.0.1:9,{url}", LONGPROOF_ENGINES_WITHIN="0s")
        answers = [chat(running.url, f"question {i}").status_code for i in range(4)]
    assert answers == [200] * 4


def test_tls_is_spoken_when_it_is_configured(gateway: Run, tmp_path: Path) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    certificate.private_key_and_cert_chain_pem.write_to_path(tmp_path / "both.pem")
    with lying_engine(HONEST) as url:  # llama.cpp answers to any name
        fleet = tmp_path / "fleet.toml"
        fleet.write_text(
            '[gateway.tls]\ncertificate = "both.pem"\nkey = "both.pem"\n'
            f'[[replica]]\nurl = "{url}"\naliases = ["mine"]\n'
        )
        running = gateway(str(fleet))
        context = ssl.create_default_context()
        authority.configure_trust(context)
        with httpx.Client(verify=context, timeout=30) as client:
            body = {"model": "mine", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
            answer = client.post(f"{running.url}/v1/chat/completions", json=body)
    assert running.url.startswith("https://")
    assert answer.status_code == 200


def test_metrics_and_dashboard_show_what_was_done_when_asked(gateway: Run) -> None:
    with lying_engine(FAST) as url:
        running = gateway("--engines", url)
        chat(running.url)
        chat(running.url, "word " * 20_000)
        metrics = httpx.get(f"{running.url}/metrics", timeout=30).text
        page = httpx.get(f"{running.url}/dashboard", timeout=30)
        with httpx.stream("GET", f"{running.url}/dashboard/events", timeout=30) as events:
            seen = next(line for line in events.iter_lines() if line.startswith("data: ") and "replicas" in line)
        code = running.terminate()
    ended = [line for line in metrics.splitlines() if "requests_total{" in line and MODEL in line]
    assert any('"completed"' in line and line.endswith(" 1.0") for line in ended), ended
    assert page.headers["content-type"].startswith("text/html")
    assert json.loads(seen[6:])
    assert code == 0  # whoever watches does not keep it alive


def test_every_decision_is_decided_again_as_it_was_when_its_log_is_replayed(gateway: Run, tmp_path: Path) -> None:
    engine = lying_engine(FAST)
    with engine as url:
        fleet = tmp_path / "fleet.toml"
        fleet.write_text(f'[gateway]\ndecision_log = "decisions.jsonl"\n[[replica]]\nurl = "{url}"\n')
        running = gateway(str(fleet))
        for i in range(3):
            chat(running.url, f"question {i} " + "word " * 600)
        chat(running.url, "word " * 20_000)
        running.terminate()
    replayed = replay_log(tmp_path / "decisions.jsonl")
    assert (replayed.sent, replayed.refused, replayed.same) == (3, 1, True)


DEMO = Path(__file__).resolve().parents[2] / "examples" / "demo"
DEMO_MODEL = "SmolLM2-135M-Instruct.Q4_1"


def test_a_claim_binds_and_says_that_it_is_about_another_configuration_when_it_is(gateway: Run) -> None:
    with lying_engine(HONEST.but(model=DEMO_MODEL)) as url:
        running = gateway("--engines", url, "--claim", str(DEMO))
        short = chat(running.url, model=DEMO_MODEL)
        long = chat(running.url, "word " * 5_000, model=DEMO_MODEL)
    assert short.status_code == 200
    # the demo is of a real llama.cpp and a model file of known hash
    assert "claim is about another configuration" in short.headers["x-longproof-warning"]
    error = long.json()["error"]
    assert (long.status_code, error["code"]) == (400, "beyond_proven_length")
    assert error["limit"] < 8_192  # what was shown, which is less than what the engine says it takes
    assert "retry-after" not in long.headers


def test_a_claim_about_a_model_that_is_not_served_keeps_it_from_starting(tmp_path: Path) -> None:
    with lying_engine(FAST) as url:
        failed = Gateway(["--engines", url, "--claim", str(DEMO)], tmp_path, {})
        code = failed.process.wait(60)
        failed.close()
    assert code == 2
    assert any("is not served here" in line for line in failed.lines)


@pytest.mark.engine
def test_a_real_model_answers_when_started_without_arguments(gateway: Run, tmp_path: Path) -> None:
    running = gateway("--context", "512")
    model = httpx.get(f"{running.url}/v1/models", timeout=30).json()["data"][0]["id"]
    plain = chat(running.url, "Name a colour.", model=model, max_tokens=8)
    stream = chat(running.url, "Name a colour.", model=model, max_tokens=8, stream=True)
    too_long = chat(running.url, "word " * 600, model=model)
    asked = {"model": model, "input": "Name a colour.", "max_output_tokens": 8, "stream": True}
    response = httpx.post(f"{running.url}/v1/responses", json=asked, timeout=60)
    code = running.terminate()
    events = [json.loads(line[6:]) for line in stream.text.splitlines() if line.startswith("data: {")]
    assert plain.json()["usage"]["completion_tokens"] <= 8
    assert "".join(choice["delta"].get("content") or "" for event in events for choice in event["choices"])
    assert (too_long.status_code, too_long.json()["error"]["limit"]) == (400, 512)
    assert code == 0
    # our own count of the prompt, made with the model file's tokenizer, is the engine's
    assert not any("counted by the engine" in line for line in running.lines)
    assert "event: response.completed" in response.text
    assert [ending for ending, _ in ledger_rows(tmp_path / "state-0")] == ["completed"] * 3


def _refused(url: str) -> bool:
    try:
        httpx.get(f"{url}/health", timeout=1)
    except httpx.TransportError:
        return True
    return False


def _until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)
