"""What has to hold of a prompt before it is sent, and of the answer's ``usage`` after."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from longproof.domain.request import TokenCount


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthCheck:
    """Whether the server read as many tokens as were counted for it; `why` when not."""

    proven: bool
    why: str = ""


def length_check(count: TokenCount, usage_prompt_tokens: int | None) -> LengthCheck:
    """Holds a count against ``usage.prompt_tokens``. Only equality proves a length: a server that read less has cut
    the prompt, one that read more has added to it."""
    if usage_prompt_tokens is None:
        return LengthCheck(proven=False, why="the server reports no usage.prompt_tokens")
    if usage_prompt_tokens != count.total:
        why = f"{count.total:,} tokens were counted ({count.how}), and usage says {usage_prompt_tokens:,}"
        return LengthCheck(proven=False, why=why)
    return LengthCheck(proven=True)


def first_missing(text: str, parts: Sequence[str]) -> int | None:
    """Index of the first part that does not stand in the text, after the one before it; None when all do."""
    begin = 0
    for index, part in enumerate(parts):
        found = text.find(part, begin)
        if found < 0:
            return index
        begin = found + len(part)
    return None


def without_spaces(text: str) -> str:
    """A text without white space, to compare across tokenizers that tidy it up."""
    return "".join(text.split())
