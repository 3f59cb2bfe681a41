"""Text of our own: ledgers, minutes and tickets, as much as is wanted, in the register that needles are written in.

Nobody has read it before, so no model can know it by heart. Document k of a seed is drawn from that seed and k alone:
a longer corpus begins with the shorter one. A line that repeats an earlier one (see `duplicates`) is drawn again.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Iterator
from random import Random
from string import Formatter

from longproof.quality.corpora import vocabulary as words
from longproof.quality.corpora.corpus import Document, TextCorpus
from longproof.quality.corpora.duplicates import Seen, key_of

NAME = "generated"
LICENCE = "Apache-2.0, made by longproof"
CHARS_PER_TOKEN = 5
"""More than tokenizers make of this text (3.7 with SmolLM2's 49k words of vocabulary): what is asked for in tokens is
there."""

_LINES = 60
_FORMAT = 1
"""Grows whenever the same seed would give another text."""

LEDGER = (
    "On {day} {firm} paid {money} for {count} {measure} of {goods}, {manner}; {remark}.",
    "{firm} delivered {count} {measure} of {goods} to {place} on {day}, {manner}.",
    "Received of {person}, {trade} at {place}: {money} for {goods}; {remark}.",
    "Bought from {firm}: {count} {measure} of {goods} and {few} of {goods2}, {money} together, {manner}.",
    "{person} returned {few} {measure} of {goods} to the {room} on {weekday}; {remark}.",
    "Carried forward from {month}: {money} owed by {body} for {goods}, {manner}.",
    "{body} ordered {colour} {goods} worth {money}, to be left at {place} before {occasion}.",
    "The {trade} {surname} was paid {money} for work on the {thing} in the {room}, {manner}.",
    "Stock in the {room} on {day}: {count} {measure} of {goods}, {few} of {goods2}; {remark}.",
    "{person} settled the account of {body} with {money} {manner}; {remark}.",
    "Freight from {place} to {place2}: {count} {measure} of {goods}, {money}, {manner}.",
    "Rent of the {room} at {place}, let to {person}, {trade}: {money} for {month}; {remark}.",
)
MINUTES = (
    "{person} moved that {proposal} before {occasion}; seconded by {person2}, carried by {few} votes to {small}.",
    "{person} asked once more that {proposal}; the chair answered that {body} had not yet replied.",
    "It was resolved on {day} that {proposal}, {person} abstaining.",
    "{person} read a letter from {body} about the {thing} at {place}; {remark}.",
    "The treasurer, {person}, reported {money} in hand and {money2} owed by {body}.",
    "A request of {body} to use the {room} after {occasion} was granted; {person} keeps the key.",
    "{person} thanked {person2} for the gift of {few} {measure} of {goods} to {body}.",
    "The proposal of {person}, that {proposal}, was withdrawn after {person2} had spoken for {small} minutes.",
    "Leave was given to {person} until {occasion}; {person2}, {trade}, takes the place on the board of {body}.",
    "The chair, {person}, closed the debate on {goods} and called the vote on the {colour} {thing} in the {room}.",
    "{person} warned that {body} would object to the wish that {proposal}; the item was put off until {month}.",
    "A deputation from {place}, led by {person}, complained of the {thing} that {fault}.",
)
TICKETS = (
    "{person} reports that the {thing} in the {room} at {place} {fault}; {remedy}.",
    "The {colour} {thing} on the {room} side {fault}, says {person}; {remedy}.",
    "Since {weekday} the {thing} at {place} {fault}; opened by {person}, {trade}, {remedy}.",
    "{person} of {body} writes that the {thing} {fault} whenever {goods} are stored in the {room}; {remedy}.",
    "Second report about the {thing} in the {room} of {body}: it {fault}; {remedy}.",
    "Closed by {person} on {day}, the {thing} at {place}: {remedy}.",
    "{person} asks for {few} {measure} of {goods} for the {room}, because the {thing} {fault}.",
    "The {thing} and the {thing2} in the {room} were swapped by {person}; the first one {fault}, {remedy}.",
    "Inspection at {place} by {person}: the {thing} {fault}, the {thing2} is in order; {remark}.",
    "Handed over from {person} to {person2}: the {colour} {thing} in the {room} {fault}; {remedy}.",
    "{body} cannot use the {room}, as the {thing} {fault}; promised to {person} before {occasion}.",
    "{person} found that the {thing} in the {room} {fault} after {occasion}; {remedy}.",
)
REGISTERS: dict[str, tuple[str, ...]] = {"ledger": LEDGER, "minutes": MINUTES, "tickets": TICKETS}


def generated(*, seed: int, tokens: int) -> TextCorpus:
    """Prose enough for an item of `tokens` tokens, with lines to spare. The manifest names seed and word list, not the
    size: the same seed gives the same beginning at any size."""
    return TextCorpus(
        name=NAME,
        kind="prose",
        licence=LICENCE,
        documents=_documents(seed, CHARS_PER_TOKEN * tokens + _SPARE_CHARS),
        manifest_sha256=_manifest(seed),
    )


_SPARE_CHARS = 60_000


def _documents(seed: int, chars: int) -> Iterator[Document]:
    seen = Seen()
    number = written = 0
    while written < chars:
        for register, templates in REGISTERS.items():
            chance = Random(f"{seed}/{NAME}/{register}/{number}")
            lines = [_fresh(templates, chance, seen) for _ in range(_LINES)]
            text = "\n".join(lines)
            written += len(text)
            # a blank line between the lines: each is a paragraph of its own
            yield Document(name=f"{register}-{number:05d}.txt", text="\n\n".join(lines))
        number += 1


def _fresh(templates: tuple[str, ...], chance: Random, seen: Seen) -> str:
    while True:
        line = _write(chance.choice(templates), chance)
        key = key_of(line)
        if key is not None and seen.add(key):
            return line


def _write(template: str, chance: Random) -> str:
    parts: list[str] = []
    for literal, slot, _, _ in _PARSED[template]:
        parts.append(literal)
        if slot:
            parts.append(_SLOTS[slot.rstrip("2")](chance))
    line = "".join(parts)
    return line[0].upper() + line[1:]


def _name(chance: Random) -> str:
    return f"{chance.choice(words.FIRST_NAMES)} {_surname(chance)}"


def _surname(chance: Random) -> str:
    return chance.choice(words.SURNAME_HEADS) + chance.choice(words.SURNAME_TAILS)


def _firm(chance: Random) -> str:
    form = chance.choice(
        ("{} & Sons", "{} & Daughters", "{} Brothers", "{} & Company", "the widow {}", "{} of the mill")
    )
    return form.format(_surname(chance))


def _place(chance: Random) -> str:
    number = f"{chance.randint(1, 180)} " if chance.random() < 0.5 else ""
    return f"{number}{chance.choice(words.PLACE_HEADS)} {chance.choice(words.PLACE_TAILS)}"


def _day(chance: Random) -> str:
    return f"{chance.randint(1, 28)} {chance.choice(words.MONTHS)}"


def _money(chance: Random) -> str:
    return f"{chance.randint(2, 980)} crowns {chance.randint(1, 95)}"


def _from(choices: tuple[str, ...]) -> Callable[[Random], str]:
    return lambda chance: chance.choice(choices)


_SLOTS: dict[str, Callable[[Random], str]] = {
    "person": _name,
    "surname": _surname,
    "firm": _firm,
    "place": _place,
    "day": _day,
    "money": _money,
    "count": lambda chance: str(chance.randint(12, 980)),
    "few": lambda chance: str(chance.randint(3, 40)),
    "small": lambda chance: str(chance.randint(2, 11)),
    "month": _from(words.MONTHS),
    "weekday": _from(words.WEEKDAYS),
    "trade": _from(words.TRADES),
    "goods": _from(words.GOODS),
    "measure": _from(words.MEASURES),
    "room": _from(words.ROOMS),
    "thing": _from(words.THINGS),
    "fault": _from(words.FAULTS),
    "remedy": _from(words.REMEDIES),
    "proposal": _from(words.PROPOSALS),
    "occasion": _from(words.OCCASIONS),
    "manner": _from(words.MANNERS),
    "remark": _from(words.REMARKS),
    "colour": _from(words.COLOURS),
    "body": _from(words.BODIES),
}
_PARSED = {text: list(Formatter().parse(text)) for templates in REGISTERS.values() for text in templates}


def _manifest(seed: int) -> str:
    """A hash over everything that decides the text: word list, sentences, seed, and this file's format number."""
    source = f"{_FORMAT}\0{seed}\0{inspect.getsource(words)}\0{REGISTERS!r}"
    return hashlib.sha256(source.encode()).hexdigest()
