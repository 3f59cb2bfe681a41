"""Traces as a collector gets them: over HTTP, in OTLP's own encoding."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from longproof.gateway.lives import Life
from longproof.gateway.ports import Spent
from longproof.gateway.tracing import TraceRule, Tracing
from longproof.policy.actions import Dispatch, Refusal
from longproof.policy.arrivals import Arrival, EndKind
from longproof.testing.fake_clock import FakeClock

S = 1_000_000_000
UNIX_NS = 1_767_225_600 * S
"""FakeClock's wall time at 0: 2026-01-01 UTC."""
PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


class Collector:
    """Takes spans; `spans` has them by name."""

    def __init__(self) -> None:
        self.spans: dict[str, Any] = {}
        self.resources: list[Any] = []
        collector = self

        class Takes(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                assert self.path == "/v1/traces"
                for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                    collector.resources.append(resource.resource)
                    for scope in resource.scope_spans:
                        collector.spans |= {span.name: span for span in scope.spans}
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: Any) -> None: ...

        self._server = HTTPServer(("127.0.0.1", 0), Takes)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def collector() -> Iterator[Collector]:
    found = Collector()
    yield found
    found.close()


def life(**changes: Any) -> Life:
    """Arrived at 1 s, sent at 3 s, first token at 8 s, ended at 10 s."""
    spent = Spent(
        id="r",
        ending=EndKind.COMPLETED,
        status=200,
        input_tokens=1_000,
        cached_tokens=400,
        output_tokens=7,
        reported=True,
        at_ns=10 * S,
        first_token_ns=8 * S,
    )
    base: dict[str, Any] = {
        "arrival": Arrival(id="r", tenant="acme", model="m", input_tokens=1_000, exact=True, output_tokens=64),
        "arrived_ns": S,
        "ended_ns": 10 * S,
        "dispatch": Dispatch(id="r", replica="a", reason="", pool="long"),
        "dispatched_ns": 3 * S,
        "spent": spent,
    }
    return Life(**{**base, **changes})


def traced(collector: Collector, headers: dict[str, str], *lives: Life, share: float = 1.0) -> dict[str, str]:
    tracing = Tracing(TraceRule(endpoint=collector.url, share=share, service="eu-1"), FakeClock())
    upstream = tracing.begin("r", headers)
    for one in lives or (life(),):
        tracing.end(one)
    tracing.close()
    return upstream


def attributes(span: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in span.attributes}


def test_a_request_stands_between_its_client_and_its_engine_when_it_is_traced(collector: Collector) -> None:
    upstream = traced(collector, {"traceparent": PARENT, "tracestate": "vendor=1"})
    root = collector.spans["chat m"]
    assert root.trace_id.hex() == "4bf92f3577b34da6a3ce929d0e0e4736"
    assert root.parent_span_id.hex() == "00f067aa0ba902b7"
    assert upstream == {
        "traceparent": f"00-4bf92f3577b34da6a3ce929d0e0e4736-{root.span_id.hex()}-01",
        "tracestate": "vendor=1",
    }
    for name in ("queue", "prefill", "decode"):
        assert collector.spans[name].parent_span_id == root.span_id
        assert collector.spans[name].trace_id == root.trace_id
    assert [pair.value.string_value for pair in collector.resources[0].attributes if pair.key == "service.name"] == [
        "eu-1"
    ]


def test_phases_have_the_times_of_the_life(collector: Collector) -> None:
    traced(collector, {})
    times = {
        name: ((span.start_time_unix_nano - UNIX_NS) // S, (span.end_time_unix_nano - UNIX_NS) // S)
        for name, span in collector.spans.items()
    }
    assert times == {"chat m": (1, 10), "queue": (1, 3), "prefill": (3, 8), "decode": (8, 10)}
    assert collector.spans["chat m"].parent_span_id == b""


def test_an_answer_that_comes_whole_is_not_taken_apart(collector: Collector) -> None:
    whole = replace(life().arrival, streamed=False)
    traced(collector, {}, life(arrival=whole))
    answer = collector.spans["answer"]
    assert collector.spans.keys() == {"chat m", "queue", "answer"}
    assert (answer.end_time_unix_nano - answer.start_time_unix_nano) // S == 7


def test_a_span_says_what_was_used_and_nothing_of_what_was_said(collector: Collector) -> None:
    traced(collector, {})
    found = attributes(collector.spans["chat m"])
    assert found["gen_ai.usage.input_tokens"] == 1_000
    assert found["gen_ai.usage.cache_read.input_tokens"] == 400
    assert (found["longproof.replica"], found["longproof.ending"]) == ("a", "completed")


def test_a_refusal_is_a_span_with_its_code(collector: Collector) -> None:
    refusal = Refusal(id="r", status=429, code="queue_full", reason="")
    traced(collector, {}, life(refusal=refusal, dispatch=None, dispatched_ns=None, spent=None))
    found = attributes(collector.spans["chat m"])
    assert (found["longproof.ending"], found["longproof.code"]) == ("refused", "queue_full")
    assert sorted(collector.spans) == ["chat m", "queue"]


@pytest.mark.parametrize("headers", [{"traceparent": PARENT[:-1] + "0"}, {}])
def test_nothing_is_sent_when_it_is_not_sampled(collector: Collector, headers: dict[str, str]) -> None:
    upstream = traced(collector, headers, share=0.0)
    assert collector.spans == {}
    assert upstream["traceparent"].endswith("-00")  # the engine hears of it all the same


@pytest.mark.parametrize("given", ["", "garbage", "00-" + "0" * 32 + "-00f067aa0ba902b7-01", PARENT + "\n", PARENT * 9])
def test_a_new_trace_begins_when_the_clients_makes_no_sense(collector: Collector, given: str) -> None:
    upstream = traced(collector, {"traceparent": given})
    assert PARENT[3:35] not in upstream["traceparent"]
    assert collector.spans["chat m"].trace_id.hex() == upstream["traceparent"][3:35]


def test_a_request_ends_once_when_its_life_is_told_twice(collector: Collector) -> None:
    tracing = Tracing(TraceRule(endpoint=collector.url), FakeClock())
    tracing.begin("r", {})
    tracing.end(life())
    tracing.end(life(arrival=Arrival(id="r", tenant="", model="other", input_tokens=1, exact=True, output_tokens=1)))
    tracing.close()
    assert "chat other" not in collector.spans
