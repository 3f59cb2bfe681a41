"""One efficiency per device from measured times: what share of the peak a run really reached.

    prefill   (prompt tokens, seconds)              the share for which predicted / measured is 1 in the geometric mean
    decode    (context tokens, seconds per token)   a line through the points: slope → share of bandwidth, rest →
                                                    overhead per layer

The band that comes out covers the points: three times their spread, at least 2 %, at least the worst point.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from longproof.errors import UsageError
from longproof.hardware.device import Device
from longproof.plan.capacity import Layout
from longproof.plan.perf_decode import Batch, decode_time
from longproof.plan.perf_estimate import Precision, Rates, rates_of
from longproof.plan.perf_prefill import Prompt, prefill_time
from longproof.plan.perf_work import ModelWork

_SMALLEST_BAND = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedPoint:
    """A measured time at so many tokens: of prompt for prefill, of context for decode. `seconds` per prompt or per
    decoded token."""

    tokens: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Rates that reproduce the points. `prefill_errors`, `decode_errors`: predicted / measured - 1 for each point."""

    rates: Rates
    prefill_errors: tuple[float, ...]
    decode_errors: tuple[float, ...]


def calibrate(
    work: ModelWork,
    device: Device,
    *,
    prefill: Sequence[TimedPoint] = (),
    decode: Sequence[TimedPoint] = (),
    layout: Layout | None = None,
    precision: Precision | None = None,
    sequences: int = 1,
) -> Calibration:
    """Fit the device's rates to measured prompts and decode steps of one model; what has no points keeps its rate.

    Interconnect time is not scaled: a calibration at TP8 may be used at TP4. Raises UsageError for a point without
    time or when a device figure is missing.
    """
    rates = rates_of(device)
    for point in (*prefill, *decode):
        if point.tokens < 1 or point.seconds <= 0:
            raise UsageError(
                f"a point of {point.tokens} tokens in {point.seconds} s cannot be fitted",
                advice="give measured times of at least one token",
            )
    if prefill:
        rates = _fit_prefill(work, device, prefill, rates, layout, precision)
    if decode:
        rates = _fit_decode(work, device, decode, rates, layout, precision, sequences)
    prefill_errors = tuple(
        prefill_time(work, device, Prompt(new_tokens=p.tokens), layout=layout, precision=precision, rates=rates).seconds
        / p.seconds
        - 1
        for p in prefill
    )
    decode_errors = tuple(_step(work, device, p, rates, layout, precision, sequences) / p.seconds - 1 for p in decode)
    if prefill_errors:
        rates = replace(rates, prefill_band=_band(prefill_errors))
    if decode_errors:
        rates = replace(rates, decode_band=_band(decode_errors))
    note = f"calibrated on {len(prefill)} prefill and {len(decode)} decode points of {work.name}"
    return Calibration(rates=replace(rates, notes=(note,)), prefill_errors=prefill_errors, decode_errors=decode_errors)


def _fit_prefill(
    work: ModelWork,
    device: Device,
    points: Sequence[TimedPoint],
    rates: Rates,
    layout: Layout | None,
    precision: Precision | None,
) -> Rates:
    # The share enters nearly as 1/share; a few fixed-point steps absorb what does not scale with it.
    for _ in range(12):
        off = [
            math.log(
                prefill_time(
                    work, device, Prompt(new_tokens=p.tokens), layout=layout, precision=precision, rates=rates
                ).seconds
                / p.seconds
            )
            for p in points
        ]
        rates = replace(rates, prefill=rates.prefill * math.exp(sum(off) / len(off)))
    return rates


def _fit_decode(
    work: ModelWork,
    device: Device,
    points: Sequence[TimedPoint],
    rates: Rates,
    layout: Layout | None,
    precision: Precision | None,
    sequences: int,
) -> Rates:
    contexts = sorted({p.tokens for p in points})
    if len(contexts) > 1:
        slope = _slope(points)
        first, last = (
            _step(work, device, TimedPoint(tokens=t, seconds=1.0), rates, layout, precision, sequences)
            for t in (contexts[0], contexts[-1])
        )
        predicted = (last - first) / (contexts[-1] - contexts[0])
        if slope > 0 and predicted > 0:
            rates = replace(rates, decode=rates.decode * predicted / slope)
    # What is left over belongs to the layers, never less than nothing.
    rest = sum(p.seconds - _step(work, device, p, rates, layout, precision, sequences) for p in points) / len(points)
    per_layer = rates.layer_seconds + rest / len(work.layers)
    return replace(rates, layer_seconds=max(1e-9, per_layer))


def _slope(points: Sequence[TimedPoint]) -> float:
    """Least-squares slope in seconds per token."""
    mean_x = sum(p.tokens for p in points) / len(points)
    mean_y = sum(p.seconds for p in points) / len(points)
    over = sum((p.tokens - mean_x) * (p.seconds - mean_y) for p in points)
    return over / sum((p.tokens - mean_x) ** 2 for p in points)


def _step(
    work: ModelWork,
    device: Device,
    point: TimedPoint,
    rates: Rates,
    layout: Layout | None,
    precision: Precision | None,
    sequences: int,
) -> float:
    batch = Batch(sequences=sequences, context_tokens=point.tokens)
    return decode_time(work, device, batch, layout=layout, precision=precision, rates=rates).seconds


def _band(errors: Sequence[float]) -> float:
    spread = math.sqrt(sum(e * e for e in errors) / len(errors))
    return max(_SMALLEST_BAND, 3 * spread, *(abs(e) for e in errors))
