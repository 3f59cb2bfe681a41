"""Metrics of the sustained load, the sweep and conversations."""

from __future__ import annotations

from longproof.claim.metric import Better, Kind, Metric

SUSTAINED: tuple[Metric, ...] = (
    Metric(
        id="sustained_ttft_ratio",
        unit="ratio",
        better=Better.LOWER,
        kind=Kind.ESTIMATE,
        by_length=True,
        definition="Time to first token late in a sustained load, as a multiple of that early in it, per class.",
        formula="geometric mean of window medians, last third of the windows / first third; warm-up left out",
        inputs=("sustained windows",),
        undefined="fewer than two windows beside the warm-up",
    ),
    Metric(
        id="sustained_tpot_ratio",
        unit="ratio",
        better=Better.LOWER,
        kind=Kind.ESTIMATE,
        by_length=True,
        definition="Time per output token late in a sustained load, as a multiple of that early in it, per class.",
        formula="geometric mean of window medians, last third of the windows / first third; warm-up left out",
        inputs=("sustained windows",),
        undefined="fewer than two windows beside the warm-up, or no usage",
    ),
    Metric(
        id="sustained_success_rate",
        unit="fraction",
        better=Better.HIGHER,
        kind=Kind.PROPORTION,
        by_length=False,
        definition="Share of the requests of a sustained load that completed with all the output asked for.",
        formula="completed / sent, warm-up left out",
        inputs=("sustained windows",),
        undefined="no window ran beside the warm-up",
    ),
    Metric(
        id="kv_floor_rise",
        unit="fraction",
        better=Better.LOWER,
        kind=Kind.EXACT,
        by_length=False,
        definition="How much more of the KV pool is in use late in a sustained load while nothing runs.",
        formula="median KV usage between windows, last third - first third; warm-up left out",
        inputs=("sustained notes between windows",),
        undefined="the engine does not tell its KV usage",
    ),
    Metric(
        id="memory_growth",
        unit="ratio",
        better=Better.LOWER,
        kind=Kind.EXACT,
        by_length=False,
        definition="Resident memory of the engine late in a sustained load, as a multiple of that early in it.",
        formula="median memory between windows, last third / first third; warm-up left out",
        inputs=("sustained notes between windows",),
        undefined="the engine's metrics have no process memory, and its process is not ours",
    ),
)

SWEEP_METRICS: tuple[Metric, ...] = (*SUSTAINED,)
