"""Effective context on the page: what was right of how many, the verdict in words, plots and examples."""

from __future__ import annotations

from longproof.claim.compare import compare
from longproof.claim.derive import claim_of
from longproof.claim.view import EvidenceView
from longproof.evidence.records import Body
from longproof.prove.parameters import step_of
from longproof.quality.corpora.generated import generated
from longproof.quality.judging import stored
from longproof.quality.plan import QualityPlan
from longproof.quality.tasks import FAMILIES
from longproof.report.compare_html import render_comparison_html
from longproof.report.html import render_html
from longproof.report.quality_section import QualitySection, rule_words, section
from longproof.testing.builders import build_header, build_protocol, build_request, build_timeline, build_view

LENGTHS = (1_024, 4_096)


def view_of(*, answers: int = 20, lost_at: int = 4_096, wrong: str = "It is 555555.") -> EvidenceView:
    """One family; right below `lost_at`, and something else from there on."""
    plan = QualityPlan(families=("literal",), lengths=LENGTHS, answers=answers)
    entries: list[tuple[str, Body]] = []
    for item in FAMILIES["literal"].items(seed=0, n=answers, corpus=generated(seed=0, tokens=2_000)):
        entries.append((f"quality/literal/item/{item.index}", stored(item, 0)))
        for arm, length in (("evidence", 0), *(("full", length) for length in LENGTHS)):
            text = wrong if length >= lost_at else item.answers[0]
            timeline = build_timeline(prompt_tokens=length or 100, text=text, finish_reason="stop")
            cell = {"family": "literal", "arm": arm, "length": length, "item": item.index, "order": item.index}
            end = {"depth": item.depth, "end": f"… {item.question}"}
            entries.append(
                (f"quality/literal/{arm}/{length}/{item.index}", build_request("quality", {**cell, **end}, timeline))
            )
    return build_view(*entries, header=build_header(protocol=build_protocol(steps=(step_of("quality", plan),))))


def section_of(view: EvidenceView) -> QualitySection:
    found = section(claim_of(view), view)
    assert found is not None
    return found


def test_the_table_says_how_many_were_right_when_a_length_is_lost() -> None:
    (row,) = section_of(view_of()).rows
    assert (row.name, row.word) == ("literal", "holds to 1,024, lost by 4,096")
    assert (row.control, row.closed_book, row.shares) == ("20 of 20", "–", ("20 of 20", "0 of 20"))


def test_bracket_and_depths_are_drawn_when_two_lengths_were_asked() -> None:
    curve, depths = section_of(view_of()).figures
    assert [item.text for item in curve.legend] == ["share right", "proven up to here", "lost by here"]
    assert "1,024 tokens: 20 of 20, 4,096 tokens: 0 of 20" in curve.svg
    assert "40 answers, 20 lost" in depths.svg


def test_the_contents_lead_to_it_when_it_is_there() -> None:
    view = view_of(answers=4)
    assert '<a href="#quality">Effective context</a>' in render_html(claim_of(view), view)
    without = build_view(header=build_header())
    assert "#quality" not in render_html(claim_of(without), without)


def test_the_rule_of_a_plot_says_what_guessing_adds() -> None:
    assert "full rule: threshold, 85 %;" in section_of(view_of()).figures[0].caption
    plan = QualityPlan(families=("absent",), lengths=LENGTHS, answers=20)
    # 0.5 + 0.85 · 0.5
    assert rule_words(plan, 0.5) == "92.5 %, the threshold of 85 % where guessing finds 50 %"


def test_both_sides_of_a_comparison_are_drawn_when_they_answered_the_same_questions() -> None:
    a, b = view_of(lost_at=10**6), view_of()
    html = render_comparison_html(compare(a, b), a, b)
    assert "1,024 tokens: A 100 %, B 100 %, 4,096 tokens: A 100 %, B 0 %" in html
    assert html.count("<figure") == 1


def test_a_right_and_a_wrong_answer_are_shown_when_there_are_both() -> None:
    right, wrong = section_of(view_of()).examples
    assert (right.right, right.length, right.why) == (True, "1,024", "exact")
    assert (wrong.right, wrong.length, wrong.said) == (False, "4,096", "It is 555555.")
    assert wrong.end.endswith("Answer with the number only.")


def test_what_the_model_said_stays_text_when_it_is_markup() -> None:
    view = view_of(answers=4, wrong="<script>alert(1)</script> 555555")
    page = render_html(claim_of(view), view)
    assert "<script>alert(1)" not in page
    assert "&lt;script&gt;alert(1)" in page


def test_there_is_no_section_when_quality_was_not_asked() -> None:
    view = build_view(header=build_header())
    assert section(claim_of(view), view) is None
