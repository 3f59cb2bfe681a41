"""What every family keeps, whatever it asks. A new family is held to this by its line in `FAMILIES`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from random import Random
from types import SimpleNamespace

import pytest
from scipy.stats import binom
from small_corpora import code_corpus, corpus_for, prose_corpus

from longproof.errors import CorpusError
from longproof.quality.item import FEWEST_ANSWER_TOKENS, Item, closed_book, closed_book_chance, evidence_text
from longproof.quality.naming import values_in
from longproof.quality.scoring import score
from longproof.quality.tasks import FAMILIES
from longproof.quality.tasks.code_definition import MEMORY

N = 96
"""A multiple of 2, 3, 4, 6 and 8: every level of every family equally often."""
SEED = 7
every_family = pytest.mark.parametrize("name", FAMILIES)
NOT_FREE = {"absent", "absent-free", "count"}
"""Their answers (yes, no, not stated, small numbers) are ordinary words."""
TWINS = {"absent", "absent-free"}


@cache
def items_of(name: str, seed: int = SEED, n: int = N, target_tokens: int | None = None) -> tuple[Item, ...]:
    family = FAMILIES[name]
    return family.items(seed=seed, n=n, corpus=corpus_for(family), target_tokens=target_tokens)


def text_of(item: Item, units: int = 60) -> str:
    """The evidence among filler, one line after the other."""
    filler = corpus_for(FAMILIES[item.family]).units()[:units]
    lines = [(place / max(len(filler), 1), 1, unit) for place, unit in enumerate(filler)]
    lines += [(needle.depth, 0, needle.text) for needle in item.needles]
    return "\n".join(text for _, _, text in sorted(lines, key=lambda line: line[:2]))


def rights(items: Sequence[Item], reply: Callable[[Item], str]) -> int:
    return sum(score(item, reply(item)).right for item in items)


def most_by_chance(items: Sequence[Item]) -> int:
    """What a guesser of the stated chance stays at or below in all but one of 100,000 runs."""
    chance = sum(item.chance for item in items) / len(items)
    return int(binom.ppf(1 - 1e-5, len(items), chance))


# -- who answers rightly, and who must not -----------------------------------------------------------------------------


@every_family
@pytest.mark.parametrize(
    "say",
    [
        ", ".join,
        lambda answers: f"It is {' and '.join(answers)}.",
        lambda answers: f"\n**{', '.join(reversed(answers))}**\n\nAnything else?",
        lambda answers: f"<think>Is it 999999, yes or no?</think>\n{', '.join(answers)}",
    ],
    ids=["bare", "sentence", "markdown", "thinking"],
)
def test_all_items_are_right_when_the_reader_is_perfect(name: str, say: Callable[[Sequence[str]], str]) -> None:
    items = items_of(name)
    assert rights(items, lambda item: say(item.answers)) == len(items)


@every_family
def test_no_more_than_chance_is_right_when_the_context_is_dumped(name: str) -> None:
    items = items_of(name)
    on_one_line = rights(items, lambda item: text_of(item).replace("\n", " "))
    line_by_line = rights(items, text_of)
    question_too = rights(items, lambda item: f"{text_of(item)}\n{item.question}".replace("\n", " "))
    after_thinking = rights(items, lambda item: f"<think></think>{text_of(item)}")
    assert max(on_one_line, line_by_line, question_too, after_thinking) <= most_by_chance(items)


@every_family
def test_no_more_than_chance_is_right_when_every_candidate_is_named(name: str) -> None:
    items = [item for item in items_of(name) if len(item.candidates) > 1]
    assert rights(items, lambda item: ", ".join(item.candidates)) == 0


@every_family
@pytest.mark.parametrize("word", ["yes", "no", "Yes.", "No.", "I cannot answer that.", "", "unknown", "0", "711097"])
def test_no_more_than_chance_is_right_when_the_reply_is_always_the_same(name: str, word: str) -> None:
    items = items_of(name)
    right = rights(items, lambda item: word)
    if name == "absent":
        assert right == (len(items) // 2 if word[:3].strip(".").lower() in ("yes", "no") else 0)
    else:
        assert right == 0


@every_family
def test_no_more_than_chance_is_right_when_the_reply_is_a_guess(name: str) -> None:
    chance = Random(f"guess {name}")
    items = items_of(name) if FAMILIES[name].real else items_of(name, n=4 * N)  # reading a corpus takes its time

    def guess(item: Item) -> str:
        if item.chance == 0:
            return str(chance.randrange(100_000, 1_000_000))
        return ", ".join(chance.sample(item.candidates, len(item.answers)))

    right = rights(items, guess)
    print(f"{name}: {right} of {len(items)} guessed, chance {items[0].chance:.3f}")
    assert right <= most_by_chance(items)


@pytest.mark.parametrize("name", [name for name in FAMILIES if name not in {"literal", *NOT_FREE}])
@pytest.mark.parametrize("end", ["first", "last"])
def test_no_more_than_chance_is_right_when_the_place_decides(name: str, end: str) -> None:
    """Naming the first or the last values of the text. Literal shows one value only; the others are no values of the
    text."""
    items = items_of(name)

    def by_place(item: Item) -> str:
        shown, _ = values_in(evidence_text(item), item.candidates, item.kind)
        count = len(item.answers)
        return ", ".join(shown[:count] if end == "first" else shown[-count:])

    assert rights(items, by_place) <= most_by_chance(items)


@every_family
def test_any_level_answers_no_more_than_chance_when_it_is_always_given(name: str) -> None:
    """The commonest answer of the whole set gives no more than its share."""
    items = items_of(name)
    commonest, _ = Counter(item.answers for item in items).most_common(1)[0]
    assert rights(items, lambda item: ", ".join(commonest)) <= max(len(items) * items[0].chance, 1)


# -- what an item is ---------------------------------------------------------------------------------------------------


@every_family
def test_items_say_who_they_are_when_made(name: str) -> None:
    family = FAMILIES[name]
    for index, item in enumerate(items_of(name)):
        assert (item.family, item.index, item.seed) == (name, index, f"{SEED}/{name}/{index}")
        assert item.kind == family.needs
        assert item.answer_tokens >= FEWEST_ANSWER_TOKENS
        assert 0 <= item.chance <= 0.5
        assert item.chance > 0 or item.candidates == item.answers


@every_family
def test_the_family_says_what_a_guess_is_worth_when_asked(name: str) -> None:
    assert max(item.chance for item in items_of(name)) == FAMILIES[name].chance


@pytest.mark.parametrize("name", [name for name, family in FAMILIES.items() if family.needs == "code"])
def test_code_leaves_room_for_filler_when_the_prompt_is_the_shortest(name: str) -> None:
    """2.8 characters a token in the densest code: 2,500 of them take 893 of 1,000 tokens."""
    assert max(len(evidence_text(item)) + len(item.question) for item in items_of(name)) < 2_500


@every_family
def test_needles_stand_verbatim_and_once_when_the_text_is_made(name: str) -> None:
    for item in items_of(name):
        text = text_of(item)
        for needle in item.needles:
            assert needle.text == needle.text.strip()
            assert text.count(needle.text) == 1
        depths = [needle.depth for needle in item.needles]
        assert depths == sorted(depths)
        assert all(0 <= depth < 1 for depth in depths)
        assert item.depth in depths


@every_family
def test_candidates_can_be_told_apart_when_named(name: str) -> None:
    for item in items_of(name):
        assert set(item.answers) <= set(item.candidates)
        assert set(item.decoys) <= set(item.candidates) - set(item.answers)
        for candidate in item.candidates:
            assert values_in(candidate, item.candidates, item.kind) == ((candidate,), ())
            right = score(item, candidate)
            assert right.named == (candidate,)
            if candidate in item.decoys:
                assert right.why == f"decoy: {item.decoys[candidate]}"


@pytest.mark.parametrize("name", [name for name in FAMILIES if name not in NOT_FREE])
def test_values_are_new_to_the_corpus_and_unique_when_drawn(name: str) -> None:
    corpus = corpus_for(FAMILIES[name])
    for item in items_of(name):
        fresh = [candidate for candidate in item.candidates if item.decoys.get(candidate) != MEMORY]
        assert len(set(fresh)) == len(fresh)
        assert [value for value in fresh if corpus.holds(value)] == []
    # towns, names of documents and ends of names come from a list; all other answers are of one item only
    answers = [item.answers for item in items_of(name)]
    assert len(set(answers)) >= (0.5 if name in {"paraphrase", "quote", "code-relation"} else 0.95) * len(answers)


@every_family
def test_the_question_gives_nothing_away_when_read_alone(name: str) -> None:
    for item in items_of(name):
        assert closed_book(item).needles == ()
        if name not in TWINS:  # they say which words are wanted
            assert values_in(item.question, item.candidates, item.kind) == ((), ())
        if name != "absent-free":  # its words are the answer of the other twin, and that alone
            assert not score(item, item.question).right
    assert rights(items_of(name), lambda item: item.question) <= N // 2 * (name == "absent-free")


@every_family
def test_the_chance_without_text_is_stated_when_asked(name: str) -> None:
    # yes or no; one of 2 ... 7; "not stated" where it is not; anything else has to be read
    expected = {"absent": {1 / 2}, "count": {1 / 6}, "absent-free": {0.0, 1 / 2}}.get(name, {0.0})
    assert {closed_book_chance(item) for item in items_of(name)} == expected


@every_family
def test_evidence_and_distractors_are_all_there_when_the_filler_is_not(name: str) -> None:
    for item in items_of(name):
        text = evidence_text(item)
        assert all(needle.text in text for needle in item.needles)
        assert any(needle.evidence for needle in item.needles) or item.answers in (("no",), ("not stated",))
        named, _ = values_in(text, item.answers, item.kind)
        assert name in NOT_FREE or set(named) == set(item.answers)


# -- what a set of items is --------------------------------------------------------------------------------------------


@every_family
def test_items_are_the_same_when_the_text_grows(name: str) -> None:
    short, middle, long = (items_of(name, n=12, target_tokens=tokens) for tokens in (None, 2_048, 16_384))
    if name != "multi-key-dense":
        assert short == middle == long
        return
    for few, more, most in zip(short, middle, long, strict=True):
        assert (few.question, few.answers, few.depth) == (more.question, more.answers, more.depth)
        assert (more.question, more.answers, more.depth) == (most.question, most.answers, most.depth)
        # one key for every 64 tokens: 2,048 / 64 and 16,384 / 64
        assert [len(item.needles) for item in (few, more, most)] == [2, 32, 256]
        assert set(few.needles) < set(more.needles) < set(most.needles)


@every_family
def test_items_are_the_same_when_the_seed_is_and_differ_when_it_does(name: str) -> None:
    family = FAMILIES[name]
    again = family.items(seed=SEED, n=N, corpus=corpus_for(family))
    assert again == items_of(name)
    other = {(item.question, evidence_text(item)) for item in items_of(name, seed=SEED + 1, n=12)}
    assert other.isdisjoint((item.question, evidence_text(item)) for item in again)


@every_family
def test_depths_cover_the_text_when_the_set_is_whole_or_cut_short(name: str) -> None:
    depths = [item.depth for item in items_of(name)]
    strata = len(set(depths))
    assert strata == (N // 2 if name in TWINS else N)
    assert sorted(int(depth * strata) for depth in dict.fromkeys(depths)) == list(range(strata))
    # a run that stops after 16 items: no gap of more than a fifth of the text
    begun = sorted({0.0, *depths[:16], 1.0})
    limit = 0.4 if name in TWINS else 0.2
    assert max(after - before for before, after in pairwise(begun)) <= limit


@every_family
@pytest.mark.parametrize("n", [1, 2, 7])
def test_as_many_items_as_asked_when_the_number_is_small(name: str, n: int) -> None:
    made = items_of(name, n=n)
    assert len(made) == (n + n % 2 if name in TWINS else n)


@every_family
def test_a_corpus_is_refused_when_it_cannot_give_what_is_needed(name: str) -> None:
    family = FAMILIES[name]
    if family.real:
        corpus = code_corpus() if family.needs == "prose" else prose_corpus()
        useless = SimpleNamespace(
            name="useless",
            manifest_sha256="useless",
            documents=lambda: corpus.documents()[:2],
            holds=lambda value: False,
        )
    else:
        useless = SimpleNamespace(name="useless", documents=tuple, holds=lambda value: True)
    with pytest.raises(CorpusError, match="corpus useless"):
        family.items(seed=1, n=4, corpus=useless)


def test_names_on_the_list_are_those_of_the_families_when_read() -> None:
    assert [family.name for family in FAMILIES.values()] == list(FAMILIES)
    assert set(FAMILIES) == {
        "literal", "multi-key-8", "multi-key-dense", "multi-value", "alias-2", "alias-3", "paraphrase", "count",
        "order-4", "order-8", "absent", "absent-free", "state", "copy", "code-definition", "code-relation",
        "call-trace", "quote", "join",
    }  # fmt: skip
