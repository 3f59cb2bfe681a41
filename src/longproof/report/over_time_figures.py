"""Figures of a load that goes on: windows of a sustained run, turns of a conversation."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from longproof.claim.findings.conversation_talks import Talk, talks_of
from longproof.claim.findings.sustained import Tested, tests_of
from longproof.claim.findings.sustained_series import Series, Sustained, read_series
from longproof.claim.statements import Claim, Statement
from longproof.claim.view import EvidenceView
from longproof.domain.measure import Measured
from longproof.report.figures import Figure, Legend
from longproof.report.load_plots import Across, Line, over_axis
from longproof.report.numbers import plural, tokens
from longproof.report.plot_frame import Words
from longproof.report.theme import Role

_GIB = 1 << 30
_ROLES = (Role.COLD, Role.WARM, Role.TAIL, Role.MUTED)
_GLYPHS = ("●", "■", "◆", "▲")
_MARKERS = ("o", "s", "D", "^")


def sustained(view: EvidenceView) -> Iterator[Figure]:
    """Times, failures, KV floor and memory over the windows, with what the tests found."""
    run = read_series(view)
    if run is None:
        return
    tested = tests_of(run, view.header.protocol.seed)
    for series in run.times:
        what = "time to first token" if "ttft" in series.metric else "time per output token"
        title = f"{what.capitalize()}, {series.role} prompts"
        words = Words(
            name=f"{series.metric}-{series.role}".replace("_", "-"), title=title, axis=f"{what}, median", unit="s"
        )
        yield from _series(run, series, tested, words)
    if any(run.failures.values):
        words = Words(
            name="sustained-failures", title="Requests that failed", axis="share that failed", unit="fraction"
        )
        yield from _series(run, run.failures, tested, words)
    floor = Words(name="sustained-kv", title="KV floor", axis="KV pool in use with nothing running", unit="fraction")
    yield from _series(run, run.kv_floor, tested, floor)
    memory = Words(name="sustained-memory", title="Memory of the engine", axis="resident memory", unit="GiB")
    yield from _series(run, run.memory, tested, memory, divisor=_GIB, more=f"Of {run.memory_of or 'the engine'}.")


def _series(
    run: Sustained, series: Series, tested: Sequence[Tested], words: Words, *, divisor: float = 1, more: str = ""
) -> Iterator[Figure]:
    if len(series.points) < 2:
        return
    found = next((item for item in tested if item.series is series), None)
    changed = found is not None and found.significant and found.rise.kind == "step"
    rules = (series.points[found.rise.at].at_ns / 1e9,) if changed and found is not None else ()
    line = Line(
        label=words.title,
        role=Role.COLD,
        at=tuple(point.at_ns / 1e9 for point in series.points),
        values=tuple(value / divisor for value in series.values),
    )
    legend = (Legend(glyph="┆", role=Role.BAD.value, text="change point"),) if rules else ()
    count = f"{plural(len(series.points), 'window')}; {run.left_out} left out as warm-up."
    yield Figure(
        title=words.title,
        svg=over_axis([line], words, Across(label="seconds since the load began", rules=rules)),
        caption=" ".join(part for part in (count, _test(found), more) if part),
        legend=legend,
    )


def _test(found: Tested | None) -> str:
    """What the change-point test says of a series: a rise, or none that chance does not give."""
    if found is None:
        return "Too few windows to tell a change from chance."
    if not found.significant:
        return f"No rise beyond chance (p = {found.adjusted_p:.2g})."
    before, after = found.ends
    times = f" by a factor of {after / before:.3g}" if before > 0 else ""
    return f"It rises{times}, {found.where} (p = {found.adjusted_p:.2g})."


def conversation(claim: Claim, view: EvidenceView) -> Iterator[Figure]:
    """Time to first token by turn beside what it would be if nothing were kept, and what was cached of each turn."""
    stated: dict[str, list[Statement]] = {}
    for item in claim.statements:
        if item.metric == "conversation_ttft" and isinstance(item.value, Measured) and "turn" in item.conditions:
            stated.setdefault(item.conditions.get("concurrency", "1"), []).append(item)
    lines = [
        _turns(together, items, role, marker)
        for (together, items), role, marker in zip(stated.items(), _ROLES, _MARKERS, strict=False)
    ]
    talks = talks_of(view)
    if lines and max(len(line.at) for line in lines) > 1:
        cold = [line for many, line in _without_reuse(talks).items() if str(many) == next(iter(stated))]
        words = Words(name="turns", title="Time to first token by turn", axis="time to first token", unit="s")
        yield Figure(
            title="Turn by turn",
            svg=over_axis([*lines, *cold], words, _turn_axis([*lines, *cold])),
            caption="Means with their intervals as pale bars. Dashed: what a turn would take if every token of it cost "
            f"what a token of turn 1 did, {next(iter(stated))} at once; nothing of the conversation kept.",
            legend=(
                *(
                    Legend(glyph=glyph, role=line.role.value, text=line.label)
                    for line, glyph in zip(lines, _GLYPHS, strict=False)
                ),
                *(Legend(glyph="┄", role=line.role.value, text="all of it cold") for line in cold),
            ),
        )
    yield from _kept([talk for group in talks.values() for talk in group])


def _turns(together: str, items: Sequence[Statement], role: Role, marker: str) -> Line:
    ordered = sorted(items, key=lambda item: int(item.conditions["turn"]))
    spreads = [item.interval for item in ordered]
    return Line(
        label=f"{together} at once",
        role=role,
        at=tuple(float(item.conditions["turn"]) - 1 for item in ordered),
        values=tuple(item.value.value for item in ordered if isinstance(item.value, Measured)),
        low=tuple(None if spread is None else spread.low for spread in spreads),
        high=tuple(None if spread is None else spread.high for spread in spreads),
        marker=marker,
    )


def _turn_axis(lines: Sequence[Line]) -> Across:
    most = round(max(at for line in lines for at in line.at)) + 1
    return Across(label="turn", names=tuple(str(turn + 1) for turn in range(most)))


def _without_reuse(talks: dict[int, list[Talk]]) -> dict[int, Line]:
    """By concurrency: the first turn's time per token, times each turn's own tokens."""
    found: dict[int, Line] = {}
    for many, group in talks.items():
        by_turn: dict[int, list[float]] = {}
        for talk in group:
            first = talk.turns[0]
            for turn in talk.turns:
                if first.prompt_tokens and turn.prompt_tokens:
                    by_turn.setdefault(turn.turn, []).append(first.ttft_s / first.prompt_tokens * turn.prompt_tokens)
        if len(by_turn) > 1:
            found[many] = Line(
                label="all of it cold",
                role=Role.INK,
                at=tuple(float(turn - 1) for turn in by_turn),
                values=tuple(statistics.fmean(values) for values in by_turn.values()),
                dashed=True,
            )
    return found


def _kept(talks: Sequence[Talk]) -> Iterator[Figure]:
    """Prompt tokens by turn, and how many of them the server says it had."""
    turns = [turn for talk in talks for turn in talk.turns if turn.prompt_tokens is not None]
    numbers = sorted({turn.turn for turn in turns})
    if len(numbers) < 2 or not any(turn.cached_tokens for turn in turns):
        return
    at = tuple(float(number - 1) for number in numbers)
    sent = [statistics.fmean(t.prompt_tokens or 0 for t in turns if t.turn == number) for number in numbers]
    told = [[t.cached_tokens for t in turns if t.turn == n and t.cached_tokens is not None] for n in numbers]
    known = [(place, statistics.fmean(cached)) for place, cached in zip(at, told, strict=True) if cached]
    lines = [
        Line(label="prompt", role=Role.COLD, at=at, values=tuple(sent)),
        Line(
            label="cached, by the server's word",
            role=Role.WARM,
            at=tuple(place for place, _ in known),
            values=tuple(value for _, value in known),
            marker="s",
        ),
    ]
    words = Words(name="turn-tokens", title="Prompt and cached tokens by turn", axis="tokens, mean", unit="tokens")
    yield Figure(
        title="What was new in each turn",
        svg=over_axis(lines, words, _turn_axis(lines)),
        caption=f"Over {plural(len(talks), 'conversation')}; the last turn's prompt holds {tokens(round(sent[-1]))} "
        "tokens. The gap between the lines is what was computed.",
        legend=(
            Legend(glyph="●", role=Role.COLD.value, text="prompt"),
            Legend(glyph="■", role=Role.WARM.value, text="cached, by the server's word"),
        ),
    )
