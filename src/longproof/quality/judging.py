"""From a stored reply to what it counts as. Pure: the probe steers by it, and a claim reads the evidence with it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from longproof.domain.events import EndedBy
from longproof.domain.outcome import Outcome, classify
from longproof.domain.outcome_words import in_words
from longproof.domain.request import CountSource, TokenCount
from longproof.evidence.records import ItemBody, Placed, RequestBody
from longproof.quality.item import Item, Needle, Scored
from longproof.quality.proof import length_check
from longproof.quality.scoring import score

PROBE = "quality"
"""The name that a quality run's records carry."""


class Ended(StrEnum):
    """What one asked item came to."""

    RIGHT = "right"
    WRONG = "wrong"
    BUDGET = "budget"
    """The output ended before an answer did: nothing about the window."""
    LENGTH_UNPROVEN = "length unproven"
    """The server read another number of tokens than were sent, or does not say."""
    FAILED = "failed"
    """Refused, broken off or hung."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A reply and its judgement; `scored` is None where it says nothing about the model. `why` in a few words."""

    ended: Ended
    scored: Scored | None
    why: str


_NO_ANSWER = ("nothing named", "unfinished thinking")


def judged(item: Item, body: RequestBody) -> Judged:
    """Judges one reply. Never raises."""
    timeline = body.timeline
    outcome = classify(timeline)
    if outcome not in (Outcome.COMPLETED, Outcome.SHORT, Outcome.EMPTY) or timeline.ended_by is EndedBy.CANCELLED:
        return Judged(ended=Ended.FAILED, scored=None, why=in_words(outcome))
    check = length_check(_count(body), timeline.usage.prompt_tokens if timeline.usage is not None else None)
    if not check.proven:
        return Judged(ended=Ended.LENGTH_UNPROVEN, scored=None, why=check.why)
    found = score(item, timeline.text)
    cut = timeline.finish_reason == "length"
    if not timeline.text.strip() or (cut and found.why in _NO_ANSWER):
        return Judged(ended=Ended.BUDGET, scored=None, why=f"finish_reason {timeline.finish_reason}, {found.why}")
    return Judged(ended=Ended.RIGHT if found.right else Ended.WRONG, scored=found, why=found.why)


def item_key(family: str, index: int, length_tokens: int | None = None) -> str:
    """Where an item is stored: once, or once for each length where it is another one at each."""
    key = f"{PROBE}/{family}/item/{index}"
    return key if length_tokens is None else f"{key}/{length_tokens}"


def stored(item: Item, length_tokens: int) -> ItemBody:
    """An item as the evidence keeps it; `item_of` reads it back. `length_tokens`: where it was first asked."""
    return ItemBody(
        probe=PROBE,
        cell={"length": length_tokens},
        family=item.family,
        index=item.index,
        seed=item.seed,
        needles=tuple(Placed(text=n.text, depth=n.depth, evidence=n.evidence) for n in item.needles),
        question=item.question,
        answers=item.answers,
        candidates=item.candidates,
        decoys=dict(item.decoys),
        chance=item.chance,
        pair=item.pair,
        answer_tokens=item.answer_tokens,
        filler=item.kind,
        depth=item.depth,
    )


def item_of(body: ItemBody) -> Item:
    """The item that was stored."""
    return Item(
        family=body.family,
        index=body.index,
        seed=body.seed,
        needles=tuple(Needle(text=n.text, depth=n.depth, evidence=n.evidence) for n in body.needles),
        question=body.question,
        answers=body.answers,
        candidates=body.candidates,
        decoys=body.decoys,
        chance=body.chance,
        pair=body.pair,
        answer_tokens=body.answer_tokens,
        kind=body.filler,
        depth=body.depth,
    )


def _count(body: RequestBody) -> TokenCount:
    sent = body.timeline.prompt_tokens_sent or 0
    source = body.timeline.count_source or CountSource.USAGE
    return TokenCount(total=sent, content=sent, template=0, special=None, source=source, how=f"by {source.value}")
