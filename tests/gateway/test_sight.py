"""The whole gateway as a process: what it writes down, shows and logs of real requests, kill -9 included."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from longproof.gateway.decisions import records_about, replay_log
from longproof.gateway.ledger_rows import Intent, Settlement
from longproof.gateway.ledger_store import open_ledger
from longproof.testing.dialects import VLLM
from longproof.testing.lies import Refuse
from longproof.testing.lying_engine import HONEST, lying_engine

MODEL = "fake-135m"
FLEET = """
[gateway]
port = 0
state = "{folder}/state"
decision_log = "decisions.jsonl"
{more}
[[replica]]
url = "{url}"
name = "one"
[[key]]
name = "admin"
tenant = "ops"
env = "ADMIN_KEY"
admin = true
[[key]]
name = "team"
tenant = "acme"
env = "TEAM_KEY"
[[price]]
name = "chat"
input = "1"
cached = "0.1"
output = "4"
"""


class Gateway:
    """A running ``longproof serve fleet.toml``."""

    def __init__(self, folder: Path) -> None:
        keys = {"ADMIN_KEY": "sk-admin", "TEAM_KEY": "sk-team"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "longproof", "serve", str(folder / "fleet.toml")],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **keys},
        )
        assert self.process.stderr is not None
        self.log: list[str] = []
        for line in self.process.stderr:
            self.log.append(line)
            if "serving at " in line:
                self.url = line.partition("serving at ")[2].strip().removesuffix("/v1")
                break
        else:
            raise AssertionError("".join(self.log))

    def get(self, path: str, key: str = "sk-admin") -> httpx.Response:
        return httpx.get(self.url + path, headers={"Authorization": f"Bearer {key}"}, timeout=30)

    def chat(self, **fields: Any) -> httpx.Response:
        body = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, **fields}
        headers = {"Authorization": "Bearer sk-team"}
        return httpx.post(f"{self.url}/v1/chat/completions", json=body, headers=headers, timeout=60)

    def end(self, how: signal.Signals = signal.SIGTERM) -> None:
        if self.process.poll() is None:
            self.process.send_signal(how)
        self.process.communicate(timeout=60)


Start = Callable[..., Gateway]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """``start(engine_url)``: a gateway on this test's folder, the same every time; ``more`` goes into [gateway]."""
    running: list[Gateway] = []

    def begin(url: str, more: str = "") -> Gateway:
        (tmp_path / "fleet.toml").write_text(FLEET.format(url=url, folder=tmp_path, more=more))
        running.append(Gateway(tmp_path))
        return running[-1]

    yield begin
    for one in running:
        one.end(signal.SIGKILL)


def books(folder: Path) -> list[tuple[Intent, Settlement]]:
    ledger = open_ledger(folder / "state" / "usage" / "ledger.sqlite", must_exist=True)
    try:
        assert ledger.unsettled("gateway") == []
        return list(ledger.settled())
    finally:
        ledger.close()


def figures(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_one_request_is_the_same_in_books_metrics_page_and_log(start: Start, tmp_path: Path) -> None:
    with lying_engine(HONEST.but(dialect=VLLM, token_s=0.0)) as url:
        gateway = start(url)
        answer = gateway.chat()
        refused = gateway.chat(max_tokens=10**9)
        scraped = figures(gateway.get("/metrics").text)
        view = asyncio.run(first_view(gateway.url))
        assert gateway.get("/dashboard/events", key="sk-team").status_code == 403
        assert gateway.get("/dashboard/events", key="sk-nobody").status_code == 401
        assert gateway.get("/metrics", key="sk-team").status_code == 403  # tenants and money are in it
        gateway.end()
    usage = answer.json()["usage"]
    assert refused.status_code == 400
    ((intent, row),) = books(tmp_path)
    assert (intent.tenant, intent.key, intent.replica) == ("acme", "team", "one")
    assert (row.ending, row.output_tokens, row.counted_by) == ("completed", 4, "engine")
    assert row.input_cold_tokens + (row.input_cached_tokens or 0) == usage["prompt_tokens"]
    # 1 $/M, 0.1 $/M and 4 $/M are 1,000, 100 and 4,000 nano-USD a token
    expected = 1_000 * row.input_cold_tokens + 100 * (row.input_cached_tokens or 0) + 4 * 4_000
    assert (row.sku, row.total_nano_usd) == ("chat", expected)
    assert row.kv_token_ms is not None
    assert scraped["longproof_requests_total", (("ending", "completed"), ("model", MODEL))] == 1
    assert scraped["longproof_requests_total", (("ending", "refused"), ("model", MODEL))] == 1
    assert scraped["longproof_usage_usd_total", (("sku", "chat"),)] == pytest.approx(expected / 1e9)
    assert view["fleet"]["counters"]["completed"] == 1
    assert [one["verdict"] for one in view["decisions"]] == ["refused", "sent"]
    assert view["meter"]["by_tenant"][0]["name"] == "acme"
    log = tmp_path / "decisions.jsonl"
    replayed = replay_log(log)
    assert replayed.same, replayed.differences[:1]
    assert (replayed.sent, replayed.refused) == (1, 1)
    assert [type(record.input).__name__ for record in records_about(log, intent.request_id)][-1] == "Finished"


def test_the_page_says_why_a_replica_failed_and_why_it_is_down(start: Start) -> None:
    told = Refuse(status=500, retry_after_s=None, message="CUDA error: an illegal memory access", type="server_error")
    engine = lying_engine(HONEST.but(dialect=VLLM, token_s=0.0).lying(told))
    with engine as url:
        gateway = start(url)
        assert gateway.chat().status_code == 500
        view = asyncio.run(first_view(gateway.url))
        (trouble,) = view["troubles"]
        assert (trouble["replica"], trouble["why"]) == ("one", "it answered 500: CUDA error: an illegal memory access")
        assert 0 < trouble["at_ns"] <= view["fleet"]["at_ns"]
        assert view["fleet"]["counters"]["failed"] == 1
        engine.crash()
        end = time.monotonic() + 60
        while (view := asyncio.run(first_view(gateway.url)))["fleet"]["replicas"][0]["state"] != "down":
            assert time.monotonic() < end
            time.sleep(0.1)
        (trouble,) = view["troubles"]
        assert trouble["at_ns"] is None  # it is so now
        assert "refused" in trouble["why"].lower() or "connect" in trouble["why"].lower()


def test_no_usage_is_lost_or_doubled_when_the_gateway_is_killed_mid_stream(start: Start, tmp_path: Path) -> None:
    with lying_engine(HONEST.but(dialect=VLLM, token_s=0.01)) as url:
        gateway = start(url)
        assert gateway.chat().status_code == 200
        body = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 400, "stream": True}
        headers = {"Authorization": "Bearer sk-team"}
        tokens = 0
        ask = httpx.stream("POST", f"{gateway.url}/v1/chat/completions", json=body, headers=headers, timeout=60)
        with pytest.raises(httpx.TransportError), ask as stream:  # noqa: PT012 - the cut may come at any line
            for line in stream.iter_lines():
                tokens += '"content"' in line
                if tokens == 40:
                    gateway.process.kill()
        gateway.process.wait(60)
        again = start(url)
        assert again.chat().status_code == 200
        recovered = figures(again.get("/metrics").text)["longproof_meter_recovered_total", ()]
        again.end()
    rows = [(row.ending, row.charged) for _, row in books(tmp_path)]
    assert sorted(rows) == [("completed", True), ("completed", True), ("interrupted", False)]
    assert recovered == 1
    (cut,) = [row for _, row in books(tmp_path) if row.ending == "interrupted"]
    # progress is noted every 16 events; what the client got before the kill was 40 tokens and perhaps a few more
    assert 32 - 16 <= cut.output_tokens <= tokens + 1
    assert replay_log(tmp_path / "decisions-2.jsonl").same


def test_metrics_ask_for_no_key_when_they_are_open(start: Start) -> None:
    with lying_engine(HONEST.but(dialect=VLLM, token_s=0.0)) as url:
        gateway = start(url, "open_metrics = true")
        assert httpx.get(f"{gateway.url}/metrics", timeout=30).status_code == 200
        assert gateway.get("/dashboard/events", key="sk-team").status_code == 403


def test_nothing_is_sent_when_it_cannot_be_written_down(start: Start, tmp_path: Path) -> None:
    engine = lying_engine(HONEST.but(dialect=VLLM, token_s=0.0))
    with engine as url:
        gateway = start(url)
        assert gateway.chat().status_code == 200
        sent = len(engine.log.requests)
        # a file size limit stands in for a full disk; the journal's next segment is longer than it
        resource.prlimit(gateway.process.pid, resource.RLIMIT_FSIZE, (16, resource.RLIM_INFINITY))
        refused = gateway.chat()
        told = figures(gateway.get("/metrics").text)["longproof_meter_ok", ()]
        resource.prlimit(gateway.process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        again = gateway.chat()
        gateway.end()
    assert (refused.status_code, told) == (503, 0)
    assert int(refused.headers["Retry-After"]) >= 1
    assert len(engine.log.requests) == sent + 1
    assert again.status_code == 200
    assert [row.ending for _, row in books(tmp_path)] == ["completed"] * 2


def test_an_engine_gets_our_span_as_its_parent_when_traces_are_wanted(start: Start, tmp_path: Path) -> None:
    parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    engine = lying_engine(HONEST.but(dialect=VLLM, token_s=0.0))
    with engine as url:
        gateway = start(url, 'traces = "http://127.0.0.1:9"')  # nobody listens there: requests must not notice
        body = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
        headers = {"Authorization": "Bearer sk-team", "traceparent": parent}
        answer = httpx.post(f"{gateway.url}/v1/chat/completions", json=body, headers=headers, timeout=60)
        gateway.end()
    assert answer.status_code == 200
    sent = engine.log.last.headers["traceparent"]
    assert sent[:36] == parent[:36]
    assert sent[36:52] != parent[36:52]


async def first_view(url: str) -> Any:
    headers = {"Authorization": "Bearer sk-admin"}
    async with aiohttp.ClientSession() as session, session.get(f"{url}/dashboard/events", headers=headers) as answer:
        async for line in answer.content:
            if line.startswith(b"data: {"):
                return json.loads(line.removeprefix(b"data: "))
    raise AssertionError("no view came")
