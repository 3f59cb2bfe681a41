"""Whole runs made by hand: what the evidence directories of a few very different servers would hold.

full       an honest llama.cpp, everything run      refused   every request answered by 503
once       n = 1, cut short, not sealed             nothing   killed before the first request
million    1M tokens, a hang above the boundary     lying     many faults, hostile words, a very long model name
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from longproof.claim.view import EvidenceView
from longproof.domain.deployment import Deployment, EngineKind
from longproof.domain.events import EndedBy, RequestTimeline, ServerError, Usage
from longproof.domain.measure import Unknown, derived, reported
from longproof.evidence.records import Body, NoteBody, RequestBody, SessionBody
from longproof.testing.builders import (
    Cell,
    build_count,
    build_deployment,
    build_hang,
    build_header,
    build_protocol,
    build_refusal,
    build_request,
    build_timeline,
    build_view,
)

Entries = list[tuple[str, Body]]
OUTPUT_TOKENS = 16
HOSTILE = '<script>document.title="owned"</script><img src=x onerror=alert(1)>"\'&\x1b[31mred\x1b[0m\u202egnp.exe'
SALT = "5a" * 16


def _session(seed: int = 0) -> tuple[str, Body]:
    return f"session/{seed}", SessionBody(
        started_wall="2026-01-01T12:00:00+00:00",
        started_ns=0,
        salt=SALT,
        longproof_version="0.1.0",
        host={"cpu": "2 × x86-64", "system": "Linux 6.1"},
    )


def _prefill_s(tokens: int, rate: float, knee: float) -> float:
    return 0.02 + tokens / rate + (tokens / knee) ** 2 / rate * knee * 0.5


def _timeline(
    rng: random.Random, tokens: int, *, rate: float, knee: float, itl_ms: float, **more: Any
) -> RequestTimeline:
    ttft = _prefill_s(tokens, rate, knee) * rng.uniform(0.97, 1.06)
    return build_timeline(
        prompt_tokens=tokens,
        max_tokens=more.pop("max_tokens", OUTPUT_TOKENS),
        ttft_ns=round(ttft * 1e9),
        itl_ns=round(itl_ms * (1 + tokens / 4 / knee) * rng.uniform(0.95, 1.08) * 1e6),
        **more,
    )


def _speed(rng: random.Random, lengths: list[int], repeats: int, **pace: Any) -> Iterator[tuple[str, RequestBody]]:
    for length in lengths:
        for repeat in range(repeats):
            cell: Cell = {"arm": "cold", "length": length, "repeat": repeat}
            yield f"speed/cold/{length}/{repeat}", build_request("speed", cell, _timeline(rng, length, **pace))


def _warmth(rng: random.Random, lengths: list[int], repeats: int, **pace: Any) -> Iterator[tuple[str, Body]]:
    for length in lengths:
        for repeat in range(repeats):
            for arm, cached in (("cold", 0), ("again", length - 1), ("new_tail", length * 7 // 8)):
                timeline = _timeline(rng, length, **pace)
                fresh = _prefill_s(length - cached, pace["rate"], pace["knee"]) * rng.uniform(0.9, 1.2)
                if cached:
                    usage = Usage(prompt_tokens=length, completion_tokens=OUTPUT_TOKENS, cached_tokens=cached)
                    timeline = build_timeline(prompt_tokens=length, ttft_ns=round(fresh * 1e9), usage=usage)
                cell: Cell = {"arm": arm, "length": length, "repeat": repeat}
                yield f"warmth/{arm}/{length}/{repeat}", build_request("warmth", cell, timeline)


Answer = Callable[[int, int], RequestTimeline]
"""(prompt tokens, output tokens) → what the server does."""


def _edge(limit: int, answer: Answer) -> Iterator[tuple[str, Body]]:
    places = {"limit-2": limit - 2, "limit-1": limit - 1, "limit": limit, "limit+1": limit + 1, "far": 2 * limit}
    for position, prompt in places.items():
        cell: Cell = {"arm": "edge", "position": position, "prompt": prompt, "output": OUTPUT_TOKENS}
        yield f"accounting/edge/{position}", build_request("accounting", cell, answer(prompt, OUTPUT_TOKENS))


def _counts(lengths: list[int]) -> Iterator[tuple[str, Body]]:
    yield "accounting/template", build_count("accounting", {"arm": "template"}, total=31)
    for length in lengths:
        cell: Cell = {"arm": "length", "prompt": length}
        yield f"accounting/length/{length}", build_count("accounting", cell, total=length)


def _boundary(totals: list[int], repeats: int, answer: Answer) -> Iterator[tuple[str, Body]]:
    for total in totals:
        for repeat in range(repeats):
            cell: Cell = {"total": total, "prompt": total - OUTPUT_TOKENS, "output": OUTPUT_TOKENS, "repeat": repeat}
            timeline = answer(total - OUTPUT_TOKENS, OUTPUT_TOKENS)
            yield f"boundary/{total}/{repeat}", build_request("boundary", cell, timeline)


def _llama(limit: int, **pace: Any) -> Answer:
    """llama.cpp clips the output near the limit and refuses prompts that fill the window."""
    rng = random.Random(7)

    def answer(prompt: int, output: int) -> RequestTimeline:
        if prompt >= limit:
            return build_refusal(prompt_tokens=prompt, limit_tokens=limit)
        return _timeline(rng, prompt, output_tokens=min(output, limit - prompt), **pace)

    return answer


def full() -> EvidenceView:
    """An embedded llama.cpp, everything run, five repeats: the picture most readers will see."""
    rng, limit = random.Random(1), 8192
    pace = {"rate": 380.0, "knee": 9000.0, "itl_ms": 28.0}
    lengths = [128, 256, 512, 1024, 2048, 4096, 8176]
    deployment = build_deployment(
        limit_tokens=limit,
        model=reported("SmolLM2-135M-Instruct", "GET /v1/models"),
        model_file=reported("SmolLM2-135M-Instruct.Q4_1.gguf", "GET /props model_path"),
        kv_capacity_tokens=derived(limit, "n_ctx × 1 slot (GET /slots)"),
        kv_dtype=reported("f16", "command line"),
    )
    answer = _llama(limit, **pace)
    entries: Entries = [
        _session(),
        *_counts(lengths),
        *_edge(limit, answer),
        *_boundary([8192, 8193], 3, answer),
        *_speed(rng, lengths, 5, **pace),
        *_warmth(rng, lengths[2:], 3, **pace),
    ]
    return build_view(*entries, header=build_header(deployment=deployment, protocol=build_protocol(repeats=5)))


def once() -> EvidenceView:
    """One repeat of everything at two lengths, and the run was cut short before it was sealed."""
    rng, limit = random.Random(2), 2048
    pace = {"rate": 380.0, "knee": 9000.0, "itl_ms": 28.0}
    answer = _llama(limit, **pace)
    entries: Entries = [
        _session(),
        *_edge(limit, answer),
        *_boundary([limit], 1, answer),
        *_speed(rng, [512, 1024], 1, **pace),
        ("boundary/budget", NoteBody(probe="warmth", what="budget spent", detail={"left_tokens": 120})),
    ]
    protocol = build_protocol(repeats=1, budget_tokens=20_000, not_run={"warmth": "left out with --only"})
    header = build_header(deployment=build_deployment(limit_tokens=limit), protocol=protocol)
    return build_view(*entries, header=header, sealed=False, complete=False)


def refused() -> EvidenceView:
    """A server that answers every request with 503: there must still be a full report."""
    words = "Loading model"
    busy = replace(
        build_refusal(prompt_tokens=100),
        status=503,
        error=ServerError(message=words, type="unavailable_error", code="503"),
    )

    def answer(prompt: int, output: int) -> RequestTimeline:
        return replace(busy, prompt_tokens_sent=prompt, max_tokens=output)

    entries: Entries = [
        _session(),
        *_edge(4096, answer),
        *_boundary([4096, 1024], 2, answer),
        *(
            (f"speed/cold/{n}/0", build_request("speed", {"arm": "cold", "length": n, "repeat": 0}, answer(n, 16)))
            for n in (512, 1024)
        ),
    ]
    deployment = build_deployment(limit_tokens=4096, kv_capacity_tokens=Unknown(reason="the server does not report it"))
    return build_view(*entries, header=build_header(deployment=deployment))


def nothing() -> EvidenceView:
    """A run that was killed before its first request, against a server that tells nothing of itself."""
    silent = Deployment(engine=EngineKind.OPENAI)
    header = build_header(deployment=silent, target="https://llm.example/v1")
    return build_view(_session(), header=header, sealed=False, complete=False)


def million() -> EvidenceView:
    """A large deployment: 1M tokens, a KV pool of several sequences, a hang above the boundary."""
    rng, limit = random.Random(4), 1_048_576
    pace = {"rate": 24_000.0, "knee": 260_000.0, "itl_ms": 19.0}
    lengths = [8_000, 32_000, 131_072, 262_144, 524_288, 1_000_000]
    deployment = build_deployment(
        engine=EngineKind.VLLM,
        engine_version=reported("0.32.0", "GET /version"),
        engine_build=Unknown(reason="the server does not report it"),
        model=reported("Qwen/Qwen3-235B-A22B-Instruct-2507-FP8", "GET /v1/models"),
        model_file=Unknown(reason="the server does not report it"),
        weight_dtype=reported("fp8", "engine log line 41"),
        limit_tokens=limit,
        slot_limit_tokens=Unknown(reason="vLLM has no slots"),
        kv_capacity_tokens=reported(3_407_872, "GET /metrics vllm:cache_config_info num_gpu_blocks × block_size"),
        block_size_tokens=reported(16, "GET /metrics vllm:cache_config_info"),
        kv_dtype=reported("fp8_e4m3", "GET /metrics vllm:cache_config_info"),
        prefix_caching=reported(True, "GET /metrics vllm:cache_config_info"),
        layout=reported("tp 8, dcp 8", "engine log line 12"),
    )

    def answer(prompt: int, output: int) -> RequestTimeline:
        if prompt + output > 1_000_448:
            return build_hang(prompt_tokens=prompt, timeout_ns=900_000_000_000)
        return _timeline(rng, prompt, max_tokens=output, **pace)

    totals = [1_048_576, 8_192, 528_384, 788_480, 918_528, 983_552, 1_016_064, 999_808, 1_007_936, 1_003_872, 1_001_840]
    totals += [1_000_824, 1_000_316, 1_000_570, 1_000_443]
    entries: Entries = [
        _session(),
        *_counts(lengths),
        *_edge(limit, answer),
        *_boundary(totals, 1, answer),
        *_speed(rng, lengths, 3, **pace),
        *_warmth(rng, lengths[:4], 2, **pace),
    ]
    header = build_header(
        deployment=deployment,
        protocol=build_protocol(request_timeout_s=900.0, budget_ns=7_200_000_000_000),
        target="https://inference.internal.example:8443",
    )
    return build_view(*entries, header=header)


def lying() -> EvidenceView:
    """A server with many faults and hostile words, under a very long model name."""
    rng, limit = random.Random(5), 4096
    pace = {"rate": 380.0, "knee": 9000.0, "itl_ms": 28.0}
    name = f"{HOSTILE}/" + "a-very-long-organisation-name-without-any-break/" * 4
    kinds: list[Callable[[RequestTimeline], RequestTimeline]] = [
        lambda t: replace(t, usage=Usage(prompt_tokens=2048, completion_tokens=16, cached_tokens=None)),
        lambda t: replace(t, ended_by=EndedBy.CUT, finish_reason=None, transport_error=f"peer closed: {HOSTILE}"),
        lambda t: replace(t, error=ServerError(message=HOSTILE, in_stream=True)),
        lambda t: replace(t, chunks=(), first_token_ns=None, finish_reason="stop"),
        lambda t: replace(t, finish_reason="abort"),
        lambda t: t,
    ]
    long_words = "CUDA error: an illegal memory access was encountered. " * 120 + HOSTILE

    def answer(prompt: int, output: int) -> RequestTimeline:
        if prompt > limit:
            error = ServerError(message=long_words, type="InternalServerError", code="500")
            return replace(build_refusal(prompt_tokens=prompt, limit_tokens=limit), status=500, error=error)
        return rng.choice(kinds)(_timeline(rng, prompt, max_tokens=output, **pace))

    entries: Entries = [
        _session(),
        _session(1),
        *_edge(limit, answer),
        *_boundary([4096, 1024, 2560, 3328, 2944], 2, answer),
        *(
            (key, replace(body, timeline=kinds[i % 6](body.timeline)))
            for i, (key, body) in enumerate(_speed(rng, [256, 512, 1024, 2048, 3000, 4000], 3, **pace))
        ),
    ]
    deployment = build_deployment(limit_tokens=limit, model=reported(name, "GET /v1/models"))
    return build_view(*entries, header=build_header(deployment=deployment, target=f"http://127.0.0.1:8080/{HOSTILE}"))


SCENARIOS: dict[str, Callable[[], EvidenceView]] = {
    "full": full,
    "once": once,
    "refused": refused,
    "nothing": nothing,
    "million": million,
    "lying": lying,
}
"""By name; each call gives the same run again."""
