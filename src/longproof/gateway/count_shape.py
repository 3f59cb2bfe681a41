"""What a prompt is made of, as far as counting it is concerned, and how far our own count of that kind is trusted."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import cast

from longproof.domain.request import Route
from longproof.gateway.ask import Json
from longproof.gateway.ports import Counted
from longproof.gateway.prompt_text import TextSize


class Shape(StrEnum):
    """Kinds of prompts that a template or tokenizer may get wrong one by one."""

    TEXT = "text"
    CHAT = "chat"
    PARTS = "parts"
    """A chat whose contents are lists of text parts."""
    TOOLS = "tools"
    """A chat with tools, or with calls of tools in its messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedHere(Counted):
    """A count by our own tokenizer: the engine's usage can confirm it or show it wrong."""

    shape: Shape


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimated(Counted):
    """A length that was estimated from a text's size: the engine's usage corrects what the next ones rest on."""

    size: TextSize


def shape_of(route: Route, fields: Json) -> Shape:
    """The kind of a body's prompt."""
    if route is not Route.CHAT:
        return Shape.TEXT
    if fields.get("tools") or fields.get("functions"):
        return Shape.TOOLS
    messages = cast("list[Json]", fields.get("messages") or [])
    if any(message.get("tool_calls") or message.get("role") in ("tool", "function") for message in messages):
        return Shape.TOOLS
    return Shape.PARTS if any(isinstance(message.get("content"), list) for message in messages) else Shape.CHAT


@dataclass(slots=True, kw_only=True)
class Trust:
    """Whether our count of one shape is used. One disagreement ends it; `regain_after` agreements in a row, from counts
    that are made for comparison only, bring it back. The reason of the last disagreement is kept."""

    regain_after: int = 8
    trusted: bool = False
    agreed: int = 0
    disagreed: int = 0
    reason: str = "not compared with the engine yet"
    _in_a_row: int = field(default=0, repr=False)

    def compare(self, ours: int, theirs: int) -> bool:
        """One comparison; True when it is the alarm: trust that was there is gone."""
        if ours == theirs:
            self.agreed += 1
            self._in_a_row += 1
            if not self.trusted and self._in_a_row >= (1 if self.disagreed == 0 else self.regain_after):
                self.trusted, self.reason = True, ""
            return False
        self.disagreed += 1
        self._in_a_row = 0
        lost, self.trusted = self.trusted, False
        self.reason = f"we counted {ours:,} tokens, the engine {theirs:,}"
        return lost

    def distrust(self, reason: str) -> None:
        """It could not be compared."""
        self.trusted, self.reason = False, reason
