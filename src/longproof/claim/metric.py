"""What a metric is: one id, one definition, one unit, and how a requirement about it is decided."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Better(StrEnum):
    """Which direction a user wishes for."""

    HIGHER = "higher"
    LOWER = "lower"
    NEITHER = "neither"


class Kind(StrEnum):
    """What a metric's statements hold, and so how a requirement about it is decided."""

    REACH = "reach"
    """A length that was shown, and perhaps one that was refuted."""
    EXACT = "exact"
    """One number as reported or counted; it has no spread."""
    SAMPLES = "samples"
    """Independent samples; requirements speak of their mean, a quantile or an extreme."""
    DEPENDENT = "dependent"
    """Samples that depend on each other (gaps of one answer): the statement's own interval holds the mean, and no
    quantile can be bounded."""
    RATIO = "ratio"
    """Independent samples of a ratio; their mean is geometric."""
    ESTIMATE = "estimate"
    """A number with an interval of its own and no samples."""
    PROPORTION = "proportion"
    """Successes among n trials."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric.

    `by_length`: its statements hold for one prompt length each (`Statement.at_tokens`). `cold`: it speaks of cold
    prompts alone; a statement with the condition ``cache: warm`` is of another thing. `inputs` are the records, fields
    or metrics it is computed from; `undefined` says when it has no value.
    """

    id: str
    unit: str
    better: Better
    kind: Kind
    by_length: bool
    definition: str
    formula: str
    inputs: tuple[str, ...]
    undefined: str
    cold: bool = False
