"""Metrics of effective context: what the model does with what stands in the window."""

from __future__ import annotations

from longproof.claim.metric import Better, Kind, Metric

QUALITY_METRICS: tuple[Metric, ...] = (
    Metric(
        id="effective_context",
        unit="tokens",
        better=Better.HIGHER,
        kind=Kind.REACH,
        by_length=False,
        definition="The longest prompt up to which every asked task family keeps the threshold: that of the worst one.",
        formula="min over families of family_context; refuted from the smallest length that any family lost",
        inputs=("family_context",),
        undefined="a family was left out, or not decided at its shortest length",
    ),
    Metric(
        id="family_context",
        unit="tokens",
        better=Better.HIGHER,
        kind=Kind.REACH,
        by_length=False,
        definition="The longest prompt up to which one task family is certified to keep the threshold.",
        formula=(
            "a fixed sequence of tests from the shortest length, each at 5 %: Clopper-Pearson where n was fixed, a"
            " sequential test where answers decided when to stop"
        ),
        inputs=("quality requests", "item records"),
        undefined="the shortest length is undecided",
    ),
    Metric(
        id="accuracy",
        unit="fraction",
        better=Better.HIGHER,
        kind=Kind.ESTIMATE,
        by_length=True,
        definition="Share of right answers of one task family at one prompt length.",
        formula="right / scored; what ended by budget, unproven length or failure is counted apart",
        inputs=("quality requests (arm full)", "item records"),
        undefined="no answer had a score",
    ),
    Metric(
        id="control_accuracy",
        unit="fraction",
        better=Better.HIGHER,
        kind=Kind.ESTIMATE,
        by_length=False,
        definition="Share of right answers when the evidence stands alone: what the model can do at all.",
        formula="right / scored",
        inputs=("quality requests (arm evidence)", "item records"),
        undefined="no answer had a score",
    ),
    Metric(
        id="closed_book_accuracy",
        unit="fraction",
        better=Better.LOWER,
        kind=Kind.PROPORTION,
        by_length=False,
        definition="Share of right answers without any text: remembered or guessed, not read.",
        formula="right / scored",
        inputs=("quality requests (arm closed_book)", "item records"),
        undefined="no answer had a score",
    ),
    Metric(
        id="warm_difference",
        unit="ratio",
        better=Better.NEITHER,
        kind=Kind.ESTIMATE,
        by_length=False,
        definition="Share right when the same prompt is served from the prefix cache, minus the share right cold.",
        formula="(only warm right - only cold right) / pairs; Tango's score interval",
        inputs=("quality requests (arms full and warm)",),
        undefined="no pair had two scores",
    ),
    Metric(
        id="youden",
        unit="ratio",
        better=Better.HIGHER,
        kind=Kind.ESTIMATE,
        by_length=True,
        definition="How well present is told from absent; 0 for always yes and for always no, 1 for never wrong.",
        formula="TPR + TNR - 1",
        inputs=("quality requests of the family absent",),
        undefined="one of the two halves has no score",
    ),
    Metric(
        id="effective_context_estimate",
        unit="tokens",
        better=Better.HIGHER,
        kind=Kind.ESTIMATE,
        by_length=False,
        definition="Where the accuracy of one family falls below the threshold, estimated; not proven.",
        formula="logistic curve in log2 length with lapse and floor free; posterior median and central interval",
        inputs=("accuracy",),
        undefined="it lies outside the lengths that were asked",
    ),
)
