"""Haystacks as numbers and as text. No server: what each unit costs is made up here, so that sums can be checked."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longproof.errors import CorpusError
from longproof.quality.corpora.corpus import Document, TextCorpus
from longproof.quality.haystack import Haystack, TokenizedCorpus, choose_haystack, haystack_text
from longproof.quality.item import Kind, Needle
from longproof.quality.trim import Pool
from longproof.quality.unit_tokens import UnitTokens

UNITS = 900
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def word(number: int) -> str:
    """A word of letters alone, another one for every number."""
    return "".join(LETTERS[number // 26**power % 26] for power in range(4))


def corpus_of(costs: list[int], *, kind: Kind = "prose") -> TokenizedCorpus:
    lines = [f"Line {word(number)} of {word(number * 7919 % 456_976)}." for number in range(len(costs))]
    texts = TextCorpus(
        name="lines", kind=kind, licence="ours", documents=[Document(name="a.txt", text="\n\n".join(lines))]
    )
    assert len(texts.units()) == len(costs)
    counted = np.ones(len(costs), dtype=np.bool_)
    return TokenizedCorpus(texts, UnitTokens(tokens=np.asarray(costs, dtype=np.int64), counted=counted, how="made up"))


def costs_of(seed: int, *, units: int = UNITS, most: int = 40) -> list[int]:
    chance = Random(seed)
    return [chance.randint(3, most) for _ in range(units)]


CORPUS = corpus_of(costs_of(0))


def needles_of(depths: list[float]) -> tuple[Needle, ...]:
    return tuple(Needle(text=f"Needle {index} stands here.", depth=depth) for index, depth in enumerate(sorted(depths)))


def chosen(tokens: int, needles: tuple[Needle, ...] = (), **wishes: object) -> Haystack:
    haystack = choose_haystack(CORPUS, needles, tokens=tokens, **{"seed": "s", **wishes})  # type: ignore[arg-type]
    assert haystack is not None
    return haystack


@settings(max_examples=120, deadline=None)
@given(
    tokens=st.integers(200, CORPUS.longest_haystack_tokens),
    depths=st.lists(st.floats(0, 1), max_size=12),
    seed=st.text(max_size=4),
    avoid=st.frozensets(st.integers(0, UNITS - 1), max_size=30),
)
def test_the_laws_of_a_haystack_hold_when_anything_is_asked(
    tokens: int, depths: list[float], seed: str, avoid: frozenset[int]
) -> None:
    needles = needles_of(depths)
    haystack = chosen(tokens, needles, seed=seed, avoid=avoid)
    again = chosen(tokens, needles, seed=seed, avoid=avoid)
    assert haystack.units.tolist() == again.units.tolist()
    assert haystack.borders == again.borders
    # the cost is the one asked for, no unit is used twice, none that is to be avoided
    assert int(CORPUS.tokens[haystack.units].sum()) == tokens == haystack.tokens
    assert len(set(haystack.units.tolist())) == len(haystack.units)
    assert not avoid & set(haystack.units.tolist())
    # the stretch is in a row, but for what is avoided, and for what is large in a short one
    stretch = haystack.units[: len(haystack.units) - haystack.trimmed].tolist()
    if stretch:
        between = set(range(stretch[0], stretch[-1] + 1))
        assert all(CORPUS.tokens[number] > (tokens - 3) // 8 for number in between - set(stretch) - avoid)
    # needles in order, each at the border nearest to its depth
    assert list(haystack.borders) == sorted(haystack.borders)
    sums = [0, *np.cumsum(CORPUS.tokens[haystack.units]).tolist()]
    for needle, border, depth in zip(needles, haystack.borders, haystack.depths, strict=True):
        off = abs(sums[border] - needle.depth * tokens)
        assert off == min(abs(total - needle.depth * tokens) for total in sums)
        assert depth == pytest.approx(sums[border] / tokens)
    # the text: every unit whole, every needle verbatim, nothing else
    text = haystack_text(CORPUS, haystack, needles)
    lines = text.split("\n")
    assert sorted(lines) == sorted(
        [*(CORPUS.unit(number) for number in haystack.units), *(needle.text for needle in needles)]
    )
    for index, needle in enumerate(needles):
        assert lines.index(needle.text) == haystack.borders[index] + index


def test_a_longer_haystack_holds_the_shorter_one_when_the_seed_is_the_same() -> None:
    before: set[int] = set()
    for tokens in (500, 1000, 2000, 4000, 8000, 16000):
        haystack = chosen(tokens)
        stretch = set(haystack.units[: len(haystack.units) - haystack.trimmed].tolist())
        # at most one unit is lost at either end, where the window's bounds fall within a unit
        assert len(before - stretch) <= 2
        before = stretch


def test_other_seeds_read_elsewhere_when_there_is_room() -> None:
    firsts = {int(chosen(2000, seed=str(number)).units[0]) for number in range(20)}
    assert len(firsts) > 15


def test_the_stretch_is_the_same_when_questions_share_it() -> None:
    needles = needles_of([0.1, 0.5, 0.99])
    haystacks = [chosen(3000 - less, needles, stretch_tokens=2900, shared=True) for less in range(100)]
    # the stretch is short of 2,900 by 3 to 42 tokens, so with 2,901 to 3,000 a trim of up to 142 tokens follows
    texts = [haystack_text(CORPUS, haystack, needles) for haystack in haystacks]
    common = next(i for i, letters in enumerate(zip(*texts, strict=False)) if len(set(letters)) > 1)
    assert common > 0.9 * len(texts[0])
    assert all(text[:common].count("stands here") == 3 for text in texts)


def test_a_corpus_is_refused_with_the_numbers_when_it_is_too_short() -> None:
    small = corpus_of([20] * 100)  # 2,000 tokens; one part in sixteen, 125, stays
    with pytest.raises(CorpusError, match=r"1,876 tokens: it has 2,000, of which 1,875 can be used"):
        choose_haystack(small, (), tokens=1876, seed="s")
    assert choose_haystack(small, (), tokens=1860, seed="s") is not None  # 93 units of 20
    with pytest.raises(CorpusError, match="nothing is repeated"):
        small.check_holds(10_000)


def test_nothing_is_chosen_when_whole_units_do_not_make_it_up() -> None:
    even = corpus_of([20] * 100)
    assert choose_haystack(even, (), tokens=410, seed="s") is None
    assert choose_haystack(even, (), tokens=7, seed="s") is None
    nothing = choose_haystack(even, needles_of([0.5]), tokens=0, seed="s")
    assert nothing is not None
    assert haystack_text(even, nothing, needles_of([0.5])) == "Needle 0 stands here."


def test_large_blocks_are_passed_over_when_the_prompt_is_short() -> None:
    """Every third unit costs 500; an eighth of 800 tokens is 100."""
    costs = [500 if number % 3 == 0 else 10 + number % 7 for number in range(900)]
    corpus = corpus_of(costs)
    haystack = choose_haystack(corpus, needles_of([0.5]), tokens=800, seed="s")
    assert haystack is not None
    assert max(corpus.tokens[haystack.units]) <= 100
    assert haystack.depths[0] == pytest.approx(0.5, abs=16 / 800)
    longer = choose_haystack(corpus, (), tokens=20_000, seed="s")
    assert longer is not None
    assert max(corpus.tokens[longer.units]) == 500


def test_code_stands_a_blank_line_apart_when_the_corpus_is_code() -> None:
    source = "\n\n".join(f"def {word(number)}():\n    return '{word(number)}'" for number in range(200))
    texts = TextCorpus(name="code", kind="code", licence="ours", documents=[Document(name="m.py", text=source)])
    tokens = np.full(200, 12, dtype=np.int64)
    corpus = TokenizedCorpus(texts, UnitTokens(tokens=tokens, counted=tokens > 0, how="made up"))
    needle = Needle(text="def hidden():\n\n    return 7", depth=0.5)
    haystack = choose_haystack(corpus, (needle,), tokens=480, seed="s")
    assert haystack is not None
    blocks = haystack_text(corpus, haystack, (needle,)).split("\n\ndef ")
    assert len(blocks) == 41
    assert blocks[20] == "hidden():\n\n    return 7"


# -- what is left out -------------------------------------------------------------------------------------------------


def test_lines_are_avoided_when_they_hold_a_value_or_stand_in_a_needle() -> None:
    needle = Needle(text=f"Document A begins here.\n{CORPUS.unit(17).upper()}\nDocument A ends here.", depth=0.5)
    value = word(300)
    holds = {number for number in range(UNITS) if value in CORPUS.unit(number).lower().replace(".", "").split()}
    assert holds
    assert CORPUS.units_to_avoid((needle,), [value.upper()]) == holds | {17}
    assert CORPUS.units_to_avoid((), ["nowhere to be found"]) == frozenset()


def test_lines_stay_when_a_value_is_common_language() -> None:
    """Every line has "of"; 1 % of 900 lines are 9."""
    assert CORPUS.units_to_avoid((), ["of", "Line"]) == frozenset()


# -- trim -------------------------------------------------------------------------------------------------------------


@settings(max_examples=100)
@given(
    costs=st.lists(st.integers(1, 60), min_size=1, max_size=60),
    tokens=st.integers(0, 200),
    taken=st.sets(st.integers(0, 59)),
    seed=st.integers(),
)
def test_units_add_up_and_differ_when_a_pool_finds_any(
    costs: list[int], tokens: int, taken: set[int], seed: int
) -> None:
    mask = np.asarray([number in taken for number in range(len(costs))], dtype=np.bool_)
    pool = Pool(np.asarray(costs, dtype=np.int64), np.ones(len(costs), dtype=np.bool_))
    found = pool.exactly(tokens, taken=mask, chance=Random(seed))
    free = [cost for number, cost in enumerate(costs) if number not in taken]
    pairs = {0, *free, *(a + b for i, a in enumerate(free) for b in free[:i])}
    if found is None:
        assert tokens not in pairs
    else:
        assert sum(costs[number] for number in found) == tokens
        assert len(set(found)) == len(found)
        assert not set(found) & taken


def test_a_pool_is_empty_when_no_unit_was_counted() -> None:
    pool = Pool(np.asarray([5, 6], dtype=np.int64), np.zeros(2, dtype=np.bool_))
    assert pool.cheapest is None
    assert pool.exactly(5, taken=np.zeros(2, dtype=np.bool_), chance=Random(0)) is None
