"""What the sustained load showed in numbers: the last third of its windows against the first."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping

from longproof.claim.findings.sustained_series import PROBE, Series, Sustained, failed
from longproof.claim.metrics import METRICS
from longproof.claim.sampled import describe_spread
from longproof.claim.statements import Standing, Statement
from longproof.domain.measure import Interval, Measured, Provenance, Unknown
from longproof.domain.units import format_bytes, format_ns, format_tokens
from longproof.stats.proportion import clopper_pearson
from longproof.stats.ratio import unpaired_ratio

_WHAT = {"sustained_ttft_ratio": "Time to first token", "sustained_tpot_ratio": "Time per output token"}


def statements(run: Sustained) -> Iterator[Statement]:
    """Ratios of times per class, success, KV floor and memory."""
    conditions = _conditions(run)
    for series in run.times:
        if len(series.points) > 1:
            yield _time_ratio(series, {**conditions, "class": str(series.role)})
    yield _success(run, conditions)
    if len(run.kv_floor.points) > 1:
        yield _kv_floor(run.kv_floor, conditions)
    if len(run.memory.points) > 1:
        yield _memory(run, conditions)


def _conditions(run: Sustained) -> dict[str, str]:
    load = run.windows[0].body.load
    lasted_ns = run.windows[-1].body.ended_ns - run.windows[0].body.started_ns
    longs = ""
    if load.get("longs_per_window"):
        longs = f", {load['longs_per_window']} of {format_tokens(int(load['long_tokens']))} per window"
    return {
        "load": f"{load.get('concurrency')} short requests always under way{longs}",
        "lasted": format_ns(lasted_ns),
        "windows": f"{len(run.counted)} counted, {min(run.left_out, len(run.windows))} left out for warm-up",
    }


def _time_ratio(series: Series, conditions: Mapping[str, str]) -> Statement:
    first, last = series.thirds()
    found = unpaired_ratio(last, first)
    assert not isinstance(found, Unknown)  # both thirds hold at least one window
    spread = found.interval
    return Statement(
        id=f"{PROBE}.{series.metric}.{series.role}",
        metric=series.metric,
        text=(
            f"{_WHAT[series.metric]} of {series.role} prompts ({format_tokens(series.length or 0)} tokens) in the last"
            f" third of the windows is {found.value:.3g} of that in the first"
            f" {describe_spread(series.metric, found.n, spread)}."
        ),
        standing=Standing.SHOWN,
        unit=METRICS[series.metric].unit,
        value=_measured(found.value, series.metric),
        n=found.n,
        at_tokens=series.length,
        interval=spread if isinstance(spread, Interval) else None,
        conditions=dict(conditions),
        evidence=tuple(dict.fromkeys(point.keys[0] for point in series.points)),
    )


def _success(run: Sustained, conditions: Mapping[str, str]) -> Statement:
    judged = [(key, not failed(body)) for window in run.counted for key, body in window.requests]
    good = sum(is_good for _, is_good in judged)
    unknown = Unknown(reason="no window counts beside the warm-up")
    return Statement(
        id=f"{PROBE}.success_rate",
        metric="sustained_success_rate",
        text=f"{good} of {len(judged)} requests under the sustained load completed as asked.",
        standing=Standing.SHOWN if judged else Standing.NOT_SHOWN,
        unit="fraction",
        value=_measured(good / len(judged), "sustained_success_rate") if judged else unknown,
        n=len(judged),
        interval=clopper_pearson(good, len(judged)) if judged else None,
        conditions=dict(conditions),
        evidence=tuple(window.key for window in run.counted),
    )


def _kv_floor(series: Series, conditions: Mapping[str, str]) -> Statement:
    first, last = (statistics.median(part) for part in series.thirds())
    return Statement(
        id=f"{PROBE}.kv_floor_rise",
        metric="kv_floor_rise",
        text=(
            f"With nothing running, {100 * first:.3g} % of the KV pool were in use after windows of the first third and"
            f" {100 * last:.3g} % after those of the last, by the engine's own gauge."
        ),
        standing=Standing.SHOWN,
        unit="fraction",
        value=_measured(last - first, "kv_floor_rise"),
        n=len(series.points),
        conditions=dict(conditions),
        evidence=tuple(point.keys[0] for point in series.points),
    )


def _memory(run: Sustained, conditions: Mapping[str, str]) -> Statement:
    first, last = (statistics.median(part) for part in run.memory.thirds())
    return Statement(
        id=f"{PROBE}.memory_growth",
        metric="memory_growth",
        text=(
            f"Resident memory ({run.memory_of}) was {format_bytes(first)} in the first third of the windows and"
            f" {format_bytes(last)} in the last."
        ),
        standing=Standing.SHOWN,
        unit="ratio",
        value=_measured(last / first, "memory_growth"),
        n=len(run.memory.points),
        conditions={**conditions, "memory_of": run.memory_of or "unknown"},
        evidence=tuple(point.keys[0] for point in run.memory.points),
    )


def _measured(value: float, metric: str) -> Measured[float]:
    return Measured(value=value, provenance=Provenance.MEASURED, source=METRICS[metric].formula)
