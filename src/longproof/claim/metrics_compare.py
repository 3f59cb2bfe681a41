"""Metrics of a comparison of two proofs: B over A, always."""

from __future__ import annotations

from longproof.claim.metric import Better, Kind, Metric

_PAIRS = ("pairs of the same question on both sides",)


def _ratio(id_: str, better: Better, what: str) -> Metric:
    return Metric(
        id=id_,
        unit="ratio",
        better=better,
        kind=Kind.RATIO,
        by_length=True,
        definition=f"{what} of B as a multiple of that of A, in a comparison of two proofs; one statement per cell.",
        formula="geometric mean of B / A over pairs",
        inputs=_PAIRS,
        undefined="no pair of which both sides completed",
    )


COMPARE: tuple[Metric, ...] = (
    _ratio("ttft_ratio", Better.LOWER, "Time to first token"),
    _ratio("tpot_ratio", Better.LOWER, "Time per output token"),
    _ratio("output_rate_ratio", Better.HIGHER, "Output tokens per second under load, all requests together,"),
    Metric(
        id="output_equal",
        unit="fraction",
        better=Better.HIGHER,
        kind=Kind.PROPORTION,
        by_length=True,
        definition="Share of greedy answers that are the same on both sides, for byte-identical prompts.",
        formula="equal answers / prompts that both sides completed",
        inputs=_PAIRS,
        undefined="no prompt was sent to both sides byte for byte",
    ),
    Metric(
        id="accuracy_difference",
        unit="ratio",
        better=Better.HIGHER,
        kind=Kind.ESTIMATE,
        by_length=True,
        definition="Share of right answers of B minus that of A, of the same items of one task family.",
        formula="(right on B alone - right on A alone) / items; Tango's score interval",
        inputs=("quality requests (arm full) of both sides",),
        undefined="no item that both were asked has two scores",
    ),
)
