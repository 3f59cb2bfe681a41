"""Canaries: three coded sentences at head, middle and tail of a prompt, and what tells us that they were read.

Two tests that need different things from the server:

    answer        the model is asked for the codes. A miss at full length means truncation *or* a model that cannot
    find them, so a
                  short control with the same codes runs first.
    sensitivity   the same prompt with one code changed. A server that read the changed place gives other log
    probabilities for the
                  first token; one that threw the place away gives the very same. This needs no ability from the model.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

from longproof.asking.prompts import Insert

PLACES = ("head", "middle", "tail")
QUESTION = "What are the HEAD, MIDDLE and TAIL codes? Answer with the three numbers only."
_DEPTH = {"head": 0.0, "middle": 0.5, "tail": 1.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Codes:
    """Three four-digit codes, as text."""

    head: str
    middle: str
    tail: str

    def inserts(self) -> tuple[Insert, ...]:
        """The coded sentences at their depths."""
        return tuple(
            Insert(depth=_DEPTH[place], text=f"The {place.upper()} code is {getattr(self, place)}.") for place in PLACES
        )

    def changed(self, place: str) -> Codes:
        """The same codes with one replaced by another of the same shape (every digit moved by five: 4821 → 9376)."""
        other = "".join(str((int(digit) + 5) % 10) for digit in getattr(self, place))
        return replace(self, **{place: other})


def codes_for(seed: int, length_tokens: int) -> Codes:
    """Three distinct codes from the seed: no zero at the front, no code inside another."""
    found: list[str] = []
    for index in range(64):
        digest = hashlib.sha256(f"canary/{seed}/{length_tokens}/{index}".encode()).digest()
        code = str(1000 + int.from_bytes(digest[:4], "big") % 9000)
        if code not in found:
            found.append(code)
        if len(found) == len(PLACES):
            break
    head, middle, tail = found
    return Codes(head=head, middle=middle, tail=tail)
