"""Figures of what a server gives back and keeps: cancelled requests, restarts, and KV handed from prefill to decode."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from longproof.claim.pd_requests import Handed, handed_of
from longproof.claim.restart_figures import Figure as Compared
from longproof.claim.restart_figures import compare
from longproof.claim.view import EvidenceView, Window
from longproof.domain.measure import Interval, Unknown
from longproof.report.figures import Figure, Legend
from longproof.report.load_plots import Across, Line, over_axis
from longproof.report.numbers import interval, number, plural, sample_size, tokens
from longproof.report.plot_frame import Words
from longproof.report.row_plots import Reading, Split, Whiskers, splits, whiskers
from longproof.report.theme import Role
from longproof.stats import mean

_STAGES = {
    "at_once": ("right after sending", Role.MUTED),
    "queued": ("while queued", Role.MUTED),
    "prefill": ("during prefill", Role.WARM),
    "decode": ("during decode", Role.COLD),
}
_MOST_CANCELS = 24
_WHAT = {"speed": "cold", "largest": "largest", "again": "sent again"}
_PHASES = {"after": "after the restart", "idle": "after standing idle"}
_PD_PARTS = ("prefill side", "handover to the first token", "decode")


def reclaim(view: EvidenceView) -> Iterator[Figure]:
    """KV usage (or running requests) from shortly before each cancel on."""
    windows = [window for window in view.windows("reclaim") if str(window.body.cell.get("stage")) in _STAGES]
    kept = windows[:_MOST_CANCELS]
    for what, unit in (("KV usage", "fraction"), ("running requests", "")):
        lines = [line for window in kept if (line := _around(window, what)) is not None]
        if not lines or not any(value > 0 for line in lines for value in line.values):
            continue
        words = Words(name="reclaim", title=f"{what} around each cancel", axis=what, unit=unit)
        used = dict.fromkeys((line.label, line.role) for line in lines)
        more = f" of {len(windows)}, the first ones," if len(windows) > len(kept) else ""
        yield Figure(
            title="Around each cancel",
            svg=over_axis(lines, words, Across(label="seconds from leaving", rules=(0.0,))),
            caption=f"{plural(len(lines), 'cancel')}{more or ','} each a line; the dashed rule is when the client "
            "left. What a gauge shows is up to one sample old.",
            legend=tuple(Legend(glyph="━", role=role.value, text=f"left {label}") for label, role in used),
        )
        return


def _around(window: Window, what: str) -> Line | None:
    left = [body.left_ns for _, body in window.requests if body.left_ns is not None]
    seen = [(s.at_ns, s.kv_usage if what == "KV usage" else s.running) for s in window.samples]
    known = [(at, float(value)) for at, value in seen if value is not None]
    if not left or not known:
        return None
    label, role = _STAGES[str(window.body.cell["stage"])]
    return Line(
        label=label,
        role=role,
        at=tuple((at - left[0]) / 1e9 for at, _ in known),
        values=tuple(value for _, value in known),
        step=True,
    )


def restart(view: EvidenceView) -> Iterator[Figure]:
    """The same questions before and after: both means, and the ratio that decides."""
    for phase, words in _PHASES.items():
        compared = [item for item in compare(view, phase).figures if not isinstance(item.ratio, Unknown)]
        if not compared:
            continue
        yield Figure(
            title=f"Before and {words}",
            svg=whiskers(
                [_sides(item) for item in compared],
                Words(name=f"restart-{phase}", title=f"Times before and {words}", axis="mean time", unit="s"),
            ),
            caption=f"Means; the pale bar is the interval of each. n = {_sizes(compared)} on each side.",
            legend=(
                Legend(glyph="○", role=Role.COLD.value, text="before"),
                Legend(glyph="●", role=Role.WARM.value, text="after"),
            ),
        )
        yield Figure(
            title=f"{words.capitalize()}, over before",
            svg=whiskers(
                [_ratio(item) for item in compared],
                Words(name=f"restart-{phase}-ratio", title=f"Times {words} / before", axis="ratio", unit=""),
                reference=1.0,
            ),
            caption="1 is no change. The intervals are wide enough to hold for all rows together; what excludes 1 by a "
            "quarter or more has moved.",
        )


def _sides(item: Compared) -> Whiskers:
    readings: list[Reading] = []
    for samples, role, filled in ((item.before, Role.COLD, False), (item.after, Role.WARM, True)):
        spread = mean.interval(samples)
        known = spread if isinstance(spread, Interval) else None
        readings.append(
            Reading(
                value=statistics.fmean(samples),
                low=None if known is None else known.low,
                high=None if known is None else known.high,
                role=role,
                filled=filled,
            )
        )
    before, after = (number(reading.value, "s") for reading in readings)
    same_unit = before.split()[-1] == after.split()[-1]
    return Whiskers(
        label=_named(item),
        note=f"{before.split()[0] if same_unit else before} → {after}",
        readings=tuple(readings),
    )


def _sizes(compared: Sequence[Compared]) -> str:
    sizes = sorted({size for item in compared for size in (len(item.before), len(item.after))})
    return f"{sizes[0]:,}" if len(sizes) == 1 else f"{sizes[0]:,} to {sizes[-1]:,}"


def _ratio(item: Compared) -> Whiskers:
    assert not isinstance(item.ratio, Unknown)  # those were left out
    spread = item.ratio.interval
    known = spread if isinstance(spread, Interval) else None
    note = f" {interval(known, 'ratio', around=item.ratio.value)}" if known is not None else ""
    reading = Reading(
        value=item.ratio.value,
        low=None if known is None else known.low,
        high=None if known is None else known.high,
        role=Role.BAD if item.moved else Role.COLD,
    )
    return Whiskers(
        label=_named(item),
        note=f"{'moved: ' if item.moved else ''}{number(item.ratio.value, 'ratio')}{note}",
        readings=(reading,),
    )


def _named(item: Compared) -> str:
    return f"{item.name.upper()} {tokens(item.length)} {_WHAT[item.what]}"


def disaggregated(view: EvidenceView) -> Iterator[Figure]:
    """Where a request's time goes: prefill side, handover, decode; means by length."""
    whole = [item for item in handed_of(view) if item.good and "/together/" not in item.key and _parts(item)]
    lengths = sorted({item.length for item in whole})
    if not lengths:
        return
    groups = [[item for item in whole if item.length == length] for length in lengths]
    roles = (Role.COLD, Role.WARM, Role.TAIL)
    words = Words(name="handover", title="Time by side", axis="time since submission", unit="s")
    yield Figure(
        title="Where the time goes",
        svg=splits([_split(group) for group in groups], words, _PD_PARTS),
        caption=f"Means over {plural(len(whole), 'request')} that ran alone and completed. "
        "The handover ends with the first token of the decode side; the transfer is inside it.",
        legend=tuple(
            Legend(glyph="▬", role=role.value, text=name) for role, name in zip(roles, _PD_PARTS, strict=True)
        ),
    )


def _split(group: Sequence[Handed]) -> Split:
    roles = (Role.COLD, Role.WARM, Role.TAIL)
    columns = zip(*(_parts(item) for item in group), strict=True)
    means = tuple(statistics.fmean(column) for column in columns)
    return Split(
        label=f"{tokens(group[0].length)} tokens, {sample_size(len(group))}",
        parts=tuple(zip(roles, means, strict=True)),
    )


def _parts(item: Handed) -> tuple[float, ...]:
    """(prefill, handover, decode) in seconds; nothing where a part is not known."""
    first = item.timeline.first_token_ns
    if item.prefill_s is None or item.decode_ttft_s is None or first is None:
        return ()
    return item.prefill_s, item.decode_ttft_s, (item.timeline.finished_ns - first) / 1e9
