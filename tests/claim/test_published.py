"""Published tables of effective context: read whole, recomputed by their own rule and by ours."""

from __future__ import annotations

import pytest

from longproof.claim.published.recompute import Recomputed, recompute_all
from longproof.claim.published.tables import (
    PublishedTable,
    nominal_tokens,
    parse_table,
    published_tables,
    single_figures,
)
from longproof.domain.measure import Unknown


def table(name: str) -> PublishedTable:
    return next(t for t in published_tables() if t.name.startswith(name))


def row(name: str, model: str) -> Recomputed:
    return next(r for r in recompute_all(table(name)) if r.model.startswith(model))


def test_five_of_44_ruler_rows_break_rulers_own_rule() -> None:
    rows = recompute_all(table("RULER"))
    assert len(rows) == 44
    assert {(r.model, r.listed, r.by_their_rule) for r in rows if r.agrees is False} == {
        ("Qwen2.5-7B-Instruct-1M (7B)", ">128K", "64K"),  # 84.4 at 128K
        ("Qwen3-14B (14B)", ">128K", "64K"),  # 85.1 at 128K
        ("Qwen3-8B (8B)", "64K", "32K"),  # 82.1 at 64K
        ("Qwen3-4B (4B)", "64K", "32K"),  # 77.8 at 64K
        ("EXAONE-4.0-1.2B (1.2B)", "32K", "16K"),  # 81.1 at 32K
    }
    assert row("RULER", "Qwen3-8B").disagreement == "Qwen3-8B (8B): listed 64K, by its own rule 32K"
    assert row("RULER", "Jamba-1.5-large").disagreement is None


def test_all_nolima_rows_keep_nolimas_rule() -> None:
    rows = recompute_all(table("NoLiMa"))
    assert len(rows) == 18
    assert all(r.agrees for r in rows)


def test_a_cell_on_the_line_is_not_certified_when_it_reaches_the_threshold() -> None:
    # 85.6 at 128K is the threshold itself: 6,500 answers cannot tell; their rule says >128K, ours 64K, undecided above.
    found = row("RULER", "Qwen3-32B")
    assert found.by_their_rule == ">128K"
    assert found.on_the_line == ("128K",)
    assert (found.certified, found.refuted) == ("64K", None)


def test_brackets_need_a_number_of_answers() -> None:
    found = row("NoLiMa", "GPT-4o")
    assert found.by_their_rule == "8K"
    assert isinstance(found.certified, Unknown)
    assert "README" in found.certified.reason


def test_counted_cells_give_a_bracket_when_the_base_is_their_own() -> None:
    # 4,823 of 4,996 without filler: 85 % of it is 82.06 %. 4,449 of 4,996 (89.1 %) hold at 4K; 4,114 (82.3 %, from
    # 81.2 to 83.4) at 8K may lie on either side; 3,721 (74.5 %) at 16K do not.
    found = row("BABILong", "Gemini 3 Flash")
    assert (found.certified, found.refuted, found.on_the_line) == ("4K", "16K", ("8K",))
    assert found.agrees is None


def test_every_table_says_where_and_when_its_cells_were_read() -> None:
    for found in published_tables():
        assert found.url.startswith("https://github.com/")
        assert len(found.commit) == 40
        assert found.published <= found.read
        assert found.rule_source
        assert all(0 <= c.share <= 1 for r in found.rows for c in r.cells if not isinstance(c.share, Unknown))


def test_single_figures_have_sources() -> None:
    figures = single_figures()
    assert {f.source for f in figures} == {"OOLONG-synth", "MRCR", "RULER mean, SelfLong"}
    assert all(f.url.startswith("https://") and f.says and f.how for f in figures)


def test_a_cell_that_is_not_published_is_unknown() -> None:
    exaone = next(r for r in table("RULER").rows if r.model.startswith("EXAONE-4.0-1.2B"))
    assert exaone.cells[-1].share == Unknown(reason="not published")


def test_cells_that_do_not_match_the_lengths_are_refused() -> None:
    raw = {
        "name": "x", "what": "", "url": "", "file": "", "commit": "", "published": None, "read": None, "rule": "mean",
        "threshold_percent": 85, "rule_source": "", "answers_per_cell": "unknown", "lengths": ["4K", "8K"],
        "row": [{"model": "m", "claimed": "", "listed": "", "scores_percent": [90.0]}],
    }  # fmt: skip
    with pytest.raises(ValueError, match="shorter"):
        parse_table(raw)


def test_labels_ascend() -> None:
    assert [nominal_tokens(label) for label in ("4K", "128K", "1M")] == [4_000, 128_000, 1_000_000]
