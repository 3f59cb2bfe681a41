"""Evidence made by hand: every builder gives a sensible, consistent whole, and takes overrides for what a test needs.

build_timeline(prompt_tokens=4096, ttft_ns=900_000_000)      a completed request
build_timeline(max_tokens=16, output_tokens=2)               a clamped one
build_refusal(prompt_tokens=9000)                            a 400 that speaks of length
build_request("speed", {"tokens": 4096, "repeat": 0})        its RequestBody
build_view(body, body, …)                                    what a finding reads
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import Any, TypeAlias

import longproof
from longproof.claim.view import EvidenceView
from longproof.domain.deployment import Deployment, EngineKind
from longproof.domain.events import Channel, ContentChunk, EndedBy, EngineSample, RequestTimeline, ServerError, Usage
from longproof.domain.measure import reported
from longproof.domain.request import CountSource, Route, TokenCount
from longproof.evidence.records import (
    FORMAT,
    Body,
    CountBody,
    Fingerprint,
    Header,
    NoteBody,
    Protocol,
    Record,
    RequestBody,
    SessionBody,
    Step,
)

Cell: TypeAlias = dict[str, int | float | str | bool]
NO_LINE_BEFORE = "0" * 64


def build_timeline(
    *,
    prompt_tokens: int = 100,
    max_tokens: int = 16,
    output_tokens: int | None = None,
    cached_tokens: int = 0,
    ttft_ns: int = 100_000_000,
    itl_ns: int = 10_000_000,
    submitted_ns: int = 1_000_000_000,
    text: str | None = None,
    **overrides: Any,
) -> RequestTimeline:
    """A request as an honest engine answers it: one chunk per token, usage right, [DONE] at the end.

    The first token comes `ttft_ns` after submission, the others `itl_ns` apart. `output_tokens` defaults to
    `max_tokens`. `overrides` are fields of RequestTimeline and win over everything derived here.
    """
    produced = max_tokens if output_tokens is None else output_tokens
    first = submitted_ns + ttft_ns
    words = " ".join(["word"] * produced) if text is None else text
    chunks = tuple(ContentChunk(at_ns=first + i * itl_ns, chars=5, channel=Channel.ANSWER) for i in range(produced))
    last = chunks[-1].at_ns if chunks else first
    timeline = RequestTimeline(
        request_id=f"request-{prompt_tokens}",
        route=Route.CHAT,
        submitted_ns=submitted_ns,
        finished_ns=last + 1_000_000,
        ended_by=EndedBy.DONE,
        prompt_tokens_sent=prompt_tokens,
        count_source=CountSource.SERVER,
        max_tokens=max_tokens,
        body_bytes=prompt_tokens * 5 + 200,
        headers_ns=submitted_ns + 2_000_000,
        first_byte_ns=submitted_ns + 3_000_000,
        first_event_ns=submitted_ns + 3_000_000,
        first_token_ns=first if produced else None,
        first_answer_token_ns=first if produced else None,
        status=200,
        headers={"content-type": "text/event-stream", "server": "llama.cpp"},
        chunks=chunks,
        text=words,
        finish_reason="length",
        usage=Usage(prompt_tokens=prompt_tokens, completion_tokens=produced, cached_tokens=cached_tokens),
    )
    return replace(timeline, **overrides)


def build_refusal(*, prompt_tokens: int = 9000, limit_tokens: int = 8192, **overrides: Any) -> RequestTimeline:
    """A request refused with status 400 because of its length, in llama.cpp's words (server-context.cpp, 2026-10)."""
    submitted = 1_000_000_000
    actual, limit = f"request ({prompt_tokens} tokens)", f"the available context size ({limit_tokens} tokens)"
    fields: dict[str, Any] = {
        "finished_ns": submitted + 5_000_000,
        "ended_by": EndedBy.HTTP_ERROR,
        "first_event_ns": None,
        "first_token_ns": None,
        "first_answer_token_ns": None,
        "status": 400,
        "headers": {"content-type": "application/json; charset=utf-8", "server": "llama.cpp"},
        "chunks": (),
        "text": "",
        "finish_reason": None,
        "usage": None,
        "error": ServerError(
            message=f"{actual} exceeds {limit}, try increasing it",
            type="exceed_context_size_error",
            code="400",
            fields={"n_prompt_tokens": prompt_tokens, "n_ctx": limit_tokens},
        ),
    }
    return build_timeline(prompt_tokens=prompt_tokens, submitted_ns=submitted, **(fields | overrides))


def build_hang(*, prompt_tokens: int = 9000, timeout_ns: int = 60_000_000_000, **overrides: Any) -> RequestTimeline:
    """A request that got not one byte until we gave up after `timeout_ns`."""
    submitted = 1_000_000_000
    fields: dict[str, Any] = {
        "finished_ns": submitted + timeout_ns,
        "ended_by": EndedBy.TIMEOUT,
        "headers_ns": None,
        "first_byte_ns": None,
        "first_event_ns": None,
        "first_token_ns": None,
        "first_answer_token_ns": None,
        "status": None,
        "headers": {},
        "chunks": (),
        "text": "",
        "finish_reason": None,
        "usage": None,
    }
    return build_timeline(prompt_tokens=prompt_tokens, submitted_ns=submitted, **(fields | overrides))


def build_deployment(*, limit_tokens: int = 8192, slots: int = 1, **overrides: Any) -> Deployment:
    """An embedded llama.cpp serving a small model with all that it reports. `overrides` are fields of Deployment."""
    props = "GET /props"
    deployment = Deployment(
        engine=EngineKind.LLAMACPP,
        engine_version=reported("b7000", f"{props} build_info"),
        engine_build=reported("b7000-unknown", f"{props} build_info"),
        model=reported("fake-135m", "GET /v1/models"),
        model_file=reported("fake-135m.Q4_1.gguf", f"{props} model_path"),
        weight_dtype=reported("Q4_1", f"{props} model_ftype"),
        configured_limit_tokens=reported(limit_tokens, f"{props} default_generation_settings.n_ctx"),
        trained_limit_tokens=reported(8192, "GET /v1/models meta.n_ctx_train"),
        slots=reported(slots, f"{props} total_slots"),
        slot_limit_tokens=reported(limit_tokens, "GET /slots n_ctx"),
    )
    return replace(deployment, **overrides)


def build_protocol(**overrides: Any) -> Protocol:
    """A protocol that runs all four probes over the chat route without a budget. `overrides` are fields of Protocol."""
    protocol = Protocol(
        seed=0,
        route=Route.CHAT,
        context_tokens=None,
        repeats=3,
        output_tokens=16,
        request_timeout_s=60.0,
        budget_ns=None,
        budget_tokens=None,
        steps=tuple(Step(probe=name, parameters={}) for name in ("accounting", "boundary", "speed", "warmth")),
    )
    return replace(protocol, **overrides)


def build_fingerprint(deployment: Deployment) -> Fingerprint:
    """Known facts and a digest over them. The digest differs when facts do; it need not be the one longproof writes."""
    facts = deployment.known()
    return Fingerprint(facts=facts, digest=hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest())


def build_header(*, deployment: Deployment | None = None, protocol: Protocol | None = None, **overrides: Any) -> Header:
    """The header of an evidence directory. `overrides` are fields of Header."""
    subject = deployment or build_deployment()
    header = Header(
        format=FORMAT,
        longproof_version=longproof.__version__,
        target="http://127.0.0.1:8080",
        fingerprint=build_fingerprint(subject),
        deployment=subject,
        protocol=protocol or build_protocol(),
    )
    return replace(header, **overrides)


def build_request(
    probe: str, cell: Cell | None = None, timeline: RequestTimeline | None = None, **overrides: Any
) -> RequestBody:
    """A probe's request. `overrides` are fields of RequestBody (before, after, nonce …)."""
    body = RequestBody(
        probe=probe,
        cell=cell or {},
        timeline=timeline or build_timeline(),
        prompt_sha256="a" * 64,
        nonce="f00d",
    )
    return replace(body, **overrides)


def build_count(probe: str, cell: Cell | None = None, *, total: int | None = 100, **overrides: Any) -> CountBody:
    """A server's count of a chat prompt with 20 tokens of template, 6 of them special; `total=None`: it gave none."""
    template = 0 if total is None else min(20, total)
    count = None
    if total is not None:
        count = TokenCount(
            total=total,
            content=total - template,
            template=template,
            special=min(6, template),
            source=CountSource.SERVER,
            how="POST /v1/chat/completions/input_tokens",
        )
    error = "404 Not Found" if total is None else None
    return replace(CountBody(probe=probe, cell=cell or {}, count=count, error=error), **overrides)


def build_sample(*, at_ns: int = 1_000_000_000, **overrides: Any) -> EngineSample:
    """An idle engine's metrics. `overrides` are fields of EngineSample."""
    return replace(EngineSample(at_ns=at_ns, running=0, waiting=0, kv_usage=0.0), **overrides)


def build_record(body: Body, *, seq: int = 0, key: str | None = None, prev: str = NO_LINE_BEFORE) -> Record:
    """A record around a body; without `key` one is made of probe, cell and `seq`, so keys are unique within a view."""
    return Record(seq=seq, key=key or _key(body, seq), prev=prev, body=body)


def build_view(
    *entries: Body | tuple[str, Body],
    header: Header | None = None,
    sealed: bool = True,
    complete: bool = True,
    digest: str = "b" * 64,
) -> EvidenceView:
    """What a finding reads: a view over bodies, or (key, body) pairs, in the order given."""
    keyed = [item if isinstance(item, tuple) else (None, item) for item in entries]
    records = tuple(build_record(body, seq=seq, key=key) for seq, (key, body) in enumerate(keyed))
    return EvidenceView(
        header=header or build_header(), records=records, sealed=sealed, complete=complete, digest=digest
    )


def _key(body: Body, seq: int) -> str:
    if isinstance(body, SessionBody):
        return f"session/{seq}"
    if isinstance(body, NoteBody):
        return f"{body.probe}/note/{seq}"
    coordinates = ",".join(f"{name}={value}" for name, value in body.cell.items())
    return f"{body.probe}/{coordinates or body.kind}/{seq}"
