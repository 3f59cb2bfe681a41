"""Reads the canaries of `probe/accounting`: were head, middle and tail of a long prompt read?"""

from __future__ import annotations

from collections.abc import Iterator

from longproof.claim.statements import Finding, NotShown, Severity, Standing, Statement
from longproof.claim.view import EvidenceView
from longproof.domain.measure import Measured, Provenance
from longproof.domain.outcome import Outcome, classify
from longproof.domain.units import format_tokens
from longproof.evidence.records import RequestBody

PROBE = "accounting"
PLACES = ("head", "middle", "tail")


def places(view: EvidenceView) -> tuple[set[str], set[str]]:
    """(places that were not read, places that were), at the full canary length, by answer or by sensitivity."""
    full = _canary_cells(view)
    if not full:
        return set(), set()
    length = max(full)
    return _judge(full[length], full[min(full)] if len(full) > 1 else None)


def canary_length(view: EvidenceView) -> int | None:
    """Tokens of the long prompt that held the canaries. None = none was asked."""
    return max(_canary_cells(view), default=None)


def _canary_cells(view: EvidenceView) -> dict[int, dict[str, tuple[str, RequestBody]]]:
    cells: dict[int, dict[str, tuple[str, RequestBody]]] = {}
    for key, body in view.requests(PROBE):
        if body.cell.get("arm") == "canary":
            cells.setdefault(int(body.cell["length"]), {})[str(body.cell["variant"])] = (key, body)
    return cells


def _judge(
    full: dict[str, tuple[str, RequestBody]], control: dict[str, tuple[str, RequestBody]] | None
) -> tuple[set[str], set[str]]:
    """A place is unread when changing its code changes no log probability, while changing another place's does (or the
    answer
    lacks its code); read when the answer names it or the log probabilities moved."""
    if "base" not in full or classify(full["base"][1].timeline) not in (Outcome.COMPLETED, Outcome.SHORT):
        return set(), set()
    named = _named(full["base"][1])
    moved = {place: _moved(full, place) for place in PLACES}
    read_places = named | {place for place in PLACES if moved[place]}
    frozen = {place for place in PLACES if moved[place] is False} - named
    # Frozen everywhere, in the control too: these log probabilities are not of the prompt, and tell nothing.
    speaks = bool(read_places) or (control is not None and any(_moved(control, place) for place in PLACES))
    unread = frozen if speaks else set[str]()
    return unread, read_places


def _named(body: RequestBody) -> set[str]:
    return {place for place in PLACES if str(body.cell[place]) in body.timeline.text}


def _moved(cells: dict[str, tuple[str, RequestBody]], place: str) -> bool | None:
    """Whether changing one place's code moved the first token's log probabilities. None = cannot be told."""
    if "base" not in cells or place not in cells:
        return None
    base, changed = cells["base"][1].timeline.first_logprobs, cells[place][1].timeline.first_logprobs
    if base is None or changed is None:
        return None
    return base != changed


def canaries(view: EvidenceView) -> Iterator[Statement | Finding | NotShown]:
    cells = _canary_cells(view)
    if not cells:
        return
    length = max(cells)
    control = cells[min(cells)] if len(cells) > 1 else None
    full = cells[length]
    if "base" not in full or classify(full["base"][1].timeline) not in (Outcome.COMPLETED, Outcome.SHORT):
        yield NotShown(
            topic="read_whole",
            text=(
                f"Whether all of a {format_tokens(length)}-token prompt is read: the request with the canaries"
                " did not complete."
            ),
            how="prove a window in which it completes",
        )
        return
    unread, read_places = _judge(full, control)
    evidence = tuple(key for key, _ in full.values())
    for place in sorted(unread):
        yield Finding(
            id=f"accounting.input_truncated_{place}",
            severity=Severity.FAULT,
            text=(
                f"The {place} of a {format_tokens(length)}-token prompt was not read: changing the code there"
                " changed no log"
                " probability of the first token. No error was given."
            ),
            evidence=evidence,
            details={"length": str(length), "place": place},
        )
    yield from _missed(full["base"], control, unread, read_places, length)
    yield _read_whole(read_places, unread, length, evidence)


def _missed(
    base: tuple[str, RequestBody],
    control: dict[str, tuple[str, RequestBody]] | None,
    unread: set[str],
    read_places: set[str],
    length: int,
) -> Iterator[Finding]:
    """Without log probabilities only the answer speaks: codes found in the control but not at length."""
    if control is None or "base" not in control:
        return
    could = _named(control["base"][1])
    missed = could - _named(base[1]) - unread - read_places
    if could == set(PLACES):
        for place in sorted(missed):
            yield Finding(
                id=f"accounting.input_truncated_{place}",
                severity=Severity.FAULT,
                text=(
                    f"The code at the {place} of a {format_tokens(length)}-token prompt was not answered, while"
                    " all three were in the"
                    " short control: cut off, or not found by the model; the server gives no log probabilities"
                    " to tell which."
                ),
                evidence=(base[0], control["base"][0]),
                details={"length": str(length), "place": place},
            )


def _read_whole(read_places: set[str], unread: set[str], length: int, evidence: tuple[str, ...]) -> Statement:
    whole = len(read_places) == len(PLACES)
    standing = Standing.SHOWN if whole else Standing.REFUTED if unread else Standing.NOT_SHOWN
    say = {
        Standing.SHOWN: (
            f"Head, middle and tail of a {format_tokens(length)}-token prompt all reached the model; a gap"
            " between them that usage hides as well would go unseen."
        ),
        Standing.REFUTED: (
            f"Not all of a {format_tokens(length)}-token prompt reached the model: {', '.join(sorted(unread))} did not."
        ),
        Standing.NOT_SHOWN: (
            f"Whether all of a {format_tokens(length)}-token prompt reached the model could not be told."
        ),
    }
    return Statement(
        id="accounting.read_whole",
        metric="read_whole",
        text=say[standing],
        standing=standing,
        unit="places",
        value=Measured(
            value=float(len(read_places)),
            provenance=Provenance.MEASURED,
            source="canaries at head, middle and tail: answered, or log probabilities moved",
        ),
        n=1,
        at_tokens=length,
        evidence=evidence,
    )
