"""The replies of a quality run, judged again from what was stored, by family and length."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import TypeAdapter

from longproof.claim.view import EvidenceView
from longproof.evidence.records import ItemBody, RequestBody
from longproof.quality.corpora.corpus import Kind
from longproof.quality.item import Item
from longproof.quality.judging import PROBE, Ended, Judged, item_key, item_of, judged
from longproof.quality.plan import QualityPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One asked item. `right` is None where the reply says nothing about the model."""

    key: str
    body: RequestBody
    item: Item
    judged: Judged

    @property
    def right(self) -> bool | None:
        return None if self.judged.scored is None else self.judged.scored.right


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """All replies of one family at one length, or of one control, in asking order."""

    replies: tuple[Reply, ...] = ()

    @property
    def outcomes(self) -> tuple[float, ...]:
        """1 right, 0 wrong, of those that have a score."""
        return tuple(float(reply.right) for reply in self.replies if reply.right is not None)

    @property
    def right(self) -> int:
        return sum(reply.right is True for reply in self.replies)

    @property
    def n(self) -> int:
        """Replies with a score."""
        return len(self.outcomes)

    @property
    def ended(self) -> Mapping[Ended, int]:
        return Counter(reply.judged.ended for reply in self.replies)

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(reply.key for reply in self.replies)


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyReplies:
    """One family: its controls, its lengths, and what was asked again."""

    name: str
    chance: float
    control: Cell
    closed_book: Cell
    kind: Kind
    full: Mapping[int, Cell]
    warm: Mapping[int, Cell]


def plan_of_run(view: EvidenceView) -> QualityPlan | None:
    """What the run was told to ask; None where quality was no part of it."""
    for step in view.header.protocol.steps:
        if step.probe == PROBE:
            return TypeAdapter(QualityPlan).validate_python(dict(step.parameters))
    return None


def families_of(view: EvidenceView) -> tuple[FamilyReplies, ...]:
    """Every family that was asked anything, in the plan's order."""
    items = {record.key: record.body for record in view.records if isinstance(record.body, ItemBody)}
    found: dict[str, dict[tuple[str, int], list[Reply]]] = {}
    for key, body in view.requests(PROBE):
        family, arm, length = str(body.cell["family"]), str(body.cell["arm"]), int(body.cell["length"])
        stored = _stored(items, family, int(body.cell["item"]), length)
        if stored is not None:
            item = item_of(stored)
            reply = Reply(key=key, body=body, item=item, judged=judged(item, body))
            found.setdefault(family, {}).setdefault((arm, length), []).append(reply)
    return tuple(_family(name, arms) for name, arms in found.items())


def _stored(items: Mapping[str, ItemBody], family: str, index: int, length: int) -> ItemBody | None:
    return items.get(item_key(family, index, length)) or items.get(item_key(family, index))


def _family(name: str, arms: Mapping[tuple[str, int], list[Reply]]) -> FamilyReplies:
    def cell(arm: str, length: int) -> Cell:
        return Cell(replies=tuple(sorted(arms.get((arm, length), ()), key=lambda reply: reply.body.cell["order"])))

    first = next(iter(arms.values()))[0]
    lengths = sorted({length for arm, length in arms if arm == "full"})
    return FamilyReplies(
        name=name,
        chance=first.item.chance,
        kind=first.item.kind,
        control=cell("evidence", 0),
        closed_book=cell("closed_book", 0),
        full={length: cell("full", length) for length in lengths},
        warm={length: cell("warm", length) for length in lengths if ("warm", length) in arms},
    )
