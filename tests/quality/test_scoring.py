"""Replies as models give them, each with the judgement it has to get."""

from __future__ import annotations

import time

import pytest

from longproof.quality.item import Item
from longproof.quality.scoring import MOST_CHARACTERS, score


def item(
    *answers: str, others: tuple[str, ...] = (), kind: str = "prose", decoys: dict[str, str] | None = None
) -> Item:
    return Item(
        family="made up",
        index=0,
        seed="0/made up/0",
        needles=(),
        question="?",
        answers=answers,
        candidates=(*answers, *others),
        decoys=decoys or {},
        kind=kind,  # type: ignore[arg-type]
    )


NUMBER = item("711097", others=("402358", "118225"), decoys={"402358": "value of another key"})
TOWN = item("Linz", others=("Graz", "Amber Falcon"))
PAIR = item("Amber Falcon", others=("Golden Otter",))
VALUES = item("711097", "402358", others=("118225", "990141"))
YES_NO = item("yes", others=("no",), decoys={"no": "overlooked"})
COUNT = item("3", others=("2", "4", "5", "6", "7", "10"))
CODE = item("read_birch", others=("read", "ReadOtter"), kind="code", decoys={"read": "original value: memory"})
DEFAULT = item("41733", others=("64803", "3"), kind="code", decoys={"3": "original value: memory"})


@pytest.mark.parametrize(
    "text",
    [
        "711097",
        "711097.",
        "  711097  ",
        "711,097",
        "711.097",
        "711 097",
        "711\u00a0097",
        "711\u202f097",
        "711'097",
        "711’097",
        "711_097",
        "711{,}097",
        r"$\boxed{711097}$",
        "**711097**",
        "***711097***",
        "__711097__",
        "`711097`",
        '"711097"',
        "“711097”",
        "'711097'",
        "(711097)",
        "[711097]",
        "$711097",
        "#711097",
        "№711097!",
        "711097，",
        "７１１０９７",
        "٧١١٠٩٧",
        "7\u200b11097",
        "The passcode for Birch is 711097.",
        "the PASSCODE for birch is 711097",
        "passcode=711097;",
        "Passcode: 711097",
        "711097 711097 711097",
        "711097, that is 711,097.",
        "\n\n711097",
        "711097\n402358",
        "711097\r\n402358",
        "711097\u2028402358",
        "The passcode is:\n711097",
        "**The passcode is:**\n\n**711097**",
        "```\n711097\n```",
        "```text\n711097\n```",
        "---\n711097",
        "- 711097",
        "> 711097",
        "# 711097",
        "1. 711097",
        "No problem. It is 711097.",
        "It stands in line 12 and is 711097.",
        "<think>402358? No, 118225?</think>711097",
        "<think>402358</think>\n\nThe answer\n\nis 711097",
        "402358 perhaps</think>711097",
        "[THINK]402358[/THINK]711097",
        "<thinking>402358</thinking> 711097",
    ],
)
def test_a_reply_is_right_when_it_names_the_number_in_any_way(text: str) -> None:
    scored = score(NUMBER, text)
    assert (scored.right, scored.why, scored.named) == (True, "exact", ("711097",))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "nothing named"),
        (" \n\t\n ", "nothing named"),
        ("...", "nothing named"),
        ("I'm sorry, but I cannot help with that.", "nothing named"),
        ("The text does not say.", "nothing named"),
        ("What is the passcode for Birch?", "nothing named"),
        ("seven hundred eleven thousand and ninety-seven", "nothing named"),
        ("I don't know.\n711097", "nothing named"),
        ("Sure!\n711097", "nothing named"),
        ("7110975", "other value"),
        ("17110975", "nothing named"),
        ("1711097", "other value"),
        ("71109", "other value"),
        ("711098", "other value"),
        ("711097.5", "nothing named"),
        ("711097,5", "nothing named"),
        ("1,711,097", "other value"),
        ("711,097,123", "nothing named"),
        ("-711097", "nothing named"),
        ("−711097", "nothing named"),
        (".711097", "nothing named"),
        ("711097-2", "nothing named"),
        ("A-711097", "nothing named"),
        ("x711097", "nothing named"),
        ("711097x", "nothing named"),
        ("711097²", "other value"),
        ("402358", "decoy: value of another key"),
        ("The passcode for Maple is 402,358.", "decoy: value of another key"),
        ("118225", "other value"),
        ("711097 or 402358", "dump"),
        ("711097, 402358", "dump"),
        ("711097,402358", "dump"),
        ("711097/402358", "dump"),
        ("402358. No, it is 711097.", "dump"),
        ("It is not 402358 but 711097.", "dump"),
        ("711097 or 711098", "dump"),
        ("123456. No, it is 711097.", "dump"),
        ("<think>711097", "unfinished thinking"),
        ("<think>711097</think>", "nothing named"),
        ("<think>711097</think>402358", "decoy: value of another key"),
        ("<think></think>711097\n402358", "dump"),
        ("711097" + "0" * 2_000, "dump"),
        ("711097 " * 500, "dump"),
        ("The answer is: 402358\n711097", "decoy: value of another key"),
        ("It may be one of these:\n402358 or\n711097", "decoy: value of another key"),
    ],
)
def test_a_reply_is_wrong_when_it_names_another_or_no_number(text: str, why: str) -> None:
    scored = score(NUMBER, text)
    assert (scored.right, scored.why) == (False, why)


@pytest.mark.parametrize(
    "text",
    ["Linz", "linz", "LINZ.", "*Linz*", "_Linz_", "In Linz, on the river.", "It's Linz's.", "Ｌｉｎｚ", "“Linz”"],
)
def test_a_word_is_right_when_only_its_dress_differs(text: str) -> None:
    assert score(TOWN, text).right


@pytest.mark.parametrize("text", ["Linzer", "Blinz", "non-Linz", "Linz-Land", "Lin z", "Linz2", "Graz or Linz", "Graz"])
def test_a_word_is_wrong_when_it_is_part_of_another_or_not_alone(text: str) -> None:
    assert not score(TOWN, text).right


@pytest.mark.parametrize("text", ["Amber Falcon", "amber  falcon", "Amber-Falcon", "amber_falcon", "**Amber** Falcon"])
def test_a_name_of_two_words_is_right_when_both_stand_together(text: str) -> None:
    assert score(PAIR, text).right


@pytest.mark.parametrize("text", ["Amber", "Falcon", "Falcon Amber", "Amber, the Falcon", "Amber Falconer"])
def test_a_name_of_two_words_is_wrong_when_it_is_not_whole(text: str) -> None:
    assert score(PAIR, text).why == "nothing named"


@pytest.mark.parametrize(
    "text",
    [
        "711097, 402358",
        "402358, 711097",
        "402358 and 711,097",
        "711097,402358",
        "711097 402358",
        "The keys are:\n- 711097\n- 402358",
        "The keys are:\n\n- 711097\n- 402358\n\nIs there anything else?",
        "1. 711097\n2. 402358",
        "```\n711097\n402358\n```",
        "711097, 402358, 711097",
    ],
)
def test_several_values_are_right_when_the_set_is_exact(text: str) -> None:
    assert score(VALUES, text).why == "exact"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("711097", "some missing"),
        ("711097\n\n402358", "some missing"),
        ("711097, 402358, 118225", "dump"),
        ("711097, 118225", "other value"),
        ("118225", "other value"),
        ("711097, 402358, 555555", "dump"),
        ("711097, 402358, 118225, 990141", "dump"),
        ("none", "nothing named"),
    ],
)
def test_several_values_are_wrong_when_the_set_is_not_exact(text: str, why: str) -> None:
    scored = score(VALUES, text)
    assert (scored.right, scored.why) == (False, why)


@pytest.mark.parametrize("text", ["yes", "Yes.", "YES!", "Yes, it does.", "**Yes**", "yes\nno", "Yes: 711097"])
def test_yes_is_right_when_only_yes_is_said(text: str) -> None:
    assert score(YES_NO, text).right


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("no", "decoy: overlooked"),
        ("No, nothing.", "decoy: overlooked"),
        ("yes or no", "dump"),
        ("Yes, there is no doubt.", "dump"),
        ("Answer yes or no.", "dump"),
        ("It does.", "nothing named"),
        ("yesterday", "nothing named"),
        ("nobody knows", "nothing named"),
        ("eyes", "nothing named"),
    ],
)
def test_yes_is_wrong_when_both_or_neither_is_said(text: str, why: str) -> None:
    assert score(YES_NO, text).why == why


@pytest.mark.parametrize("text", ["3", "three", "Three.", "There are 3 people.", "**3**", "three (3)", "3 of the 12"])
def test_a_small_number_is_right_when_written_as_digit_or_word(text: str) -> None:
    assert score(COUNT, text).right


@pytest.mark.parametrize(
    "text", ["2", "two", "2 or 3", "2, 3, 4, 5", "1 2 3 4", "3.5", "thirteen", "30", "3rd", "-3", "ten"]
)
def test_a_small_number_is_wrong_when_another_is_named(text: str) -> None:
    assert not score(COUNT, text).right


@pytest.mark.parametrize(
    "text", ["read_birch", "`read_birch`", r"read\_birch", "read_birch()", "self.read_birch", "@read_birch"]
)
def test_a_code_name_is_right_when_quoted_as_code(text: str) -> None:
    assert score(CODE, text).right


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("Read_Birch", "nothing named"),
        ("read birch", "decoy: original value: memory"),
        ("_read_birch", "nothing named"),
        ("read_birch_2", "nothing named"),
        ("read", "decoy: original value: memory"),
        ("ReadOtter", "other value"),
        ("ReadOtter calls read_birch", "dump"),
    ],
)
def test_a_code_name_is_wrong_when_it_is_another(text: str, why: str) -> None:
    assert score(CODE, text).why == why


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("41733", "exact"),
        ("n=41733", "exact"),
        ("n = 41_733", "exact"),
        ("The default value of n is 41733.", "exact"),
        ("3", "decoy: original value: memory"),
        ("-41733", "nothing named"),
        ("41733.0", "nothing named"),
        ("0x41733", "nothing named"),
        ("41733e2", "nothing named"),
        ("def f(n=41733, m=64803):", "dump"),
    ],
)
def test_a_default_value_is_judged_as_a_whole_number_when_named(text: str, why: str) -> None:
    assert score(DEFAULT, text).why == why


def test_what_was_considered_is_kept_when_scored() -> None:
    assert score(NUMBER, "The passcode is:\n\n711097\nmore").considered == "The passcode is:\n711097"
    assert score(NUMBER, "<think>hm</think>\n 711097 \n").considered == "711097"
    assert len(score(NUMBER, "a" * 100_000).considered) == MOST_CHARACTERS


@pytest.mark.parametrize(
    "unit",
    ["711097 ", "7", "1,", "1 ", "'", "*", "_", "\\", "a ", "Amber ", "\n", "```\n", "<think>", "</think>", ":\n", "٣"],
)
@pytest.mark.parametrize(
    "subject", [NUMBER, PAIR, VALUES, COUNT, CODE], ids=["number", "pair", "values", "count", "code"]
)
def test_a_reply_of_a_hundred_kilobytes_costs_a_pass_when_scored(unit: str, subject: Item) -> None:
    text = unit * (100_000 // len(unit))
    begun = time.process_time()
    scored = score(subject, text)
    print(f"{unit!r}: {1e3 * (time.process_time() - begun):.1f} ms")
    assert len(scored.considered) <= MOST_CHARACTERS
