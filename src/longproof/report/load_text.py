"""What the card says of load: one line per question, taken from the claim as it stands."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from longproof.claim.statements import Claim, Standing, Statement
from longproof.domain.measure import Measured
from longproof.report.numbers import sample_size, spread_text, tokens, value_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A probe, what was asked in a few words, the answer with interval and n."""

    probe: str
    what: str
    answer: str


_ASKED: tuple[tuple[str, str, str, dict[str, str]], ...] = (
    ("busy", "busy_long_ttft_ratio", "long, first token / alone", {}),
    ("busy", "busy_short_ttft_ratio", "short meanwhile, first token / usual", {"phase": "prefill"}),
    ("busy", "busy_drift", "background, after / before", {}),
    ("reclaim", "reclaim_time_prefill", "memory back, left in prefill", {}),
    ("reclaim", "reclaim_time_decode", "memory back, left in decode", {}),
    ("reclaim", "readmitted", "largest admitted after it", {}),
    ("restart", "restart_time", "to the first answer", {}),
    ("restart", "restart_largest", "largest completes after it", {}),
    ("pair", "pd_transferred", "taken over by decode", {}),
    ("pair", "pd_success", "through both sides", {}),
    ("turns", "conversation_ttft_ratio", "last turn, first token / turn 1", {"concurrency": "1"}),
    ("sweep", "sweep_ttft", "first token", {"cache": "cold"}),
    ("sweep", "sweep_output_rate", "output together", {"cache": "cold"}),
    ("sustained", "sustained_ttft_ratio", "first token, last third / first", {"class": "short"}),
    ("sustained", "sustained_success_rate", "completed", {}),
    ("overload", "overload_peak", "most goodput", {}),
    ("overload", "overload_recovery", "quick again after", {}),
)
"""(probe as the card names it, metric, words, conditions that choose among the metric's statements)."""


def load_lines(claim: Claim) -> Iterator[Line]:
    """One line for each of the questions that this claim answers, or tried to. Of several lengths the longest speaks,
    of several loads the heaviest."""
    for probe, metric, what, conditions in _ASKED:
        found = [
            item for item in claim.statements if item.metric == metric and conditions.items() <= item.conditions.items()
        ]
        if found:
            item = _heaviest(found)
            yield Line(probe=probe, what=f"{what}{_where(item, metric)}", answer=_answer(item))


def _heaviest(found: Sequence[Statement]) -> Statement:
    """The one at the longest prompt, the most at once, the latest turn; one with a value before one without."""
    return max(
        found,
        key=lambda item: (
            isinstance(item.value, Measured),
            item.at_tokens or 0,
            int(item.conditions.get("concurrency", "0")),
            int(item.conditions.get("turn", "0")),
        ),
    )


def _where(item: Statement, metric: str) -> str:
    if metric.startswith("sweep_"):
        return f", {item.conditions['concurrency']} × {tokens(item.at_tokens or 0)}"
    if metric == "overload_peak" and "load" in item.conditions:
        return f", {item.conditions['load']}"
    return "" if item.at_tokens is None else f", {tokens(item.at_tokens)}"


def _answer(item: Statement) -> str:
    if not isinstance(item.value, Measured):
        return Standing.NOT_SHOWN.value
    spread = spread_text(item)
    bracket = f" {spread}" if spread.startswith("[") else ""
    return f"{value_text(item)}{bracket}, {sample_size(item.n)}"
