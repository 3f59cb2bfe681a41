"""What decides the words of an engine that is to know some answers: a function from what it read to what it says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the model read: the text, template included, its tokens, and how many of these came from the cache."""

    text: str
    tokens: int
    cached_tokens: int


Answers = Callable[[Asked], str | None]
"""None: nothing special, the fake model talks as ever. Called from the server's thread."""
