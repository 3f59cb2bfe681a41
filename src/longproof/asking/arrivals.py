"""When requests of an open loop leave, and how long they are: Poisson or as a trace has it, always the same for a seed.

lengths   classes of (prompt, output) with weights: a handful, since prompts of one exact length are proved once
Poisson   times by rate; each request's class is drawn
trace     times and classes as recorded; a window that is longer begins the trace again
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from statistics import median

from longproof.plan.traces import TraceRow

_MOST_CLASSES = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Classes of lengths, in tokens; the i-th of all three belong together. `source` says whose they are; `scale`: what
    they were multiplied by to fit a window."""

    source: str
    input_tokens: tuple[int, ...]
    output_tokens: tuple[int, ...]
    weights: tuple[int, ...]
    scale: float = 1.0

    def __post_init__(self) -> None:
        if not len(self.input_tokens) == len(self.output_tokens) == len(self.weights) > 0:
            raise ValueError(f"classes of lengths do not pair up: {self}")

    @property
    def mean_tokens(self) -> float:
        """Prompt and output of one request, on average."""
        pairs = zip(self.input_tokens, self.output_tokens, self.weights, strict=True)
        return sum((put + out) * weight for put, out, weight in pairs) / sum(self.weights)

    def scaled(self, most_input_tokens: int, *, least_input_tokens: int = 1, least_output_tokens: int = 2) -> Lengths:
        """These lengths so that the longest prompt has at most `most_input_tokens`: all multiplied by one factor,
        outputs too. As they are where they fit."""
        longest = max(self.input_tokens)
        if longest <= most_input_tokens and min(self.input_tokens) >= least_input_tokens:
            return self
        factor = min(1.0, most_input_tokens / longest)
        return replace(
            self,
            input_tokens=tuple(max(least_input_tokens, int(tokens * factor)) for tokens in self.input_tokens),
            output_tokens=tuple(max(least_output_tokens, int(tokens * factor)) for tokens in self.output_tokens),
            scale=self.scale * factor,
        )

    def class_of(self, i: int, seed: int) -> int:
        """The class of the i-th request."""
        return random.Random(f"{seed}/{i}").choices(range(len(self.weights)), self.weights)[0]

    def words(self) -> str:
        """``short chat: 39/20, 75/18 … tokens, scaled by 0.19``"""
        pairs = ", ".join(f"{put}/{out}" for put, out in zip(self.input_tokens, self.output_tokens, strict=True))
        scaled = "" if self.scale == 1.0 else f", scaled by {self.scale:.3g}"
        return f"{self.source}: {pairs} tokens{scaled}"


SHORT_CHAT = Lengths(
    source="short chat",
    input_tokens=(207, 403, 1020, 1130, 2735),
    output_tokens=(105, 97, 399, 399, 77),
    weights=(1, 1, 1, 1, 1),
)
"""Medians within the fifths, by prompt length, of Azure's conversation trace of 2023 (19,366 requests;
AzurePublicDataset, AzureLLMInferenceTrace_conv, CC-BY 4.0; Patel et al., Splitwise, ISCA 2024)."""


def one_length(input_tokens: int, output_tokens: int) -> Lengths:
    """Every request alike."""
    return Lengths(source="one length", input_tokens=(input_tokens,), output_tokens=(output_tokens,), weights=(1,))


def poisson_times(rate_per_s: float, for_ns: int, *, seed: int) -> tuple[int, ...]:
    """Arrival times in [0, for_ns), ns, of a Poisson process. ValueError for a rate that is not positive."""
    if rate_per_s <= 0:
        raise ValueError(f"a rate of {rate_per_s} sends nothing")
    rng = random.Random(f"poisson/{seed}")
    times: list[int] = []
    at = rng.expovariate(rate_per_s) * 1e9
    while at < for_ns:
        times.append(int(at))
        at += rng.expovariate(rate_per_s) * 1e9
    return tuple(times)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """A trace ready to send: when each request leaves (ns from the start), and its class of `lengths`. `span_ns`: after
    that it begins again."""

    lengths: Lengths
    at_ns: tuple[int, ...]
    classes: tuple[int, ...]
    span_ns: int

    def within(self, for_ns: int) -> tuple[tuple[int, int], ...]:
        """(time, class) of all that leave before `for_ns`, the trace begun again as often as it takes."""
        found: list[tuple[int, int]] = []
        round_ns = 0
        while round_ns < for_ns and self.at_ns:
            found += [(round_ns + at, kind) for at, kind in zip(self.at_ns, self.classes, strict=True)]
            round_ns += max(1, self.span_ns)
        return tuple((at, kind) for at, kind in found if at < for_ns)


def replay(
    rows: Sequence[TraceRow], *, source: str, for_ns: int, speed_up: float = 1.0, most_classes: int = _MOST_CLASSES
) -> Replay:
    """The first `for_ns` of a trace, its times divided by `speed_up`, its lengths rounded to `most_classes` classes of
    equal size (their medians). Requests of one time stamp are spread evenly up to the next: rounded clocks make bursts
    that never were. ValueError without rows.
    """
    if not rows or speed_up <= 0:
        raise ValueError("a trace without rows, or a speed-up that is not positive")
    ordered = sorted(rows, key=lambda row: row.at_ns)
    times = [int(at / speed_up) for at in _spread([row.at_ns for row in ordered])]
    kept = [(at, row) for at, row in zip(times, ordered, strict=True) if at < for_ns] or [(0, ordered[0])]
    by_length = sorted(range(len(kept)), key=lambda i: kept[i][1].input_tokens)
    count = min(most_classes, len(kept))
    groups = [by_length[k * len(kept) // count : (k + 1) * len(kept) // count] for k in range(count)]
    class_of = {i: kind for kind, group in enumerate(groups) for i in group}
    lengths = Lengths(
        source=source,
        input_tokens=tuple(max(1, int(median(kept[i][1].input_tokens for i in group))) for group in groups),
        output_tokens=tuple(max(2, int(median(kept[i][1].output_tokens for i in group))) for group in groups),
        weights=tuple(len(group) for group in groups),
    )
    whole = len(kept) == len(rows)
    return Replay(
        lengths=lengths,
        at_ns=tuple(at for at, _ in kept),
        classes=tuple(class_of[i] for i in range(len(kept))),
        span_ns=times[-1] + 1 if whole else for_ns,
    )


def _spread(times: Sequence[int]) -> list[int]:
    """Equal times, in order, spread evenly up to the next that differs; the last stay where they are."""
    groups = [(at, len(list(same))) for at, same in groupby(times)]
    found: list[int] = []
    for here, (at, many) in enumerate(groups):
        step = (groups[here + 1][0] - at) / many if here + 1 < len(groups) else 0
        found += [int(at + k * step) for k in range(many)]
    return found
