"""The page of a comparison: whole, inert, and the same bytes each time."""

from __future__ import annotations

from page_reader import Page

from longproof.claim.compare import compare, gate_comparison
from longproof.claim.view import EvidenceView
from longproof.evidence.records import Body, NoteBody, Step
from longproof.report.compare_html import render_comparison_html
from longproof.testing.builders import build_header, build_protocol, build_request, build_timeline, build_view

S = 1_000_000_000
WORDS = "<script>alert(1)</script>"


def side(factor: float, *, turn: int, text: str = "the same", cut: bool = False) -> EvidenceView:
    """Three rounds over two lengths; times grow a little from round to round."""
    entries: list[tuple[str, Body]] = []
    for round_ in range(3):
        for place, length in enumerate((512, 2048)):
            timeline = build_timeline(
                prompt_tokens=length,
                ttft_ns=round(factor * (100 + 3 * round_ + length / 10) * 1e6),
                itl_ns=round(factor * (10 + round_ / 10) * 1e6),
                submitted_ns=(10 * round_ + 4 * place + turn + 1) * S,
                text=text,
            )
            cell = {"arm": "pair", "length": length, "repeat": round_, "turn": turn}
            body = build_request("compare", cell, timeline, prompt_sha256=f"{length:032x}{round_:032x}")
            entries.append((f"compare/{length}/{round_}", body))
    if cut:
        note = NoteBody(probe="compare", what="budget_spent", detail={"reason": "9 of 10 tokens are spent"})
        entries.append(("run/budget/compare", note))
    steps = (Step(probe="compare", parameters={"lengths": [512, 2048], "rounds": 5}),)
    return build_view(*entries, header=build_header(protocol=build_protocol(steps=steps), target=WORDS))


def test_page_is_whole_and_inert_when_two_sides_differ() -> None:
    a, b = side(1.0, turn=0), side(1.5, turn=1, text=WORDS)
    comparison = compare(a, b)
    verdicts = gate_comparison(comparison, ["tpot_ratio <= 1.05", "ttft_ratio >= 1.2"])
    html = render_comparison_html(comparison, a, b, verdicts)
    assert html == render_comparison_html(comparison, a, b, verdicts)
    page = Page(html)
    ids = [attrs["id"] for _, attrs in page.tags if attrs.get("id")]
    assert len(ids) == len(set(ids))
    assert {attrs["href"] for attrs in page.all("a")} <= {f"#{name}" for name in ids}
    assert len(page.all("script")) == 1
    text = " ".join(" ".join(page.text).split())
    assert "alert(1)" in text  # as text, where the targets are named
    assert "Fail" in text
    assert "Pass" in text
    # n = 3 each: the ratio is 1.5 in every pair, so the interval is a point
    assert "1.5 [1.5, 1.5]" in text
    assert "compare.outputs_differ" in text


def test_page_says_what_was_left_out_when_the_budget_ended_it() -> None:
    a, b = side(1.0, turn=0, cut=True), side(1.0, turn=1, cut=True)
    html = render_comparison_html(compare(a, b), a, b)
    assert "after 6 of 10 questions: 9 of 10 tokens are spent" in html
    assert 'id="required"' not in html
