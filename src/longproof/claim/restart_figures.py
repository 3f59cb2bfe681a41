"""The key cells before and after a restart, put side by side: which figures moved, and by how much.

A figure moved when its ratio's interval excludes 1 and the ratio is beyond what a user would mind. All figures are held
against one level together (Bonferroni): an honest server with eight figures should not be accused eight times as often.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from longproof.claim.cached import cached_reports
from longproof.claim.view import EvidenceView
from longproof.domain.measure import Interval, Unknown
from longproof.domain.outcome import Outcome, classify, completed_as_asked, tokens_produced
from longproof.domain.outcome_words import in_words
from longproof.evidence.records import RequestBody
from longproof.stats.pooled import pooled_ratio
from longproof.stats.ratio import Ratio, unpaired_ratio

PROBE = "restart"
LEVEL = 0.01
LEAST_EFFECT = 1.5
"""Half as much again, or a third less: a machine that others use as well drifts by less than that in minutes."""
_POOLED = ("ttft", "tpot")
_COMPARED = (("speed", "ttft"), ("speed", "tpot"), ("largest", "ttft"), ("again", "ttft"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One figure of one cell: `before` and `after` in seconds, and the ratio after / before with an interval at the
    level that all figures share."""

    what: str
    name: str
    length: int
    before: tuple[float, ...]
    after: tuple[float, ...]
    ratio: Ratio | Unknown
    keys: tuple[str, ...]

    @property
    def moved(self) -> bool:
        """Beyond its interval, and by as much as a user would mind."""
        if isinstance(self.ratio, Unknown) or not isinstance(self.ratio.interval, Interval):
            return False
        low, high, value = self.ratio.interval.low, self.ratio.interval.high, self.ratio.value
        return (low > 1 and value >= LEAST_EFFECT) or (high < 1 and value <= 1 / LEAST_EFFECT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """What became of one cell's requests: (outcome, output tokens) in order, before and after."""

    what: str
    length: int
    before: tuple[str, ...]
    after: tuple[str, ...]
    keys: tuple[str, ...]

    @property
    def moved(self) -> bool:
        """Each side agrees with itself, and not with the other."""
        was, now = set(self.before), set(self.after)
        return len(was) == 1 and len(now) == 1 and was != now


@dataclass(frozen=True, slots=True, kw_only=True)
class Cached:
    """Tokens that the server says were cached of prompts sent again, before and after."""

    length: int
    before: tuple[int, ...]
    after: tuple[int, ...]
    keys: tuple[str, ...]

    @property
    def moved(self) -> bool:
        """All prompts were mostly cached on one side, and none on the other."""
        half = self.length / 2
        was, now = [tokens > half for tokens in self.before], [tokens > half for tokens in self.after]
        return bool(was and now) and ((all(was) and not any(now)) or (all(now) and not any(was)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """Everything that one later phase has in common with the phase before the restart. `overall`: one figure for the
    times of all cold prompts together: a server that is slower is slower in all of them."""

    figures: tuple[Figure, ...]
    overall: tuple[Figure, ...]
    answers: tuple[Answers, ...]
    cached: tuple[Cached, ...]


def compare(view: EvidenceView, phase: str) -> Compared:
    """The phase `before` against `after` or `idle`."""
    cells = _cells(view)
    names = sorted({(what, length) for _, what, length in cells})
    pairs = {
        (what, length): (cells.get(("before", what, length), []), cells.get((phase, what, length), []))
        for what, length in names
    }
    pairs = {name: (before, after) for name, (before, after) in pairs.items() if before and after}
    raw = [
        (what, name, length, *pairs[what, length]) for what, name in _COMPARED for cell, length in pairs if cell == what
    ]
    confidence = 1 - LEVEL / (len(raw) + len(_POOLED))
    figures = tuple(_figure(*item, confidence) for item in raw)
    return Compared(
        figures=figures,
        overall=tuple(_overall(name, figures, confidence) for name in _POOLED if raw),
        answers=tuple(_answers(what, length, *pair) for (what, length), pair in pairs.items()),
        cached=tuple(_cached(length, *pair) for (what, length), pair in pairs.items() if what == "again"),
    )


def _cells(view: EvidenceView) -> dict[tuple[str, str, int], list[tuple[str, RequestBody]]]:
    found: dict[tuple[str, str, int], list[tuple[str, RequestBody]]] = {}
    for key, body in view.requests(PROBE):
        name = (str(body.cell["phase"]), str(body.cell["what"]), int(body.cell["length"]))
        found.setdefault(name, []).append((key, body))
    return found


def _figure(
    what: str,
    name: str,
    length: int,
    before: Sequence[tuple[str, RequestBody]],
    after: Sequence[tuple[str, RequestBody]],
    confidence: float,
) -> Figure:
    was, now = [_seconds(name, body) for _, body in before], [_seconds(name, body) for _, body in after]
    was_known = tuple(value for value in was if value is not None)
    now_known = tuple(value for value in now if value is not None)
    return Figure(
        what=what,
        name=name,
        length=length,
        before=was_known,
        after=now_known,
        ratio=unpaired_ratio(now_known, was_known, confidence),
        keys=tuple(key for key, _ in (*before, *after)),
    )


def _overall(name: str, figures: Sequence[Figure], confidence: float) -> Figure:
    cold = [figure for figure in figures if figure.name == name and figure.what in ("speed", "largest")]
    return Figure(
        what="all",
        name=name,
        length=0,
        before=tuple(value for figure in cold for value in figure.before),
        after=tuple(value for figure in cold for value in figure.after),
        ratio=pooled_ratio([(figure.after, figure.before) for figure in cold], confidence),
        keys=tuple(key for figure in cold for key in figure.keys),
    )


def _seconds(name: str, body: RequestBody) -> float | None:
    if not completed_as_asked(body.timeline):
        return None
    ns = body.timeline.ttft_ns if name == "ttft" else body.timeline.tpot_ns
    return ns / 1e9 if ns else None


def _answers(
    what: str, length: int, before: Sequence[tuple[str, RequestBody]], after: Sequence[tuple[str, RequestBody]]
) -> Answers:
    return Answers(
        what=what,
        length=length,
        before=tuple(_became(body) for _, body in before),
        after=tuple(_became(body) for _, body in after),
        keys=tuple(key for key, _ in (*before, *after)),
    )


def _became(body: RequestBody) -> str:
    """The outcome, and for one that was clamped to how much: a window of another size clamps elsewhere."""
    outcome = classify(body.timeline)
    produced = tokens_produced(body.timeline)
    return f"cut to {produced} tokens" if outcome is Outcome.SHORT else in_words(outcome)


def _cached(length: int, before: Sequence[tuple[str, RequestBody]], after: Sequence[tuple[str, RequestBody]]) -> Cached:
    was, now = [cached_reports(body).most for _, body in before], [cached_reports(body).most for _, body in after]
    return Cached(
        length=length,
        before=tuple(tokens for tokens in was if tokens is not None),
        after=tuple(tokens for tokens in now if tokens is not None),
        keys=tuple(key for key, _ in (*before, *after)),
    )
