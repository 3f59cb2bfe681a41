"""The layouts a search ranked: the best with what they reach, and the explanation."""

from __future__ import annotations

import json
import sys

from rich.console import Group, RenderableType

from longproof.domain.measure import Measured, Reading
from longproof.plan.layouts import describe_arrangement, describe_layout
from longproof.plan.search_question import Candidate, SearchResult
from longproof.report.blocks import heading, item, table
from longproof.report.numbers import DASH, number, plural
from longproof.report.plan_json import tree
from longproof.report.text import show

SHOWN = 10
"""Candidates on the card; JSON has `SHOWN_JSON`."""
SHOWN_JSON = 50


def render_search(result: SearchResult) -> Group:
    """The best candidates, why the first is first, and how many layouts do not fit."""
    parts: list[RenderableType] = [item("", sentence) for sentence in result.explanation]
    if result.ranked:
        parts.append(heading(f"Best of {plural(result.tried, 'layout')}"))
        grid = table("", "arrangement", "devices", "at once", "first token", "per token", "requests/s", "USD/M out")
        for place, candidate in enumerate(result.ranked[:SHOWN], start=1):
            grid.add_row(f"{place}", *_cells(candidate))
        parts.append(grid)
        missed = result.ranked[0].misses
        parts += [item("misses", reason, style="yellow") for reason in missed]
    if result.unfit:
        parts.append(heading(f"{plural(len(result.unfit), 'layout')} cannot serve the request, for example"))
        parts += [item("", f"{describe_layout(one.layout)}: {one.reason}", style="dim") for one in result.unfit[:3]]
    return Group(*parts)


def print_search(result: SearchResult, *, as_json: bool = False) -> None:
    """Puts a search on standard output, as a card or as JSON."""
    if as_json:
        sys.stdout.write(search_json(result) + "\n")
    else:
        show(render_search(result))


def search_json(result: SearchResult) -> str:
    """The best candidates in order, the number tried, and the reasons of those that do not fit."""
    document: dict[str, object] = {
        "tried": result.tried,
        "explanation": list(result.explanation),
        "ranked": [
            {"name": describe_arrangement(one.arrangement), "values": tree(one)} for one in result.ranked[:SHOWN_JSON]
        ],
        "unfit": [{"layout": describe_layout(one.layout), "reason": one.reason} for one in result.unfit[:SHOWN_JSON]],
    }
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)


def _cells(candidate: Candidate) -> tuple[str, ...]:
    return (
        describe_arrangement(candidate.arrangement),
        f"{candidate.devices:,}",
        f"{candidate.sessions:,}",
        number(candidate.first_token.seconds, "s"),
        number(candidate.token_seconds, "s"),
        number(candidate.requests_per_second, ""),
        _dollars(candidate.usd_per_million_output),
    )


def _dollars(reading: Reading[float]) -> str:
    return f"{reading.value:,.3g}" if isinstance(reading, Measured) else DASH
