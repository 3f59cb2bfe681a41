"""A model of known ability: what it says is right as often as its curve says, and for the reasons it gives."""

from __future__ import annotations

import pytest

from longproof.quality.item import Item
from longproof.quality.scoring import score
from longproof.stats.proportion import clopper_pearson
from longproof.testing.answers import Asked
from longproof.testing.fake_tokenizer import render_chat
from longproof.testing.solver import DOES_NOT_KNOW, Ability, Solver, items_of

FAMILIES = ("literal", "multi-key-8", "absent", "count", "code-definition")
ITEMS = items_of(FAMILIES, seed=3, longest_tokens=2_000, n=40)
MANY = items_of(("literal",), seed=3, longest_tokens=2_000, n=400)


def asked(item: Item, *, tokens: int = 1_000, cached: int = 0, needles: bool = True, before: int = 0) -> Asked:
    """The item in a chat; `before`: characters of filler before its needles, of 1,000 in all."""
    shown = [needle.text for needle in item.needles] if needles else []
    text = "\n\n".join(["x" * before, *shown, "y" * (1_000 - before), item.question])
    return Asked(text=render_chat([("user", text)]), tokens=tokens, cached_tokens=cached)


def right(ability: Ability, items: tuple[Item, ...], **how: int) -> int:
    solver = Solver(items, ability)
    return sum(score(item, solver(asked(item, **how)) or "").right for item in items)


@pytest.mark.parametrize("item", ITEMS, ids=lambda item: f"{item.family}-{item.index}")
def test_a_perfect_solver_is_right_when_all_needles_are_there(item: Item) -> None:
    assert score(item, Solver(ITEMS)(asked(item)) or "").right


def test_nothing_is_known_when_the_text_is_missing() -> None:
    literal = next(item for item in ITEMS if item.family == "literal")
    assert Solver(ITEMS)(asked(literal, needles=False)) == DOES_NOT_KNOW


def test_nothing_special_is_said_when_no_item_is_asked() -> None:
    other = Asked(text=render_chat([("user", "Hello")]), tokens=30, cached_tokens=0)
    assert Solver(ITEMS)(other) is None


def test_the_share_follows_the_curve_when_the_length_grows() -> None:
    """At `half_tokens` 0.5; one octave beyond, with half an octave per unit of log odds, logistic(-2) = 0.119."""
    ability = Ability(half_tokens=1_000, width=0.5)
    assert ability.accuracy(1_000) == pytest.approx(0.5)
    assert ability.accuracy(2_000) == pytest.approx(0.1192, abs=1e-4)
    for tokens in (1_000, 2_000):
        band = clopper_pearson(right(ability, MANY, tokens=tokens), len(MANY), confidence=0.999)
        assert band.low <= ability.accuracy(tokens) <= band.high


def test_chance_and_lapse_bound_the_curve_when_they_are_given() -> None:
    ability = Ability(half_tokens=1_000, lapse=0.1, chance=0.2)
    assert ability.accuracy(10) == pytest.approx(0.9)
    assert ability.accuracy(10_000_000) == pytest.approx(0.2)


def test_only_the_end_is_read_when_the_ability_says_so() -> None:
    """Evidence after 900 of 1,000 characters of filler is near the end of 1,000 tokens, after 0 it is not."""
    ability = Ability(reads_last_tokens=400)
    assert right(ability, MANY, before=900) == len(MANY)
    assert right(ability, MANY, before=0) == 0


def test_answers_turn_wrong_when_the_prompt_is_warm_and_the_cache_is_damaged() -> None:
    ability = Ability(warm_loss=1.0)
    assert right(ability, MANY) == len(MANY)
    assert right(ability, MANY, cached=20) == len(MANY)  # the template alone
    assert right(ability, MANY, cached=999) == 0


def test_the_same_is_said_when_the_same_is_asked_again() -> None:
    ability = Ability(half_tokens=1_000)
    said = [[Solver(MANY, ability)(asked(item)) for item in MANY] for _ in range(2)]
    assert said[0] == said[1]
