"""How facts are stated and asked for, the same in every family that keeps a value under a name.

Short declarative sentences, and a question with the same words at the end: what a model of 135M parameters can follow
at 200 tokens, so that a miss at 4,000 says something about the length.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

from longproof.quality.item import Needle

THINGS: tuple[str, ...] = (
    "passcode",
    "access code",
    "locker number",
    "permit number",
    "badge number",
    "invoice number",
    "serial number",
    "ticket number",
    "account number",
    "tracking number",
    "order number",
    "membership number",
    "reference number",
    "licence number",
)
"""One per item: a text of many topics confuses a small model for another reason than its length."""

NUMBER_ONLY = "Answer with the number only."


def states(thing: str, key: str, value: str) -> str:
    return f"The {thing} for {key} is {value}."


def asks(thing: str, key: str) -> str:
    return f"What is the {thing} for {key}? {NUMBER_ONLY}"


def in_text_order(needles: Iterable[Needle], chance: Random) -> tuple[Needle, ...]:
    """By depth. What shares a depth (there is only one place in an empty text) gets a random order, so that no family's
    answer stands first or last by its making. Families whose order means something sort by themselves."""
    shuffled = list(needles)
    chance.shuffle(shuffled)
    return tuple(sorted(shuffled, key=lambda needle: needle.depth))
