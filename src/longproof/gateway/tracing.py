"""OpenTelemetry traces, where they are wanted (``pip install 'longproof[otel]'``).

    client's span ─▶ chat <model>          arrival ─────────────────────────▶ end
                       ├─ queue            arrival ─▶ sent                       (again for every attempt: the last)
                       ├─ prefill                     sent ─▶ first token
                       ├─ decode                              first token ────▶ end
                       ├─ answer                      sent ───────────────────▶ end    of one that comes whole, instead
                       └─ the engine's own spans: it gets our span as its parent, in `traceparent`

Spans are made when a request has ended, from its `Life`: the data path only hands out ids. Names of attributes are
those of OpenTelemetry's conventions for generative AI where there are any, ``longproof.*`` elsewhere. No prompt and no
answer is ever in a span.
"""

from __future__ import annotations

import re
import secrets
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from longproof.clock import Clock
from longproof.errors import UsageError
from longproof.gateway.lives import Life

_PARENT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_SAMPLED = 0x01
_MOST_OPEN = 100_000
"""More are under way at no gateway; whoever is beyond it has no span."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRule:
    """`endpoint`: an OTLP/HTTP collector, ``http://host:4318``. `share`: of requests that come without a trace, those
    that get one; a client's own sampling decision is always kept. `service`: this gateway's name."""

    endpoint: str
    share: float = 1.0
    service: str = "longproof"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ids:
    trace: int
    span: int
    parent: int | None
    sampled: bool
    state: str


class Tracing:
    """Traces of one gateway, on its event loop. `close` blocks while what is left is sent. UsageError without the
    packages."""

    def __init__(self, rule: TraceRule, clock: Clock) -> None:
        self._rule = rule
        self._open: OrderedDict[str, _Ids] = OrderedDict()
        self._to_unix_ns = int(clock.wall().timestamp() * 1e6) * 1_000 - clock.now_ns()
        try:
            self._api: Any = import_module("opentelemetry.trace")
            sdk: Any = import_module("opentelemetry.sdk.trace")
            export: Any = import_module("opentelemetry.sdk.trace.export")
            otlp: Any = import_module("opentelemetry.exporter.otlp.proto.http.trace_exporter")
            resources: Any = import_module("opentelemetry.sdk.resources")
        except ImportError as problem:
            raise UsageError("traces need OpenTelemetry", advice="pip install 'longproof[otel]'") from problem
        self._generator = _generator(sdk)
        self._provider: Any = sdk.TracerProvider(
            id_generator=self._generator,
            resource=resources.Resource.create({"service.name": rule.service}),
            shutdown_on_exit=False,
        )
        exporter = otlp.OTLPSpanExporter(endpoint=rule.endpoint.rstrip("/") + "/v1/traces", timeout=5)
        self._provider.add_span_processor(export.BatchSpanProcessor(exporter))
        self._tracer: Any = self._provider.get_tracer("longproof.gateway")

    def begin(self, request_id: str, headers: Mapping[str, str]) -> dict[str, str]:
        """The trace headers to send upstream for a request that came with `headers`."""
        given = _PARENT.fullmatch(headers.get("traceparent", ""))
        if given is None or not int(given[1], 16) or not int(given[2], 16):
            sampled = secrets.randbelow(1 << 24) < self._rule.share * (1 << 24)
            ids = _Ids(trace=_some(128), span=_some(64), parent=None, sampled=sampled, state="")
        else:
            ids = _Ids(
                trace=int(given[1], 16),
                span=_some(64),
                parent=int(given[2], 16),
                sampled=bool(int(given[3], 16) & _SAMPLED),
                state=headers.get("tracestate", ""),
            )
        self._open[request_id] = ids
        if len(self._open) > _MOST_OPEN:
            self._open.popitem(last=False)
        sent = {"traceparent": f"00-{ids.trace:032x}-{ids.span:016x}-{int(ids.sampled):02x}"}
        return {**sent, "tracestate": ids.state} if ids.state else sent

    def end(self, life: Life) -> None:
        """The spans of a request that has ended."""
        ids = self._open.pop(life.arrival.id, None)
        if ids is None or not ids.sampled:
            return
        root = self._span(f"chat {life.arrival.model}", ids, life.arrived_ns)
        for name, value in _attributes(life).items():
            root.set_attribute(name, value)
        within = self._api.set_span_in_context(root)
        for name, start_ns, end_ns in _phases(life):
            child = self._tracer.start_span(name, context=within, start_time=self._unix(start_ns))
            child.end(end_time=self._unix(end_ns))
        if life.ending == "failed":
            root.set_status(self._api.Status(self._api.StatusCode.ERROR))
        root.end(end_time=self._unix(life.ended_ns))

    def close(self) -> None:
        """Sends what is left."""
        self._provider.shutdown()

    def _span(self, name: str, ids: _Ids, start_ns: int) -> Any:
        self._generator.trace, self._generator.span = ids.trace, ids.span
        context = self._api.set_span_in_context(self._api.INVALID_SPAN)
        if ids.parent is not None:
            flags = self._api.TraceFlags(_SAMPLED)
            remote = self._api.SpanContext(ids.trace, ids.parent, is_remote=True, trace_flags=flags)
            context = self._api.set_span_in_context(self._api.NonRecordingSpan(remote))
        kind = self._api.SpanKind.SERVER
        return self._tracer.start_span(name, context=context, kind=kind, start_time=self._unix(start_ns))

    def _unix(self, at_ns: int) -> int:
        return at_ns + self._to_unix_ns


def _generator(sdk: Any) -> Any:
    """Ids that were handed out before the span was made; random ones for its children."""

    class Given(sdk.RandomIdGenerator):
        trace: int | None = None
        span: int | None = None

        def generate_trace_id(self) -> int:
            found, self.trace = self.trace, None
            return _some(128) if found is None else found

        def generate_span_id(self) -> int:
            found, self.span = self.span, None
            return _some(64) if found is None else found

    return Given()


def _phases(life: Life) -> list[tuple[str, int, int]]:
    """Name, start and end of the parts of a life that took place."""
    sent_ns = life.dispatched_ns
    if sent_ns is None:
        return [("queue", life.arrived_ns, life.ended_ns)]
    found = [("queue", life.arrived_ns, sent_ns)]
    first_ns = None if life.spent is None else life.spent.first_token_ns
    if life.spent is not None and life.spent.ending != "rejected" and not life.arrival.streamed:
        found.append(("answer", sent_ns, life.ended_ns))
    elif life.spent is not None and life.spent.ending != "rejected":
        found.append(("prefill", sent_ns, life.ended_ns if first_ns is None else first_ns))
        if first_ns is not None:
            found.append(("decode", first_ns, life.ended_ns))
    return found


def _attributes(life: Life) -> dict[str, str | int | bool]:
    arrival = life.arrival
    found: dict[str, str | int | bool] = {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": arrival.model,
        "gen_ai.request.max_tokens": arrival.output_tokens,
        "longproof.request_id": arrival.id,
        "longproof.tenant": arrival.tenant,
        "longproof.ending": life.ending,
    }
    if life.dispatch is not None:
        found |= {
            "longproof.replica": life.dispatch.replica,
            "longproof.pool": life.dispatch.pool,
            "longproof.attempt": life.dispatch.attempt,
            "longproof.predicted_ttft_ns": life.dispatch.predicted_ttft_ns,
        }
    if life.refusal is not None:
        found |= {"longproof.code": life.refusal.code, "http.response.status_code": life.refusal.status}
    if life.spent is not None:
        found |= {
            "gen_ai.usage.input_tokens": life.spent.input_tokens,
            "gen_ai.usage.output_tokens": life.spent.output_tokens,
        }
        if life.spent.cached_tokens is not None:
            found["gen_ai.usage.cache_read.input_tokens"] = life.spent.cached_tokens
    return found


def _some(bits: int) -> int:
    """A random id, never 0: that means "none"."""
    return secrets.randbits(bits) or 1
