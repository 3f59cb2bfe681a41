"""Runs under load made by hand: what evidence holds of a server that was asked by every probe of load.

loaded    a vLLM that queues, preempts once, slows down after a while and refuses at the top; a pair of servers too
bare      no metrics at all, one request in the only window with an answer, hostile words, everything else rejected
many      10,000 requests in windows of one sustained load
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

from longproof.claim.view import EvidenceView
from longproof.domain.deployment import EngineKind
from longproof.domain.events import EndedBy, EngineSample, RequestTimeline, ServerError
from longproof.domain.measure import Unknown, reported
from longproof.evidence.records import Body, NoteBody, SamplesBody, WindowBody
from longproof.testing.builders import (
    Cell,
    build_deployment,
    build_header,
    build_protocol,
    build_refusal,
    build_request,
    build_sample,
    build_timeline,
    build_view,
)
from longproof.testing.scenarios import HOSTILE

Entries = list[tuple[str, Body]]
Sent = tuple[Cell, RequestTimeline]
S, MS = 1_000_000_000, 1_000_000
GIB = 1 << 30
_PREEMPTIONS = "vllm:num_preemptions_total"
_WAITING = 'vllm:num_requests_waiting_by_reason{reason="capacity"}'
_SOURCE = "decode.vllm:prompt_tokens_by_source_total"


def asked(
    at_s: float, ttft_s: float, *, prompt: int = 200, output: int = 16, itl_ms: float = 10, cached: int = 0
) -> RequestTimeline:
    """A completed request, sent at `at_s`."""
    return build_timeline(
        prompt_tokens=prompt,
        max_tokens=output,
        ttft_ns=round(ttft_s * S),
        itl_ns=round(itl_ms * MS),
        submitted_ns=round(at_s * S),
        cached_tokens=cached,
    )


def rejected(at_s: float, *, words: str = "the queue is full", prompt: int = 200) -> RequestTimeline:
    """Refused for load, with how long to stay away."""
    refusal = build_refusal(
        prompt_tokens=prompt, status=503, headers={"retry-after": "2"}, error=ServerError(message=words)
    )
    sent = round(at_s * S)
    return replace(
        refusal,
        submitted_ns=sent,
        headers_ns=sent + 2 * MS,
        first_byte_ns=sent + 2 * MS,
        finished_ns=sent + 3 * MS,
    )


def left(at_s: float, after_s: float, *, chunks: int = 0) -> RequestTimeline:
    """Cancelled by us, after so many tokens."""
    whole = asked(at_s, after_s / 2 if chunks else after_s, prompt=1400)
    end = round((at_s + after_s) * S)
    return replace(
        whole,
        ended_by=EndedBy.CANCELLED,
        finished_ns=end,
        first_token_ns=whole.first_token_ns if chunks else None,
        first_answer_token_ns=whole.first_token_ns if chunks else None,
        chunks=whole.chunks[:chunks],
        finish_reason=None,
        usage=None,
    )


def window(
    probe: str,
    key: str,
    cell: Cell,
    load: Cell,
    sent: Sequence[Sent],
    span_s: tuple[float, float],
    samples: Sequence[EngineSample] = (),
) -> Entries:
    """The records of one window: requests, samples, and the window itself."""
    entries: Entries = []
    for i, (own, timeline) in enumerate(sent):
        left_ns = timeline.finished_ns if timeline.ended_by is EndedBy.CANCELLED else None
        body = build_request(
            probe, {**cell, **own}, timeline, planned_ns=timeline.submitted_ns, left_ns=left_ns, nonce=f"{i:04x}"
        )
        entries.append((f"{key}#1/{i}", body))
    if samples:
        entries.append((f"{key}#1/samples/0", SamplesBody(probe=probe, cell=cell, samples=tuple(samples))))
    body = WindowBody(
        probe=probe,
        cell=cell,
        prefix=f"{key}#1/",
        load=load,
        started_ns=round(span_s[0] * S),
        ended_ns=round(span_s[1] * S),
        requests=len(sent),
    )
    return [*entries, (key, body)]


Gauges = Callable[[float], tuple[int, int, float, int]]
"""Seconds → (running, waiting, KV usage, preemptions so far)."""


def samples(span_s: tuple[float, float], gauges: Gauges, *, every_s: float = 0.25) -> list[EngineSample]:
    """What vLLM's metrics say over a span."""
    found: list[EngineSample] = []
    for i in range(int((span_s[1] - span_s[0]) / every_s)):
        at = span_s[0] + i * every_s
        running, waiting, used, preempted = gauges(at)
        values = {_PREEMPTIONS: float(preempted), _WAITING: float(waiting)}
        found.append(build_sample(at_ns=round(at * S), running=running, waiting=waiting, kv_usage=used, values=values))
    return found


def _shorts(rng: random.Random, span_s: tuple[float, float], ttft_s: Callable[[float], float]) -> list[Sent]:
    found: list[Sent] = []
    at = span_s[0]
    while at < span_s[1]:
        wait = ttft_s(at) * rng.uniform(0.9, 1.15)
        found.append(({"role": "short"}, asked(at, wait, itl_ms=10 * rng.uniform(0.95, 1.1))))
        at += 0.12
    return found


def _busy(rng: random.Random) -> Entries:
    load: Cell = {"arrival": "closed", "concurrency": 8, "lengths": "short chat", "seed": 0, "lead_ns": S // 2}
    entries: Entries = []
    for i in range(3):
        alone = build_request("busy", {"role": "long", "length": 12_000}, asked(5 * i, 2 * rng.uniform(0.98, 1.02)))
        entries.append((f"busy/alone/{i}", alone))
    for name, start in (("before", 20.0), ("after", 60.0)):
        span = (start, start + 5)
        sent = _shorts(rng, span, lambda _: 0.05)
        entries += window(
            "busy", f"busy/{name}", {"phase": name}, load, sent, span, samples(span, lambda _: (6, 0, 0.12, 0))
        )
    for i, start in enumerate((30.0, 40.0, 50.0)):
        span = (start, start + 5)
        sent = _shorts(rng, span, lambda at, start=start: 0.3 if start + 1 <= at < start + 3.2 else 0.05)
        long = asked(start + 1, 2.2 * rng.uniform(0.97, 1.03), prompt=12_000, output=24)
        sent.append(({"role": "long", "length": 12_000}, long))

        def gauges(at: float, start: float = start, i: int = i) -> tuple[int, int, float, int]:
            inside = start + 1 <= at < start + 3.5
            return (8, 3, 0.97, i + (at > start + 2)) if inside else (6, 0, 0.12, i + (at > start + 2))

        cell: Cell = {"phase": "during", "length": 12_000, "repeat": i}
        entries += window("busy", f"busy/during/{i}", cell, load, sent, span, samples(span, gauges))
    return entries


def _reclaim(rng: random.Random) -> Entries:
    entries: Entries = [
        (f"reclaim/idle/{i}", build_request("reclaim", {"role": "idle", "length": 1400}, asked(100 + i, 0.4)))
        for i in range(3)
    ]
    for i in range(8):
        stage = ("prefill", "decode")[i % 2]
        start = 110.0 + 4 * i
        timeline = left(start + 0.5, 0.3) if stage == "prefill" else left(start + 0.5, 0.6, chunks=5)
        gone_s = timeline.finished_ns / S + rng.uniform(0.15, 0.3)

        def gauges(at: float, start: float = start, gone_s: float = gone_s) -> tuple[int, int, float, int]:
            held = start + 0.5 <= at < gone_s
            return (1, 0, 0.18, 0) if held else (0, 0, 0.0, 0)

        cell: Cell = {"by": "disconnect", "cycle": i, "length": 1400, "stage": stage}
        span = (start, start + 2)
        sent: list[Sent] = [({"role": "cancelled"}, timeline)]
        seen = samples(span, gauges, every_s=0.05)
        entries += window("reclaim", f"reclaim/{stage}/disconnect/{i}", cell, {"slow_s": 5.0}, sent, span, seen)
    return entries


def _restart(rng: random.Random) -> Entries:
    detail: Cell = {"how": "systemctl restart vllm", "took_ns": 21 * S, "ready_ns": 24 * S, "tries": 6}
    restarted = NoteBody(probe="restart", what="restarted", detail={**detail, "same_process": False})
    first: Cell = {"phase": "after", "what": "first", "length": 1000, "repeat": 0}
    entries: Entries = [
        ("restart/restarted", restarted),
        ("restart/first", build_request("restart", first, asked(190, 0.9, prompt=1000))),
    ]
    usual = {("speed", 1000): 0.25, ("speed", 4000): 0.9, ("largest", 16_000): 3.4, ("again", 4000): 0.08}
    for phase, slower in (("before", 1.0), ("after", 1.6)):
        for (what, length), ttft in usual.items():
            for repeat in range(4):
                factor = (slower if what == "again" else 1.0) * rng.uniform(0.97, 1.03)
                cell: Cell = {"phase": phase, "what": what, "length": length, "repeat": repeat}
                cached = length - 16 if what == "again" else 0
                timeline = asked(150 + repeat, ttft * factor, prompt=length, cached=cached)
                entries.append((f"restart/{phase}/{what}/{length}/{repeat}", build_request("restart", cell, timeline)))
    return entries


def _disaggregated(rng: random.Random) -> Entries:
    entries: Entries = []
    for length, prefill, handover in ((1000, 0.3, 0.05), (4000, 1.1, 0.12), (12_000, 3.6, 0.3)):
        for repeat in range(3):
            parts = prefill * rng.uniform(0.97, 1.03), handover * rng.uniform(0.9, 1.1)
            timings = {"pd_prefill_ns": parts[0] * S, "pd_decode_ttft_ns": parts[1] * S}
            timeline = replace(asked(200, sum(parts), prompt=length, output=32), engine_timings=timings)
            cell: Cell = {"arm": "pair", "length": length, "repeat": repeat}
            before = build_sample(values={f'{_SOURCE}{{source="external_kv_transfer"}}': 0.0})
            after = build_sample(values={f'{_SOURCE}{{source="external_kv_transfer"}}': float(length)})
            body = build_request("disaggregated", cell, timeline, before=before, after=after)
            entries.append((f"disaggregated/pair/{length}/{repeat}", body))
    return entries


def _conversation(rng: random.Random) -> Entries:
    entries: Entries = [
        ("conversation/shared", NoteBody(probe="conversation", what="shared_prefix", detail={"tokens": 30}))
    ]
    for together in (1, 4):
        for repeat in range(3):
            for turn in range(1, 5):
                length = 2000 + 400 * (turn - 1)
                known = length - 400 if turn > 1 else 0
                key = f"conversation/c{together}/{repeat}/1/turn{turn}"
                cell: Cell = {"concurrency": together, "repeat": repeat, "attempt": 1, "turn": turn}
                sent: list[Sent] = []
                for i in range(together):
                    ttft = (0.02 + (length - known) / 4000) * rng.uniform(0.95, 1.05) * together**0.5
                    sent.append(({"conversation": i}, asked(210, ttft, prompt=length, cached=known)))
                load: Cell = {"conversations": together}
                entries += window("conversation", key, cell, load, sent, (210.0, 214.0))
    return entries


def _sweep(rng: random.Random) -> Entries:
    entries: Entries = []
    for length in (1000, 4000, 12_000):
        for together in (1, 2, 4, 8, 16):
            if length * together > 100_000:
                continue
            for cache in ("cold", "hit"):
                new = length if cache == "cold" else length // 8
                sent: list[Sent] = []
                for _ in range(max(2, together)):
                    ttft = (0.02 + new / 4000) * together**0.7 * rng.uniform(0.9, 1.1)
                    cached = length - new
                    one = asked(220, ttft, prompt=length, cached=cached, itl_ms=9 * together**0.3)
                    sent.append(({}, one))
                cell: Cell = {"length": length, "concurrency": together, "cache": cache, "round": 0}
                load: Cell = {"concurrency": together, "requests": len(sent), "slo_ttft_s": 4.0, "slo_tpot_s": 0.05}
                key = f"sweep/{length}/c{together}/{cache}/0"
                entries += window("sweep", key, cell, load, sent, (220.0, 240.0))
    return entries


def sustained(rng: random.Random, *, windows: int, shorts: int, slow_from: int, start_s: float = 300.0) -> Entries:
    """Windows of 10 s: `shorts` short requests and two long ones each; from window `slow_from` on everything takes
    twice as long, KV stays behind, and memory grows."""
    entries: Entries = []
    for index in range(windows):
        begun = start_s + 11 * index
        factor = 2.0 if index >= slow_from else 1.0
        sent: list[Sent] = []
        for i in range(shorts + 2):
            role, length, ttft = ("short", 200, 0.1) if i < shorts else ("long", 4000, 0.9)
            took = ttft * factor * rng.uniform(0.93, 1.07)
            one = asked(begun + 9 * i / (shorts + 2), took, prompt=length, itl_ms=10 * factor * rng.uniform(0.97, 1.03))
            sent.append(({"role": role, "length": length}, one))
        load: Cell = {"windows": windows, "concurrency": 4, "short_tokens": 200, "long_tokens": 4000}
        key = f"sustained/{index:04d}"
        span = (begun, begun + 10)
        seen = samples(span, lambda at: (4, 0, 0.2 + 0.02 * (at % 3), 0), every_s=1.0)
        entries += window("sustained", key, {"window": index}, {**load, "longs_per_window": 2}, sent, span, seen)
        floor = 0.002 * max(0, index - slow_from)
        idle: Cell = {"window": index, "kv_usage": floor, "memory_of": "the process that serves /metrics"}
        idle["memory_bytes"] = round(4 * GIB * (1 + 0.01 * index * rng.uniform(0.95, 1.05)))
        entries.append((f"{key}/idle", NoteBody(probe="sustained", what="idle", detail=idle)))
    return entries


def _overload(rng: random.Random) -> Entries:
    entries: Entries = []
    common: Cell = {"prompt_tokens": 1024, "output_tokens": 16, "seed": 0, "slo_times": 5.0, "for_ns": 4 * S}
    capacity = 8
    for number, together in enumerate((1, 2, 4, 8, 16, 32)):
        start = 700.0 + 10 * number
        slow = max(1.0, together / capacity)
        sent: list[Sent] = []
        for i in range(min(40, 6 * together)):
            at = start + 4 * i / min(40, 6 * together)
            over = together > 16 and i % 3 == 0
            one = (
                rejected(at)
                if over
                else asked(at, 0.2 * slow**2 * rng.uniform(0.9, 1.1), prompt=1024, itl_ms=10 * slow)
            )
            sent.append(({"role": "load"}, one))
        span = (start, start + 6)

        def gauges(at: float, together: int = together) -> tuple[int, int, float, int]:
            return (min(together, capacity), max(0, together - capacity), min(0.99, 0.11 * together), int(at > 754.0))

        cell: Cell = {"phase": "idle" if number == 0 else "step", "number": number}
        key = "overload/idle" if number == 0 else f"overload/step/{together}"
        load: Cell = {**common, "concurrency": together, "arrival": "closed"}
        entries += window("overload", key, cell, load, sent, span, samples(span, gauges))
    band: Cell = {"ttft_ns": 300 * MS, "tpot_ns": 30 * MS, "in_a_row": 3, "most_ns": 60 * S}
    entries.append(("overload/band", NoteBody(probe="overload", what="band", detail=band)))
    after: list[Sent] = [({"role": "load"}, asked(757 + i, 1.2 / (i + 1) + 0.1, prompt=1024)) for i in range(10)]
    cell = {"phase": "recovery", "number": 6}
    return entries + window("overload", "overload/recovery/0", cell, {**common, "concurrency": 1}, after, (756, 768))


def loaded() -> EvidenceView:
    """Every probe of load against one server: what the sections of the report are drawn from."""
    rng = random.Random(11)
    deployment = build_deployment(
        engine=EngineKind.VLLM,
        engine_version=reported("0.32.0", "GET /version"),
        model=reported("Qwen/Qwen3.5-27B", "GET /v1/models"),
        limit_tokens=16_384,
        slot_limit_tokens=Unknown(reason="vLLM has no slots"),
        kv_capacity_tokens=reported(49_152, "GET /metrics vllm:cache_config_info"),
    )
    entries = [
        *_busy(rng),
        *_reclaim(rng),
        *_restart(rng),
        *_disaggregated(rng),
        *_conversation(rng),
        *_sweep(rng),
        *sustained(rng, windows=20, shorts=6, slow_from=12),
        *_overload(rng),
    ]
    return build_view(
        *entries, header=build_header(deployment=deployment, protocol=build_protocol(request_timeout_s=60.0))
    )


def bare() -> EvidenceView:
    """A server without metrics that answers one request of one window; the heaviest step and the busy windows are
    rejected as a whole, in hostile words."""
    load: Cell = {"concurrency": 8, "arrival": "closed", "lengths": HOSTILE, "seed": 0, "for_ns": S, "slo_times": 5.0}

    def one(at: float) -> list[Sent]:
        return [({"role": "short", "length": 200}, asked(at, 0.2))]

    def none(at: float) -> list[Sent]:
        return [({"role": "short"}, rejected(at + i / 10, words=HOSTILE)) for i in range(12)]

    long: Sent = ({"role": "long", "length": 6000}, rejected(11.5, words=HOSTILE, prompt=6000))
    during: Cell = {"phase": "during", "length": 6000, "repeat": 0}
    idle: Cell = {"phase": "idle", "number": 0}
    entries = [
        *window("busy", "busy/before", {"phase": "before"}, load, one(1.0), (1.0, 3.0)),
        *window("busy", "busy/during/0", during, load, [*none(10), long], (10.0, 14.0)),
        *window("overload", "overload/idle", idle, {**load, "concurrency": 1}, one(30), (30.0, 32.0)),
        *window("overload", "overload/step/8", {"phase": "step", "number": 1}, load, none(40), (40.0, 42.0)),
        *window("sustained", "sustained/0000", {"window": 0}, {"windows": 1, **load}, one(50), (50.0, 52.0)),
    ]
    return build_view(*entries, header=build_header(deployment=build_deployment()))


def many() -> EvidenceView:
    """10,000 requests: 100 windows of 100."""
    return build_view(*sustained(random.Random(3), windows=100, shorts=98, slow_from=1_000))


LOAD_SCENARIOS: dict[str, Callable[[], EvidenceView]] = {"loaded": loaded, "bare": bare, "many": many}
"""By name; each call gives the same run again."""
