"""Names and sizes of texts, and lengths that are estimated from them."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longproof.domain.request import Route
from longproof.gateway.prompt_text import TextSize, text_names, text_size
from longproof.gateway.token_rate import TokenRate

BLOCK = 64


def chat(*texts: str, **more: Any) -> dict[str, Any]:
    roles = ("user", "assistant")
    return {"messages": [{"role": roles[i % 2], "content": t} for i, t in enumerate(texts)], **more}


def names(fields: dict[str, Any], *, salt: str = "", block_bytes: int = BLOCK) -> tuple[int, ...]:
    route = Route.CHAT if "messages" in fields else Route.COMPLETIONS
    return text_names(route, fields, block_bytes=block_bytes, salt=salt)


def test_names_agree_as_far_as_texts_do() -> None:
    first, other = names({"prompt": "a" * 640 + "b" * 640}), names({"prompt": "a" * 640 + "c" * 640})
    assert len(first) == 20
    assert first[:10] == other[:10]
    assert not set(first[10:]) & set(other[10:])


def test_a_next_turn_repeats_the_names_when_it_repeats_the_words() -> None:
    before, after = names(chat("a" * 500)), names(chat("a" * 500, "yes", "and then? " * 30))
    assert before == after[: len(before)]
    assert len(after) > len(before) == 506 // BLOCK


@given(st.text(max_size=300), st.text(max_size=300))
def test_what_was_said_by_whom_matters_when_the_letters_are_the_same(one: str, two: str) -> None:
    text = "x" * BLOCK
    whole, split = names(chat(one + two + text)), names(chat(one, two + text))
    before = (len(b"?user?") + len(one.encode("utf-8", "surrogatepass"))) // BLOCK
    assert whole[:before] == split[:before]
    assert set(whole[before:]).isdisjoint(split[before:])


def test_names_never_meet_when_salts_block_sizes_or_tools_differ() -> None:
    fields = chat("a" * 2_000)
    found = [
        names(fields),
        names(fields, salt="one"),
        names(fields, salt="two"),
        names(fields, block_bytes=68),
        names({**fields, "tools": [{"type": "function", "function": {"name": "f"}}]}),
    ]
    every = [name for one in found for name in one]
    assert len(every) == len(set(every))


def test_several_prompts_have_no_prefix_and_no_size() -> None:
    fields = {"prompt": ["one" * 100, "two" * 100]}
    assert names(fields) == ()
    assert text_size(Route.COMPLETIONS, fields) is None


def test_names_are_one_chain_when_they_are_made_in_parts() -> None:
    text = "the lake is deep " * 20_000
    assert len(text) > 2 * 2_048 * BLOCK  # more than two parts
    found = names({"prompt": text})
    assert found[:100] == names({"prompt": text[: 100 * BLOCK]})
    assert len(set(found)) == len(found) == len(text) // BLOCK


@pytest.mark.parametrize(
    ("text", "size", "wide"),
    [("lake" * 9, 36, 0.0), ("Größe", 7, 2 / 5), ("東京" * 30_000, 180_000, 2.0), ("", 0, 0.0)],
)
def test_sizes_are_bytes_of_utf8_whatever_the_script(text: str, size: int, wide: float) -> None:
    found = text_size(Route.COMPLETIONS, {"prompt": text})
    assert found == TextSize(size_bytes=size, messages=0, wide=pytest.approx(wide))


def test_no_size_is_told_when_something_is_no_text() -> None:
    picture = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}
    assert text_size(Route.CHAT, {"messages": [picture]}) is None
    parts = {"role": "user", "content": [{"type": "text", "text": "four"}, "five."]}
    found = text_size(Route.CHAT, {"messages": [parts, {"role": "assistant", "content": None}]})
    assert found == TextSize(size_bytes=9, messages=2, wide=0.0)


def plain(size: int, wide: float = 0.0) -> TextSize:
    return TextSize(size_bytes=size, messages=0, wide=wide)


def test_nothing_is_estimated_before_a_kind_of_text_was_seen() -> None:
    rate = TokenRate()
    for _ in range(2):
        rate.learn(plain(4_000), 1_000)
    assert rate.estimate(plain(4_000)) is None
    assert rate.bytes_per_token is None
    rate.learn(plain(4_000), 1_000)
    assert rate.estimate(plain(4_000)) is not None
    assert rate.bytes_per_token == pytest.approx(4.0, rel=0.02)
    assert rate.estimate(plain(4_000, wide=2.0)) is None  # of Chinese nothing is known yet


def test_an_estimate_is_rarely_too_low_when_texts_vary() -> None:
    rate, chance, low = TokenRate(), random.Random(7), 0
    for _ in range(300):
        tokens = int(100_000 / chance.uniform(3.0, 6.0))
        estimate = rate.estimate(plain(100_000))
        low += estimate is not None and estimate < tokens
        rate.learn(plain(100_000), tokens)
    assert low <= 6  # one in fifty


def test_the_margin_shrinks_when_texts_are_alike_and_grows_when_they_are_not() -> None:
    alike, mixed = TokenRate(), TokenRate()
    for number in range(64):
        alike.learn(plain(40_000), 10_000)
        mixed.learn(plain(40_000), 8_000 if number % 2 else 16_000)
    close, wide = alike.estimate(plain(40_000)), mixed.estimate(plain(40_000))
    assert close is not None
    assert wide is not None
    assert 10_000 <= close < 10_000 * 1.04
    assert wide > 16_000  # the longest of both kinds


def test_a_short_prompt_teaches_nothing_when_its_template_is_most_of_it() -> None:
    rate = TokenRate()
    for _ in range(9):
        rate.learn(TextSize(size_bytes=20, messages=1, wide=0.0), 60)
    assert rate.estimate(plain(4_000)) is None
