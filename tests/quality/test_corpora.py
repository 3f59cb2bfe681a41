"""Corpora that need nothing: generated text, the Python that runs us, and what all corpora have in common."""

from __future__ import annotations

import ast
import hashlib
import re
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longproof.errors import CorpusError
from longproof.quality.corpora.corpus import Document, TextCorpus, manifest_of
from longproof.quality.corpora.duplicates import key_of
from longproof.quality.corpora.generated import CHARS_PER_TOKEN, generated
from longproof.quality.corpora.opening import open_corpus
from longproof.quality.corpora.python_own import python_corpus
from longproof.quality.corpora.units import MOST_CHARS, split_units


def prose(*texts: str) -> TextCorpus:
    documents = [Document(name=f"{number}.txt", text=text) for number, text in enumerate(texts)]
    return TextCorpus(name="test", kind="prose", licence="ours", documents=documents)


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 10**6), tokens=st.integers(1, 5_000))
def test_no_line_is_written_twice_when_text_is_generated(seed: int, tokens: int) -> None:
    corpus = generated(seed=seed, tokens=tokens)
    units = corpus.units()
    assert corpus.dropped == (0, 0)
    assert len({key_of(unit) for unit in units}) == len(units)
    assert sum(map(len, units)) >= CHARS_PER_TOKEN * tokens
    assert all("\n" not in unit for unit in units)
    assert not re.search(r"\d{5}", "\n".join(units))


def test_text_is_the_same_and_begins_alike_when_the_seed_is_the_same() -> None:
    short, long, other = (generated(seed=seed, tokens=tokens) for seed, tokens in ((3, 10), (3, 20_000), (4, 10)))
    assert long.units()[: len(short.units())] == short.units()
    assert len(long.units()) > 2 * len(short.units())
    assert short.manifest_sha256 == long.manifest_sha256 != other.manifest_sha256
    assert not set(short.units()) & set(other.units())


def test_prose_and_code_are_there_when_python_is_the_corpus() -> None:
    texts, code = python_corpus(kind="prose"), python_corpus(kind="code")
    assert texts.holds("garbage collector")
    assert sum(map(len, texts.units())) > 1_000_000
    assert sum(map(len, code.units())) > 3_000_000
    assert texts.manifest_sha256 == code.manifest_sha256
    part = python_corpus(kind="code", tokens=8_000)  # 16 x 5 x 8,000 + 1.5M characters: a fifth to a quarter of 9M
    assert 1_000_000 < sum(len(document.text) for document in part.documents()) < 4_000_000
    assert len(part.documents()) < len(code.documents()) / 2
    assert part.manifest_sha256 == code.manifest_sha256
    assert texts.licence.startswith("PSF")
    for unit in code.units()[::50]:
        ast.parse(unit)


def test_a_wrong_name_is_refused_with_what_there_is(tmp_path: Path) -> None:
    with pytest.raises(CorpusError) as refused:
        open_corpus("no-such-place", kind="prose", seed=0, tokens=1, cache=tmp_path)
    assert "generated, python" in refused.value.advice
    with pytest.raises(CorpusError) as refused:
        open_corpus("django-docs", kind="prose", seed=0, tokens=1, cache=tmp_path)
    assert "longproof corpus add django-docs" in refused.value.advice
    with pytest.raises(CorpusError, match="is prose"):
        open_corpus("generated", kind="code", seed=0, tokens=1)


def test_defaults_are_generated_prose_and_the_code_of_python_when_nothing_is_named() -> None:
    assert open_corpus(None, kind="prose", seed=1, tokens=1).name == "generated"
    assert open_corpus(None, kind="code", seed=1, tokens=1).name.startswith("python-3.")


# -- what is dropped --------------------------------------------------------------------------------------------------


def test_lines_are_dropped_when_only_case_digits_or_marks_differ() -> None:
    corpus = prose("Paid 12 crowns to Ida.\n\nThe gate is shut.\n\n-----", "PAID: 7 crowns, to Ida!\n\nA new line.")
    assert corpus.units() == ("Paid 12 crowns to Ida.", "The gate is shut.", "A new line.")
    assert corpus.dropped == (0, 1)  # the rule of dashes is no unit at all


def test_a_document_is_dropped_when_four_fifths_of_it_stood_before() -> None:
    """39 of 49 characters (three lines of 13) are 79.6 %, 52 of 62 (four lines) 83.9 %; the new line has 10."""
    lines = ["First of all.", "Second of it.", "Third of two.", "Fourth of it."]
    whole = "\n\n".join(lines)
    assert [len(line) for line in lines] == [13] * 4
    kept = prose(whole, "\n\n".join([*lines[:3], "Other one."]))
    assert [document.name for document in kept.documents()] == ["0.txt", "1.txt"]
    assert kept.units()[-1] == "Other one."
    dropped = prose(whole, "\n\n".join([*lines, "Other one."]))
    assert [document.name for document in dropped.documents()] == ["0.txt"]
    assert dropped.dropped == (1, 0)


def test_a_piece_is_left_out_when_it_holds_the_marker_of_a_chat_template() -> None:
    corpus = prose("Before.\n\nThen write <|im_end|> and go on.\n\nOr <｜User｜> there.\n\nAfter.")
    assert corpus.units() == ("Before.", "After.")


def test_a_corpus_without_letters_is_refused() -> None:
    with pytest.raises(CorpusError, match="no prose to build from in 1 documents"):
        prose("12345\n\n-----").units()


# -- occurrences ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "held"),
    [
        ("birch", True),
        ("Birch Lane", True),
        ("lane fourteen", True),  # across the end of a line
        ("birch fourteen", False),
        ("1705", True),
        ("170", False),
        ("woo", False),
        ("é", False),
        ("caf\u00e9", True),
        ("x_1", True),
        ("x", False),
        ("", False),
        ("(a+b)", True),
        ("a+b", True),
    ],
)
def test_a_value_is_held_when_it_stands_there_as_whole_words(value: str, held: bool) -> None:
    corpus = prose("The Birch Lane\nFourteen is near the wood, see 1705.\n\nCafé (a+b) and x_1.")
    assert corpus.holds(value) is held


def test_places_stay_places_when_lower_case_is_longer() -> None:
    """'İ' in lower case is two characters."""
    corpus = prose("İİİ stood before the Harbor.")
    assert corpus.holds("harbor")
    assert corpus._index.places("Harbor") == (21,)  # İİİ = 3, " stood before the " = 18


# -- pieces -----------------------------------------------------------------------------------------------------------


def test_paragraphs_become_lines_of_whole_sentences_when_prose_is_split() -> None:
    long = " ".join(f"Sentence number {word} of the paragraph ends here." for word in ("one", "two", "three") * 5)
    units = split_units("a.md", f"# Title\n\nHard\nwrapped text.\n\n{long}\n\n- item\n- item two\n", "prose")
    assert units[:2] == ["# Title", "Hard wrapped text."]
    assert units[-1] == "- item\n- item two"
    assert len(units) > 4
    assert all(len(unit) <= 330 and unit.endswith(".") for unit in units[2:-1])
    assert " ".join(units[2:-1]) == long


def test_a_fence_is_one_piece_when_blank_lines_stand_in_it() -> None:
    text = "Before.\n\n```python\na = 1\n\nb = 2\n```\nAfter it.\n"
    assert split_units("a.md", text, "prose") == ["Before.", "```python\na = 1\n\nb = 2\n```", "After it."]


def test_blocks_are_whole_statements_when_python_is_split() -> None:
    source = (
        '"""Module\n\nAt the margin.\n"""\n\nimport a\nimport b\n\nX = 1\n\n# about f\n@d\ndef f():\n'
        "\n    return 1\n\n\n"
        "class K:\n    y = 2; z = 3\n"
    )
    assert split_units("m.py", source, "code") == [
        '"""Module\n\nAt the margin.\n"""',
        "import a\nimport b",
        "X = 1",
        "# about f\n@d\ndef f():\n\n    return 1",
        "class K:\n    y = 2; z = 3",
    ]


def test_blocks_begin_at_the_margin_when_other_code_is_split() -> None:
    source = "#include <a.h>\n\nint f(void) {\n\n    return 1;\n\n}\n\nstatic int g;\n"
    assert split_units("m.c", source, "code") == [
        "#include <a.h>",
        "int f(void) {\n\n    return 1;\n\n}",
        "static int g;",
    ]


@settings(max_examples=150)
@given(text=st.text(alphabet="ab .\n\t#-`'\"():=d\r\0é", max_size=400), kind=st.sampled_from(["prose", "code"]))
def test_pieces_have_no_space_around_them_when_any_text_is_split(text: str, kind: str) -> None:
    for name in ("a.py", "a.md", "a.rs"):
        for unit in split_units(name, text, kind):  # type: ignore[arg-type]
            assert unit == unit.strip() != ""
            assert len(unit) <= MOST_CHARS[kind]


# -- manifest ---------------------------------------------------------------------------------------------------------


def test_the_manifest_is_what_sha256sum_prints_hashed(tmp_path: Path) -> None:
    for name, text in (("b.txt", "two"), ("a.txt", "one")):
        (tmp_path / name).write_text(text)
    printed = subprocess.run(["sha256sum", "a.txt", "b.txt"], cwd=tmp_path, capture_output=True, check=True).stdout
    files = [(name, hashlib.sha256((tmp_path / name).read_bytes()).hexdigest()) for name in ("b.txt", "a.txt")]
    assert manifest_of(files) == hashlib.sha256(printed).hexdigest()
