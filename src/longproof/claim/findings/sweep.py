"""Reads what `probe/sweep` asked: times and rates of every length × concurrency × cache, and what got lost on the way.

Times are of completed requests. Rates are per round, a round being one closed loop from its first request to the end of
its last: the rounds are the samples. Goodput needs somebody to say what good is; without that there is none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from longproof.claim.findings.sweep_cells import PROBE, CellSeen, Sent, cells_of, gaps_of
from longproof.claim.metrics import METRICS
from longproof.claim.sampled import Sampled, describe_spread, sampled_statement, show
from longproof.claim.statements import Finding, NotShown, Severity, Standing, Statement
from longproof.claim.view import EvidenceView, Window
from longproof.domain.measure import Interval, Measured, Provenance, Unknown
from longproof.domain.outcome import tokens_produced
from longproof.domain.outcome_words import counted
from longproof.domain.units import format_tokens
from longproof.stats.bootstrap import clustered_quantile, pooled_quantile
from longproof.stats.proportion import clopper_pearson

_CACHE_WORDS = {"cold": "cold", "hit": "with a known prefix"}
_QUANTILES = {"sweep_itl_p50": 0.5, "sweep_itl_p95": 0.95, "sweep_itl_p99": 0.99}
_KEPT_SHARE = 0.8
_LOST_SHARE = 0.5


def read(view: EvidenceView) -> Iterator[Statement | Finding | NotShown]:
    """Statements per cell, prompts that were not cold, prefixes that were lost, and what could not be measured."""
    cells = cells_of(view)
    rng = np.random.default_rng(view.header.protocol.seed)
    for cell in cells:
        yield from _times(cell)
        yield from _itl(cell, rng)
        yield from _rates(cell)
        yield _success(cell)
        yield from _cached(cell)
    yield from _not_cold(cells)
    yield from _cache_lost(cells)
    yield from _server_gone(view)
    yield from _not_measured(view, cells)


def _conditions(cell: CellSeen) -> dict[str, str]:
    found = {
        "concurrency": str(cell.concurrency),
        "cache": cell.cache,
        "load": f"closed loop, {cell.concurrency} at once",
        "rounds": str(len(cell.windows)),
    }
    if cell.cache == "hit":
        share = cell.cached_share()
        found["cached"] = "not reported" if share is None else f"{100 * share:.3g} % by the server's word"
    parts = [counted(request.timeline for request in cell.failed)] if cell.failed else []
    parts += [f"{len(cell.warm)} not cold"] if cell.warm else []
    return {**found, "left_out": ", ".join(parts)} if parts else found


def _where(cell: CellSeen) -> str:
    return f"{format_tokens(cell.length)} tokens {_CACHE_WORDS[cell.cache]}, {cell.concurrency} at once"


def _sampled(cell: CellSeen, metric: str, what: str, samples: Sequence[Sampled], why_none: str) -> Statement:
    said = sampled_statement(
        metric,
        samples,
        probe=PROBE,
        subject=f"{what}, {_where(cell)}",
        at_tokens=cell.length,
        conditions=_conditions(cell),
        why_none=why_none,
    )
    return replace(said, id=f"{PROBE}.{metric}.{cell.name}")


def _times(cell: CellSeen) -> Iterator[Statement]:
    of_metric: dict[str, tuple[str, Callable[[Sent], float | None], str]] = {
        "sweep_ttft": ("Time to first token", lambda sent: _seconds(sent.timeline.ttft_ns), "no request completed"),
        "sweep_tpot": (
            "Time per output token after the first",
            lambda sent: _seconds(sent.timeline.tpot_ns),
            "no usage, or fewer than two output tokens",
        ),
        "sweep_request_rate": (
            "Output tokens per second after the first, each request",
            lambda sent: 1e9 / sent.timeline.tpot_ns if sent.timeline.tpot_ns else None,
            "no usage, or fewer than two output tokens",
        ),
    }
    for metric, (what, measure, why_none) in of_metric.items():
        samples = [Sampled(value=value, key=sent.key) for sent in cell.kept if (value := measure(sent)) is not None]
        said = _sampled(cell, metric, what, samples, why_none)
        yield _with_quantiles(said) if metric != "sweep_request_rate" else said


def _with_quantiles(said: Statement) -> Statement:
    """The sentence with the sample's own quantiles, as far as its size carries them."""
    least = {0.5: 3, 0.95: 20, 0.99: 100}
    parts = [
        f"p{100 * q:g} {show(said.metric, value)}"
        for q, n in least.items()
        if len(said.samples) >= n and not isinstance(value := pooled_quantile([said.samples], q), Unknown)
    ]
    return replace(said, text=f"{said.text.removesuffix('.')}; {', '.join(parts)}.") if parts else said


def _itl(cell: CellSeen, rng: np.random.Generator) -> Iterator[Statement]:
    """Quantiles of the gaps between tokens; their intervals draw whole answers again."""
    told = [(sent, gaps_of(sent.timeline)) for sent in cell.kept if len(sent.timeline.chunks) > 1]
    clusters = [gaps for _, gaps in told if gaps is not None]
    whole = bool(clusters) and len(clusters) == len(told)
    for metric, q in _QUANTILES.items():
        value = pooled_quantile(clusters, q) if whole else Unknown(reason="chunks are not one token each by usage")
        spread = clustered_quantile(clusters, q, rng=rng) if whole else None
        known = not isinstance(value, Unknown)
        subject = f"Gap between output tokens, p{100 * q:g}, {_where(cell)}"
        yield Statement(
            id=f"{PROBE}.{metric}.{cell.name}",
            metric=metric,
            text=(
                f"{subject}: {show(metric, value)} {describe_spread(metric, len(clusters), spread)}."
                if known and spread is not None
                else f"{subject}: not known."
            ),
            standing=Standing.SHOWN if known else Standing.NOT_SHOWN,
            unit="s",
            value=value if isinstance(value, Unknown) else _measured(value, metric),
            n=len(clusters) if known else 0,
            at_tokens=cell.length,
            interval=spread if isinstance(spread, Interval) else None,
            conditions={**_conditions(cell), "gaps": str(sum(map(len, clusters)))},
            evidence=tuple(sent.key for sent, _ in told) if known else (),
        )


def _rates(cell: CellSeen) -> Iterator[Statement]:
    """Per round: output and prompt tokens per second of all requests together, and good requests per second."""
    why = "no round has a completed request"
    done = [(window, _kept_in(cell, window)) for window in cell.windows]
    output = [
        Sampled(value=sum(tokens_produced(sent.timeline) or 0 for sent in kept) / _lasted_s(window), key=window.key)
        for window, kept in done
        if kept and all(tokens_produced(sent.timeline) is not None for sent in kept)
    ]
    prompt = [
        Sampled(value=len(kept) * cell.length / _lasted_s(window), key=window.key) for window, kept in done if kept
    ]
    yield _sampled(cell, "sweep_output_rate", "Output tokens per second, all requests together", output, why)
    yield _sampled(cell, "sweep_prompt_rate", "Prompt tokens per second, all requests together", prompt, why)
    slo = {name: float(value) for name, value in cell.windows[0].body.load.items() if name.startswith("slo_")}
    if not slo:
        return
    good = [(window, [sent for sent in kept if _good(sent, slo)]) for window, kept in done]
    rate = [Sampled(value=len(kept) / _lasted_s(window), key=window.key) for window, kept in good]
    words = " and ".join(f"{name[4:8]} <= {show('ttft', seconds)}" for name, seconds in sorted(slo.items()))
    said = _sampled(cell, "sweep_goodput", f"Requests per second that were good ({words})", rate, why)
    yield replace(said, conditions={**said.conditions, "slo": words})
    yield from _attainment(cell, sum(len(kept) for _, kept in good), words)


def _attainment(cell: CellSeen, good: int, words: str) -> Iterator[Statement]:
    if cell.sent:
        yield Statement(
            id=f"{PROBE}.sweep_slo_attainment.{cell.name}",
            metric="sweep_slo_attainment",
            text=f"{good} of {cell.sent} requests were good ({words}), {_where(cell)}.",
            standing=Standing.SHOWN,
            unit="fraction",
            value=_measured(good / cell.sent, "sweep_slo_attainment"),
            n=cell.sent,
            at_tokens=cell.length,
            interval=clopper_pearson(good, cell.sent),
            conditions={**_conditions(cell), "slo": words},
            evidence=tuple(window.key for window in cell.windows),
        )


def _good(sent: Sent, slo: Mapping[str, float]) -> bool:
    ttft, tpot = _seconds(sent.timeline.ttft_ns), _seconds(sent.timeline.tpot_ns)
    in_time = "slo_ttft_s" not in slo or (ttft is not None and ttft <= slo["slo_ttft_s"])
    return in_time and ("slo_tpot_s" not in slo or (tpot is not None and tpot <= slo["slo_tpot_s"]))


def _success(cell: CellSeen) -> Statement:
    good = len(cell.kept) + len(cell.warm)
    return Statement(
        id=f"{PROBE}.sweep_success_rate.{cell.name}",
        metric="sweep_success_rate",
        text=f"{good} of {cell.sent} requests completed as asked, {_where(cell)}.",
        standing=Standing.SHOWN if cell.sent else Standing.NOT_SHOWN,
        unit="fraction",
        value=_measured(good / cell.sent, "sweep_success_rate") if cell.sent else Unknown(reason="nothing was sent"),
        n=cell.sent,
        at_tokens=cell.length,
        interval=clopper_pearson(good, cell.sent) if cell.sent else None,
        conditions=_conditions(cell),
        evidence=tuple(window.key for window in cell.windows),
    )


def _cached(cell: CellSeen) -> Iterator[Statement]:
    if cell.cache == "hit":
        shares = [
            Sampled(value=sent.cached_tokens / cell.length, key=sent.key)
            for sent in cell.kept
            if sent.cached_tokens is not None
        ]
        what = "Share of the prompt that was cached by the server's word"
        yield _sampled(cell, "sweep_cached_fraction", what, shares, "no request's answer tells its cached tokens")


def _not_cold(cells: Sequence[CellSeen]) -> Iterator[Finding]:
    warm = [sent for cell in cells for sent in cell.warm]
    if warm:
        most = max(sent.cached_tokens or 0 for sent in warm)
        yield Finding(
            id="sweep.cached_while_cold",
            severity=Severity.FAULT,
            text=(
                f"{len(warm)} prompts that nobody had sent before were reported with up to {most:,} cached tokens: the"
                " report is wrong, or the server reused what it must not. These samples enter no number."
            ),
            evidence=tuple(sent.key for sent in warm),
        )


def _cache_lost(cells: Sequence[CellSeen]) -> Iterator[Finding]:
    """A prefix that is kept when few run at once and lost when many do."""
    hits = [cell for cell in cells if cell.cache == "hit"]
    for cell in hits:
        share = cell.cached_share()
        fewer = [
            (other, kept)
            for other in hits
            if other.length == cell.length and other.concurrency < cell.concurrency
            if (kept := other.cached_share()) is not None and kept >= _KEPT_SHARE
        ]
        if share is not None and share < _LOST_SHARE and fewer:
            other, kept = fewer[-1]
            yield Finding(
                id="sweep.cache_lost",
                severity=Severity.CAUTION,
                text=(
                    f"A known prefix of {format_tokens(cell.length)} tokens was reused with {other.concurrency} at once"
                    f" ({100 * kept:.3g} % cached) and lost with {cell.concurrency} ({100 * share:.3g} %)."
                ),
                evidence=tuple(window.key for window in (*other.windows, *cell.windows)),
                details={"length": str(cell.length), "concurrency": str(cell.concurrency)},
            )
            return


def _server_gone(view: EvidenceView) -> Iterator[Finding]:
    died = [(key, note) for key, note in view.notes(PROBE) if note.what == "died"]
    if died:
        key, note = died[0]
        again = "was started again" if note.detail.get("restarted") else "did not come back"
        yield Finding(
            id="sweep.server_gone",
            severity=Severity.FAULT,
            text=f"The server stopped producing tokens during the sweep ({key.removesuffix('/alive')}) and {again}.",
            evidence=(key,),
        )


def _not_measured(view: EvidenceView, cells: Sequence[CellSeen]) -> Iterator[NotShown]:
    for _, note in view.notes(PROBE):
        detail = note.detail
        if note.what == "does_not_fit":
            needs, has = format_tokens(int(detail["needs_tokens"])), format_tokens(int(detail["capacity_tokens"]))
            yield NotShown(
                topic=f"sweep_{detail['length']}_c{detail['concurrency']}_{detail['cache']}",
                text=(
                    f"{format_tokens(int(detail['length']))} tokens {_CACHE_WORDS[str(detail['cache'])]},"
                    f" {detail['concurrency']} at once: they need {needs} KV tokens and the engine has {has}; only its"
                    " queue would be measured."
                ),
                how="give the engine more KV memory, or sweep fewer at once",
            )
        if note.what == "length_unproven":
            yield NotShown(
                topic=f"sweep_{detail['length']}",
                text=(
                    f"Speed at {format_tokens(int(detail['length']))} tokens under load: no prompt of that length could"
                    f" be promised ({detail.get('reason')})."
                ),
                how="choose other --lengths, or --route completions where the server takes token ids",
            )
    if cells and not any(name.startswith("slo_") for name in cells[0].windows[0].body.load):
        yield NotShown(
            topic="sweep_goodput",
            text="Goodput: nobody said which time to first token or per output token is good.",
            how="--slo-ttft, --slo-tpot",
        )


def _kept_in(cell: CellSeen, window: Window) -> list[Sent]:
    inside = {key for key, _ in window.requests}
    return [sent for sent in cell.kept if sent.key in inside]


def _lasted_s(window: Window) -> float:
    """From the first request's start to the end of the last."""
    begun = min((body.timeline.submitted_ns for _, body in window.requests), default=window.body.started_ns)
    ended = max((body.timeline.finished_ns for _, body in window.requests), default=window.body.ended_ns)
    return max(1, ended - begun) / 1e9


def _seconds(ns: float | None) -> float | None:
    return None if ns is None else ns / 1e9


def _measured(value: float, metric: str) -> Measured[float]:
    return Measured(value=value, provenance=Provenance.MEASURED, source=METRICS[metric].formula)
