"""The sections of what happened under load: one per probe, with its figures and the statements that stand for all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from longproof.claim.statements import Claim, Standing, Statement
from longproof.claim.view import EvidenceView
from longproof.evidence.records import RequestBody, WindowBody
from longproof.report import busy_figures, lifecycle_figures, over_time_figures, sweep_figures
from longproof.report.figures import Figure

_MOST_SAID = 8
_DRAWN = {
    "busy_short_ttft",
    "busy_short_tpot",
    "conversation_ttft",
    "overload_goodput",
    "overload_served",
    "overload_throughput",
}
"""Metrics whose every statement is a mark in a figure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPart:
    """What one probe under load showed: its figures, and of its `total` statements those that stand for all."""

    id: str
    title: str
    lead: str
    figures: tuple[Figure, ...]
    statements: tuple[Statement, ...]
    total: int


_PARTS = (
    ("busy", "Busy", "A long request among short ones, and the short ones it meets."),
    ("reclaim", "Reclaim", "What a cancelled request held, and how soon it came back."),
    ("restart", "Restart", "The same questions before and after the server was started anew."),
    ("disaggregated", "Prefill and decode apart", "What goes from the prefill server to the decode server."),
    ("conversation", "Conversations", "Turn 1 pays; what do the later turns pay?"),
    (
        "sweep",
        "Length by concurrency",
        "Times and rates over prompt length and requests at a time, cold and with a known prefix.",
    ),
    ("sustained", "Sustained", "A mixed load over time, in windows of equal length."),
    ("overload", "Overload", "More and more at once, to beyond what fits, and what came after."),
)


def parts(claim: Claim, view: EvidenceView) -> tuple[LoadPart, ...]:
    """Every probe under load that sent something or that the claim speaks of."""
    drawn: dict[str, Callable[[], Iterable[Figure]]] = {
        "busy": lambda: busy_figures.busy(claim, view),
        "reclaim": lambda: lifecycle_figures.reclaim(view),
        "restart": lambda: lifecycle_figures.restart(view),
        "disaggregated": lambda: lifecycle_figures.disaggregated(view),
        "conversation": lambda: over_time_figures.conversation(claim, view),
        "sweep": lambda: sweep_figures.sweep(claim),
        "sustained": lambda: over_time_figures.sustained(view),
        "overload": lambda: busy_figures.overload(view),
    }
    asked = {record.body.probe for record in view.records if isinstance(record.body, (RequestBody, WindowBody))}
    found: list[LoadPart] = []
    for id_, title, lead in _PARTS:
        statements = tuple(item for item in claim.statements if item.id.split(".")[0] == id_)
        figures = tuple(drawn[id_]())
        if statements or figures or id_ in asked:
            found.append(
                LoadPart(
                    id=id_,
                    title=title,
                    lead=lead,
                    figures=figures,
                    statements=telling(statements),
                    total=len(statements),
                )
            )
    return tuple(found)


def telling(statements: Sequence[Statement]) -> tuple[Statement, ...]:
    """At most `_MOST_SAID`: first what is refuted, then what is said once or twice of the whole, in the claim's order.
    A metric with a statement per cell is in the figures, and all are in the table of statements."""
    often = Counter(item.metric for item in statements)
    refuted = [item for item in statements if item.standing is Standing.REFUTED]
    whole = [
        item
        for item in statements
        if item not in refuted and often[item.metric] <= 2 and item.metric not in _DRAWN  # a pair: short and long …
    ]
    shown = [item for item in whole if item.standing is Standing.SHOWN]
    rest = [item for item in whole if item.standing is not Standing.SHOWN]
    return tuple([*refuted, *shown, *rest][:_MOST_SAID])
