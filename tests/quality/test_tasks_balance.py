"""What must not tell the answer away: wording, number of sentences, place, and how often each answer is right."""

from __future__ import annotations

from collections import Counter
from statistics import correlation, mean

import pytest
from scipy.stats import binom
from small_corpora import code_corpus, prose_corpus

from longproof.quality.corpora.corpus import Document, TextCorpus
from longproof.quality.item import evidence_text
from longproof.quality.tasks import FAMILIES
from longproof.quality.tasks.code_definition import MEMORY
from longproof.quality.tasks.count import COUNTS, SENTENCES
from longproof.quality.tasks.drawing import Fresh, balanced, slots
from longproof.quality.tasks.names import NAMES, QUALITIES, SURNAMES, TOWNS
from longproof.quality.tasks.order import ORDINALS
from longproof.quality.tasks.paraphrase import RELATIONS, stems
from longproof.quality.tasks.python_source import salted


def test_no_stem_is_shared_when_any_trade_is_asked_for_beside_any_sentence() -> None:
    deeds = stems(" ".join(deed for deed, _ in RELATIONS))
    asked = stems(" ".join(f"Which town does the {trade} work in?" for _, trade in RELATIONS))
    assert deeds & asked == frozenset()
    assert len(RELATIONS) == len({deed for deed, _ in RELATIONS}) == len({trade for _, trade in RELATIONS}) == 40


def test_no_stem_is_shared_when_real_items_are_read() -> None:
    for item in FAMILIES["paraphrase"].items(seed=2, n=96, corpus=prose_corpus()):
        for needle in item.needles:
            assert stems(needle.text) & stems(item.question) == frozenset()


@pytest.mark.parametrize(
    ("one", "other"), [("baker", "bakes"), ("photographs", "photographer"), ("teaches", "teacher"), ("Taxi", "taxis")]
)
def test_related_words_share_a_stem_when_compared(one: str, other: str) -> None:
    assert stems(one) == stems(other) != frozenset()


def test_words_are_listed_once_when_names_are_drawn() -> None:
    for pool in (NAMES, QUALITIES, SURNAMES, TOWNS):
        assert len(set(pool)) == len(pool)
    # one for every 64 tokens of a window of 1,048,576 needs 16,384
    assert len(NAMES) * len(QUALITIES) > 16_384


def test_counts_are_equally_often_and_look_alike_when_counted() -> None:
    items = FAMILIES["count"].items(seed=5, n=60, corpus=prose_corpus())
    # 60 items over 2 ... 7
    assert Counter(item.answers[0] for item in items) == dict.fromkeys(map(str, COUNTS), 10)
    assert {len(item.needles) for item in items} == {SENTENCES + 1}
    assert {sum(needle.evidence for needle in item.needles) - int(item.answers[0]) for item in items} == {1}


@pytest.mark.parametrize(("name", "requests"), [("order-4", 4), ("order-8", 8)])
def test_rank_and_depth_are_independent_when_the_ith_is_asked(name: str, requests: int) -> None:
    items = FAMILIES[name].items(seed=5, n=480, corpus=prose_corpus())
    ranks = [next(rank for rank, word in enumerate(ORDINALS) if f" {word} " in item.question) for item in items]
    assert Counter(ranks) == dict.fromkeys(range(requests), 480 // requests)
    # of 480 unrelated pairs, r has a standard deviation of 1 / sqrt(480) = 0.046
    assert abs(correlation(ranks, [item.depth for item in items])) < 0.18


def test_twins_differ_in_one_name_when_one_lacks_the_sentence() -> None:
    items = FAMILIES["absent"].items(seed=5, n=200, corpus=prose_corpus())
    firsts: list[str] = []
    for one, other in zip(items[::2], items[1::2], strict=True):
        assert one.pair == other.pair
        assert (one.question, one.depth, one.chance) == (other.question, other.depth, 0.5)
        assert {*one.answers, *other.answers} == {"yes", "no"}
        changed = [
            (left.text.split(), right.text.split())
            for left, right in zip(one.needles, other.needles, strict=True)
            if left.text != right.text
        ]
        assert len(changed) == 1
        left, right = changed[0]
        assert sum(a != b for a, b in zip(left, right, strict=True)) == 1
        assert [needle.depth for needle in one.needles] == [needle.depth for needle in other.needles]
        firsts += one.answers
    assert len({item.pair for item in items}) == 100
    # which twin comes first is a fair coin: 100 throws, all but one run in 100,000
    low, high = binom.interval(1 - 1e-5, 100, 0.5)
    assert low <= firsts.count("yes") <= high


def test_the_asked_key_stands_anywhere_when_there_are_eight() -> None:
    items = FAMILIES["multi-key-8"].items(seed=5, n=480, corpus=prose_corpus())
    ranks = [[needle.evidence for needle in item.needles].index(True) for item in items]
    # a uniform rank of 0 ... 7 has mean 3.5 and standard deviation 2.29; 5 x 2.29 / sqrt(480) = 0.52
    assert abs(mean(ranks) - 3.5) < 0.52
    assert min(Counter(ranks).values()) > 20


def test_the_latest_value_is_not_the_last_sentence_when_other_keys_change_too() -> None:
    items = FAMILIES["state"].items(seed=5, n=240, corpus=prose_corpus())
    last = sum(item.needles[-1].evidence for item in items)
    # six other values all before it: 1 / 7 of the items, if depths are uniform
    assert 240 / 14 < last < 240 * 2 / 7
    assert all(evidence_text(item).count(item.answers[0]) == 1 for item in items)


@pytest.mark.parametrize(
    ("name", "questions"),
    [
        ("code-definition", {"What is the default value": 24, "What is the value": 24}),
        ("code-relation", {"What is the parent class": 24, "What is the decorator": 24}),
    ],
)
def test_the_old_value_and_name_are_gone_when_a_definition_is_rewritten(name: str, questions: dict[str, int]) -> None:
    corpus = code_corpus()
    items = FAMILIES[name].items(seed=5, n=48, corpus=corpus)
    assert Counter(item.question.partition(" of ")[0] for item in items) == questions
    for item in items:
        memories = [value for value, meaning in item.decoys.items() if meaning == MEMORY]
        assert len(memories) == 1
        assert '"""' not in evidence_text(item)
        defined = item.question.partition("?")[0].split()[-1]
        assert not corpus.holds(defined)
        assert defined in evidence_text(item)


@pytest.mark.parametrize(
    ("name", "new"),
    [
        ("read_all", "read_all_birch"),
        ("_read", "_read_birch"),
        ("read", "read_birch"),
        ("readAll", "readAllBirch"),
        ("Reader", "ReaderBirch"),
        ("MAX_SIZE", "MAX_SIZE_BIRCH"),
        ("_Reader", "_ReaderBirch"),
    ],
)
def test_a_name_keeps_its_style_when_it_is_salted(name: str, new: str) -> None:
    assert salted(name, "Birch") == new


def test_a_long_draw_continues_a_short_one_when_the_seed_is_the_same() -> None:
    def drawn(count: int) -> list[list[str]]:
        fresh = Fresh("1/made up/0", prose_corpus())
        return [fresh.names(count), fresh.paired_names(count), fresh.numbers(count), fresh.from_pool(TOWNS, count)]

    for few, many in zip(drawn(3), drawn(30), strict=True):
        assert many[:3] == few
        assert len(set(many)) == 30


def test_levels_are_even_when_a_set_is_cut_short() -> None:
    for cut in range(1, 40):
        counts = Counter(balanced("abcd", "label", 40)[:cut])
        assert max(counts.values()) - min(counts.get(level, 0) for level in "abcd") <= 1


def test_strata_are_visited_evenly_when_the_first_few_are_taken() -> None:
    depths = [slot.depth for slot in slots("literal", seed=1, n=64)]
    # each quarter of the text has a quarter of the first 8, 16 and 32 items, one more or less
    for begun in (8, 16, 32):
        quarters = Counter(int(4 * depth) for depth in depths[:begun])
        assert all(abs(quarters[quarter] - begun / 4) <= 1 for quarter in range(4))


def test_a_name_is_not_drawn_when_the_corpus_has_it() -> None:
    text = "The birch by the gate was felled.\n\nIts wood was sold in spring."
    corpus = TextCorpus(name="birch", kind="prose", licence="ours", documents=[Document(name="a.txt", text=text)])
    drawn = len(NAMES) - 1
    assert "Birch" not in Fresh("x", corpus).names(drawn)
    assert "Birch" in Fresh("x", prose_corpus()).names(drawn + 1)
    # then names of two words, which may hold it
    assert all(" " in name for name in Fresh("x", corpus).names(drawn + 5)[drawn:])
