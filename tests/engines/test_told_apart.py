"""Template and content told apart: the same answer as counting everything, with the long text counted once."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from longproof.engines.told_apart import told_apart
from longproof.testing.fake_tokenizer import render_chat, tokenizer

LONG = "The river carries stones and sand to the sea.\n\n" * 500


@pytest.mark.parametrize("texts", [["Hello"], [LONG], ["short", LONG], [LONG, LONG[::-1]], ["", ""]])
async def test_parts_are_those_of_a_full_count_when_contents_are_long(texts: list[str]) -> None:
    counted: list[str] = []

    async def whole(contents: Sequence[str]) -> int:
        roles = ("system", "user")[-len(contents) :]
        return len(tokenizer().encode(render_chat(list(zip(roles, contents, strict=True)), add_generation_prompt=True)))

    async def alone(text: str) -> int:
        counted.append(text)
        return len(tokenizer().encode(text))

    total, content = await told_apart(texts, whole=whole, alone=alone)
    assert total == await whole(texts)
    assert content == sum(len(tokenizer().encode(text)) for text in texts)
    assert max(len(text) for text in counted) < 3_000


async def test_a_merge_at_the_border_is_booked_in_the_template_when_there_is_one() -> None:
    """Tokens are words; the template glues its marks to the first and the last of them: 2 + 10,000 - 2 in all, so it
    takes none by itself and gives none."""
    text = "a " * 9_999 + "a"

    async def whole(contents: Sequence[str]) -> int:
        return len(f"<{contents[0]}>".split())

    async def alone(content: str) -> int:
        return len(content.split())

    assert await told_apart([text], whole=whole, alone=alone) == (10_000, 10_000)
