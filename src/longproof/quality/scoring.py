"""Right or wrong, exactly and without a judge.

    reply ─▶ the part that counts ─▶ the values it names ─▶ right only if these are the answers and nothing else

The part that counts is what follows the thinking, or else the first line that says something. A line that only
announces ("The codes are:") is read together with the next; an answer of several values may be a list. A part longer
than `MOST_CHARACTERS` answers nothing: it pours out the context. What a reply says *about* a value ("it is not 711097")
is not understood: naming is what counts, so naming a second candidate is wrong even in passing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from longproof.quality.item import Item, Scored
from longproof.quality.naming import values_in

MOST_CHARACTERS = 1_000
"""A sentence around the value, or a short explanation after thinking, is far below this."""

_THINKING = (("<think>", "</think>"), ("<thinking>", "</thinking>"), ("[THINK]", "[/THINK]"))
_FENCE = re.compile(r"^\s*(?:```|~~~)\s*\w*\s*$")


def score(item: Item, text: str) -> Scored:
    """Judges one reply. Never raises, whatever the text; costs at most a pass over it."""
    answer, thought = _after_thinking(text)
    if answer is None:
        return Scored(right=False, named=(), why="unfinished thinking", considered="")
    considered = answer.strip() if thought else _first_part(item, answer)
    if len(considered) > MOST_CHARACTERS:
        cut = considered[:MOST_CHARACTERS]
        return Scored(right=False, named=_values(item, cut)[0], why="dump", considered=cut)
    named, others = _values(item, considered)
    why = _reason(item, named, others)
    return Scored(right=why == "exact", named=named, why=why, considered=considered)


def _reason(item: Item, named: tuple[str, ...], others: tuple[str, ...]) -> str:
    said, wanted = set(named), set(item.answers)
    if not said:
        return "other value" if others else "nothing named"
    if said == wanted and not others:
        return "exact"
    if said < wanted and not others:
        return "some missing"
    if len(said) == 1 and not others:
        (value,) = said
        return f"decoy: {item.decoys[value]}" if value in item.decoys else "other value"
    return "dump" if wanted <= said or len(wanted) == 1 else "other value"


def _values(item: Item, text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return values_in(text, item.candidates, item.kind)


def _after_thinking(text: str) -> tuple[str | None, bool]:
    """(what follows the thinking, whether there was any); None when it never ended."""
    for begin, end in _THINKING:
        _, ended, rest = text.rpartition(end)
        if ended:
            return rest, True
        if text.lstrip().startswith(begin):
            return None, True
    return text, False


def _first_part(item: Item, text: str) -> str:
    """The first line that says something, with the next one where it only announces; for several answers the lines up
    to an empty one."""
    parts = _paragraphs(text.splitlines()) if len(item.answers) > 1 else _lines(text.splitlines())
    first = next(parts, "")
    if first.rstrip(" *_").endswith(":") and len(first) <= MOST_CHARACTERS and _values(item, first) == ((), ()):
        return f"{first}\n{next(parts, '')}".rstrip()
    return first


def _lines(lines: Iterable[str]) -> Iterator[str]:
    return (line.strip() for line in lines if re.search(r"\w", line) and not _FENCE.match(line))


def _paragraphs(lines: Iterable[str]) -> Iterator[str]:
    kept: list[str] = []
    for line in lines:
        if line.strip() and not _FENCE.match(line):
            kept.append(line.strip())
        elif kept:
            yield "\n".join(kept)
            kept = []
    if kept:
        yield "\n".join(kept)
