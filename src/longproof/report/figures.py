"""Which plots a claim gets: each is drawn only when there are at least two places to compare, and from what was
measured alone."""

from __future__ import annotations

from dataclasses import dataclass, replace

from longproof.claim.statements import Claim, Statement
from longproof.claim.view import EvidenceView
from longproof.domain.measure import Measured
from longproof.report import lengths, plots, requests, verdict
from longproof.report.numbers import plural, sample_size
from longproof.report.outcomes import LOOKS, Kind, kind
from longproof.report.plot_frame import Words
from longproof.report.plots import Point, Series
from longproof.report.theme import Role

_MOST_DOTS = 400
_SQUARES = {"cold": (Role.COLD, "o", "○"), "again": (Role.WARM, "s", "□"), "new_tail": (Role.TAIL, "D", "◇")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Legend:
    """A line of a legend: the shape as a character, its colour role, and what it means."""

    glyph: str
    role: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A plot with what stands around it. `svg` is markup of our own making, safe to insert as it is. `tall`: it takes
    the room of two."""

    title: str
    svg: str
    caption: str
    legend: tuple[Legend, ...] = ()
    tall: bool = False


def speed(claim: Claim) -> list[Figure]:
    """Times and rates against length, cold, one request at a time."""
    figures: list[Figure] = []
    first = _points(claim, lengths.TTFT)
    if len(first) > 1:
        words = Words(name="ttft", title="Time to first token against length", axis="time to first token", unit="s")
        figures.append(
            Figure(
                title="Time to first token",
                svg=plots.time_by_length([Series(label="cold", points=first)], words, references=True),
                caption="Both scales logarithmic. The dashed guides are not measured: growth in proportion to n and "
                "to n² from the first mean.",
            )
        )
    rate = _points(claim, lengths.PREFILL)
    if len(rate) > 1:
        words = Words(name="rate", title="Prefill rate against length", axis="prefill, tokens per second", unit="tok/s")
        figures.append(
            Figure(
                title="Prefill rate",
                svg=plots.value_by_length([Series(label="cold", points=rate)], words),
                caption="Prompt tokens over the time to first token; queueing is inside.",
            )
        )
    figures.extend(_token_times(claim))
    return figures


def reading_aid(claim: Claim) -> str:
    """How marks, lines and bars of the speed plots are to be read, with n."""
    points = _points(claim, lengths.TTFT)
    if not points:
        return ""
    sizes = sorted({len(point.samples) for point in points})
    n = sample_size(sizes[0]) if len(sizes) == 1 else f"n = {sizes[0]:,} to {sizes[-1]:,}"
    bars = ", the pale bar is the interval of the mean" if any(point.low is not None for point in points) else ""
    return f"In the plots every request is one mark, the line joins the means{bars} ({n} at each length)."


def warmth(view: EvidenceView) -> Figure | None:
    """Time to first token of the three arms against length."""
    rows = lengths.warmth(view)
    series: list[Series] = []
    legend: list[Legend] = []
    for name, label in lengths.ARMS.items():
        role, marker, glyph = _SQUARES[name]
        found = [(row.tokens, arm) for row in rows if (arm := row.arm(name)) is not None]
        if found:
            points = tuple(Point(tokens=tokens, samples=arm.ttft_s) for tokens, arm in found)
            series.append(Series(label=label, points=points, role=role, marker=marker))
            legend.append(Legend(glyph=glyph, role=role.value, text=label))
    if len({point.tokens for one in series for point in one.points}) < 2:
        return None
    words = Words(
        name="warm", title="Time to first token, cold and warm, against length", axis="time to first token", unit="s"
    )
    return Figure(
        title="Cold and warm",
        svg=plots.time_by_length(series, words, references=False),
        caption="Every request is one mark; both scales are logarithmic.",
        legend=tuple(legend),
    )


def search(claim: Claim, view: EvidenceView) -> Figure | None:
    """The path of the boundary search."""
    trials = [plots.Trial(total_tokens=total, outcome=outcome) for total, outcome in requests.trials(view)]
    if len(trials) < 2:
        return None
    boundary = verdict.boundary_tokens(claim)
    axis = "tokens from the measured boundary" if boundary is not None else "prompt + output tokens"
    words = Words(name="search", title="The boundary search, request by request", axis=axis, unit="tokens")
    kinds = [one for one in Kind if any(kind(trial.outcome) is one for trial in trials)]
    scale = "" if boundary is None else " The vertical scale is logarithmic in both directions from the boundary (0)."
    return Figure(
        title="The search",
        svg=plots.search_path(trials, boundary_tokens=boundary, words=words),
        caption=f"{plural(len(trials), 'request')}, in the order sent.{scale}",
        legend=tuple(Legend(glyph=LOOKS[one].glyph, role=LOOKS[one].role.value, text=one.value) for one in kinds),
    )


def counts(view: EvidenceView) -> Figure | None:
    """Sent against used."""
    pairs = sorted({(count.sent, count.used) for count in requests.counts(view)})
    if len({sent for sent, _ in pairs}) < 2:
        return None
    drawn = _thinned(pairs)
    words = Words(
        name="counts", title="Tokens used minus tokens sent, against length", axis="used − sent, tokens", unit="tokens"
    )
    left_out = f" Of {len(pairs):,} different pairs {len(drawn):,} are drawn, all that differ among them." * (
        drawn != pairs
    )
    return Figure(
        title="Sent and used",
        svg=plots.count_differences(drawn, words),
        caption=f"Used: prompt tokens in the server's own usage. Zero is what an honest count gives.{left_out}",
    )


def _token_times(claim: Claim) -> list[Figure]:
    per_token = _points(claim, lengths.TPOT)
    gap = tuple(
        replace(point, samples=()) for point in _points(claim, lengths.ITL)
    )  # thousands of gaps would hide the rest
    series: list[Series] = []
    legend: list[Legend] = []
    if len(per_token) > 1:
        series.append(Series(label="per output token", points=per_token))
        legend.append(Legend(glyph="○", role=Role.COLD.value, text="per output token (TPOT)"))
    if len(gap) > 1:
        series.append(Series(label="between chunks", points=gap, role=Role.TAIL, marker="D"))
        legend.append(Legend(glyph="◇", role=Role.TAIL.value, text="between chunks (ITL)"))
    if not series:
        return []
    words = Words(name="tpot", title="Time per output token against length", axis="time per output token", unit="s")
    return [
        Figure(
            title="Time per output token",
            svg=plots.value_by_length(series, words),
            caption="After the first token, averaged over one answer.",
            legend=tuple(legend) if len(legend) > 1 else (),
        )
    ]


def _points(claim: Claim, metric: str) -> tuple[Point, ...]:
    found = [item for item in claim.statements if item.metric == metric and item.at_tokens is not None]
    return tuple(_point(item) for item in sorted(found, key=lambda item: item.at_tokens or 0) if _drawable(item))


def _drawable(item: Statement) -> bool:
    return isinstance(item.value, Measured) or bool(item.samples)


def _point(item: Statement) -> Point:
    return Point(
        tokens=item.at_tokens or 0,
        samples=item.samples,
        mean=item.value.value if isinstance(item.value, Measured) else None,
        low=item.interval.low if item.interval is not None else None,
        high=item.interval.high if item.interval is not None else None,
    )


def _thinned(pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """All pairs that differ (the first `_MOST_DOTS`), and enough of the others, evenly by rank."""
    wrong = [pair for pair in pairs if pair[0] != pair[1]][:_MOST_DOTS]
    right = [pair for pair in pairs if pair[0] == pair[1]]
    step = max(1, -(-len(right) // _MOST_DOTS))
    return sorted({*wrong, *right[::step], *right[-1:]})
