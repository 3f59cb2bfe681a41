"""Telling a template's tokens from the content's without tokenizing a long content twice."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

_LONG_CHARS = 8_192
_END_CHARS = 1_024


async def told_apart(
    texts: Sequence[str], *, whole: Callable[[Sequence[str]], Awaitable[int]], alone: Callable[[str], Awaitable[int]]
) -> tuple[int, int]:
    """(tokens of the whole prompt, content tokens of them). The template is what is left when the contents are
    counted alone.

    `whole` counts the prompt with these texts in place of its contents, `alone` a text by itself. A template touches a
    content only at its two ends, so long contents are replaced by their ends to find its share: a million tokens are
    tokenized once.
    """
    total = await whole(texts)
    short = [_ends(text) for text in texts]
    shared = total if short == list(texts) else await whole(short)
    template = shared - sum([await alone(text) for text in short])
    return total, total - template


def _ends(text: str) -> str:
    return text if len(text) <= _LONG_CHARS else text[:_END_CHARS] + text[-_END_CHARS:]
