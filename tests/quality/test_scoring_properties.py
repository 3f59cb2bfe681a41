"""Laws of the scorer under replies that nobody would think of, for items of every family."""

from __future__ import annotations

from functools import cache

from hypothesis import example, given, settings
from hypothesis import strategies as st
from small_corpora import corpus_for

from longproof.quality.item import Item, evidence_text
from longproof.quality.naming import values_in
from longproof.quality.scoring import MOST_CHARACTERS, score
from longproof.quality.tasks import FAMILIES

unhurried = settings(deadline=None)
"""The first example of a family reads its corpus."""


@cache
def _items(name: str) -> tuple[Item, ...]:
    family = FAMILIES[name]
    return family.items(seed=3, n=12, corpus=corpus_for(family))


@st.composite
def items(draw: st.DrawFn, *, several: bool | None = None) -> Item:
    """An item of any family; `several`: with (or without) more than one answer."""
    found = draw(st.sampled_from(_items(draw(st.sampled_from(list(FAMILIES))))))
    if several is not None and (len(found.answers) > 1) is not several:
        return _items("multi-value")[found.index] if several else _items("multi-key-8")[found.index]
    return found


DRESSES = st.sampled_from(
    [
        "{}",
        "{}.",
        "**{}**",
        "`{}`",
        '"{}"',
        "({})",
        " {} ",
        "It is {}.",
        "- {}",
        "Answer: {}",
        "\n\n{}",
        "{}!\n",
        "“{}”",
    ]
)
"""What may stand around a value without changing what is named."""
TALK = st.text(st.characters(exclude_categories=["N", "Cs"]), max_size=200).map(lambda text: " ".join(text.split()))
"""Any words without digits."""
CASES = st.sampled_from([str, str.upper, str.lower, str.title])
JOINS = st.sampled_from([", ", " and ", "; ", " / ", " or ", " | ", ", then "])


def answered(item: Item, join: str = ", ") -> str:
    return join.join(item.answers)


@unhurried
@given(items(), DRESSES, CASES)
def test_the_answer_is_right_when_only_its_dress_and_case_change(item: Item, dress: str, case: type[str]) -> None:
    text = answered(item)
    assert score(item, dress.format(text if item.kind == "code" else case(text))).right


@unhurried
@given(items(), JOINS, st.integers(2, 6))
def test_the_answer_is_right_when_it_is_repeated(item: Item, join: str, times: int) -> None:
    assert score(item, join.join([answered(item, join)] * times)).right


@unhurried
@given(items(), st.randoms(use_true_random=False))
def test_the_order_makes_no_difference_when_several_are_asked(item: Item, chance) -> None:
    shuffled = chance.sample(item.answers, len(item.answers))
    assert score(item, ", ".join(shuffled)).right


@unhurried
@given(items(), JOINS, st.booleans(), st.data())
def test_a_reply_is_wrong_when_another_candidate_stands_beside_the_answer(
    item: Item, join: str, before: bool, data: st.DataObject
) -> None:
    others = [value for value in item.candidates if value not in item.answers]
    if not others:
        return
    other = data.draw(st.sampled_from(others))
    pair = [other, answered(item)] if before else [answered(item), other]
    scored = score(item, join.join(pair))
    assert not scored.right
    assert other in scored.named


@unhurried
@given(items(several=True), st.data())
def test_a_reply_is_wrong_when_one_of_several_is_missing(item: Item, data: st.DataObject) -> None:
    missing = data.draw(st.sampled_from(item.answers))
    scored = score(item, ", ".join(value for value in item.answers if value != missing))
    assert scored.why == "some missing"


@unhurried
@given(items(), st.data())
def test_a_reply_is_wrong_when_the_answer_is_corrected_from_another(item: Item, data: st.DataObject) -> None:
    others = [value for value in item.candidates if value not in item.answers]
    wrong = data.draw(st.sampled_from(others)) if others else "123456"
    assert not score(item, f"{wrong}. No, it is {answered(item)}.").right
    assert not score(item, f"{answered(item)}. No, it is {wrong}.").right


@unhurried
@given(items(), st.text("0123456789abcXYZ_", min_size=1, max_size=3), st.booleans())
def test_a_reply_names_nothing_right_when_the_answer_is_part_of_a_longer_token(
    item: Item, more: str, before: bool
) -> None:
    if item.kind == "prose":
        more = more.replace("_", "")  # there it is a mark, not a letter: _Linz_ is Linz
    if not more:
        return
    longer = [f"{more}{value}" if before else f"{value}{more}" for value in item.answers]
    assert not any(value in item.answers for value in score(item, ", ".join(longer)).named)


@unhurried
@given(items(), TALK)
def test_a_reply_is_wrong_when_it_only_talks(item: Item, talk: str) -> None:
    if values_in(talk, item.candidates, item.kind) != ((), ()):
        return  # hypothesis said "no"
    scored = score(item, talk)
    assert (scored.right, scored.named) == (False, ())


@unhurried
@given(items(), TALK, st.integers(1, 400))
@example(_items("literal")[0], "word", 400)
def test_only_the_first_line_counts_when_more_follows(item: Item, talk: str, times: int) -> None:
    more = "\n\n".join([f"{talk} {value}" for value in item.candidates] * times)
    assert score(item, f"{answered(item)}\n\n{more}").right
    if not talk.rstrip(" *_").endswith(":") and values_in(talk, item.candidates, item.kind) == ((), ()):
        first = f"Let me see {talk}."
        assert score(item, f"{first}\n\n{answered(item)}").why == "nothing named"


@unhurried
@given(items())
def test_the_question_is_no_answer_when_echoed(item: Item) -> None:
    if item.family == "absent-free":  # its question says what to answer where the text does not
        return
    assert not score(item, item.question).right
    if item.family != "absent":  # its question says "yes or no"
        assert score(item, f"{item.question} {answered(item)}").right == (len(item.question) < MOST_CHARACTERS)


@unhurried
@given(items())
def test_a_quoted_needle_counts_for_what_it_names(item: Item) -> None:
    """The line with the answer is an answer, unless it names something else too; a line of another key is wrong."""
    for needle in item.needles:
        scored = score(item, needle.text.replace("\n", " "))
        named, others = values_in(needle.text, item.candidates, item.kind)
        short = len(needle.text) <= MOST_CHARACTERS
        assert scored.right == (short and set(named) == set(item.answers) and not others)


@unhurried
@given(items(), st.text(max_size=300), st.text(max_size=300))
def test_nothing_breaks_and_nothing_is_invented_when_the_reply_is_anything(item: Item, one: str, two: str) -> None:
    for text in (one, two + answered(item) + one, f"{one}<think>{two}</think>{one}", evidence_text(item) + one):
        scored = score(item, text)
        assert set(scored.named) <= set(item.candidates)
        assert len(set(scored.named)) == len(scored.named)
        assert scored.right == (scored.why == "exact")
        assert len(scored.considered) <= MOST_CHARACTERS
        if scored.right:
            assert set(scored.named) == set(item.answers)


@unhurried
@given(items(), st.text(max_size=100))
def test_thinking_changes_nothing_when_it_ends(item: Item, thought: str) -> None:
    if "think" in thought.lower():
        return
    every = ", ".join(item.candidates)
    assert score(item, f"<think>{thought} {every}</think>\n\n{answered(item)}").right
    assert not score(item, f"<think>{thought} {every} {answered(item)}").right
