"""What may be said about effective context, from replies that are written here by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from longproof.claim.derive import claim_of
from longproof.claim.findings import quality
from longproof.claim.gate import gate
from longproof.claim.statements import Claim, Finding, NotShown, Standing, Statement
from longproof.claim.view import EvidenceView
from longproof.domain.events import EndedBy, Usage
from longproof.domain.verdict import Fail, Pass, Undecided
from longproof.evidence.records import Body
from longproof.prove.parameters import step_of
from longproof.quality.corpora.generated import generated
from longproof.quality.item import Item
from longproof.quality.judging import stored
from longproof.quality.plan import QualityPlan
from longproof.quality.tasks import FAMILIES
from longproof.report.verdict import three_numbers
from longproof.testing.builders import build_header, build_protocol, build_request, build_timeline, build_view

CORPUS = generated(seed=0, tokens=4_000)
PLAN = QualityPlan(families=("literal",), lengths=(1_024, 4_096), answers=60)
Says = Callable[[Item, str, int], str]
"""(item, arm, length) → the reply."""


def right(item: Item, arm: str, length: int) -> str:
    return "I do not know." if arm == "closed_book" else " ".join(item.answers)


def until(limit: int) -> Says:
    """Right up to a length, and something else beyond."""
    return lambda item, arm, length: right(item, arm, length) if length <= limit else "It is 555555."


def view_of(
    plan: QualityPlan,
    says: Says,
    *,
    arms: Sequence[str] = ("evidence", "closed_book", "full"),
    usage_of: Callable[[str, int], dict[str, Any]] | None = None,
    **changes: Any,
) -> EvidenceView:
    entries: list[tuple[str, Body]] = []
    for name in plan.families:
        for i, item in enumerate(FAMILIES[name].items(seed=0, n=plan.answers, corpus=CORPUS)):
            entries.append((f"quality/{name}/item/{item.index}", stored(item, 0)))
            for arm, length in asked(plan, i, arms):
                cell = {"family": name, "arm": arm, "length": length, "item": item.index, "order": i}
                sent = length or 100
                timeline = build_timeline(
                    prompt_tokens=sent,
                    text=says(item, arm, length),
                    **{"finish_reason": "stop", **changes, **({} if usage_of is None else usage_of(arm, sent))},
                )
                key = f"quality/{name}/{arm}/{length}/{item.index}"
                entries.append((key, build_request("quality", {**cell, "depth": item.depth}, timeline)))
    header = build_header(protocol=build_protocol(steps=(step_of("quality", plan),)))
    return build_view(*entries, header=header)


def asked(plan: QualityPlan, i: int, arms: Sequence[str]) -> Iterator[tuple[str, int]]:
    if "evidence" in arms:
        yield "evidence", 0
    if "closed_book" in arms and i < 8:
        yield "closed_book", 0
    for arm in arms:
        if arm in ("full", "warm"):
            yield from ((arm, length) for length in plan.lengths)


def said(view: EvidenceView) -> list[Statement | Finding | NotShown]:
    return list(quality.read(view))


def reach(view: EvidenceView, metric: str = "effective_context") -> tuple[float | None, float | None]:
    """(proven up to, lost by)."""
    found: dict[Standing, float] = {}
    for item in said(view):
        if isinstance(item, Statement) and item.metric == metric and item.standing is not Standing.NOT_SHOWN:
            found[item.standing] = item.value.value  # type: ignore[union-attr]
    return found.get(Standing.SHOWN), found.get(Standing.REFUTED)


def findings(view: EvidenceView) -> set[str]:
    return {item.id for item in said(view) if isinstance(item, Finding)}


def test_the_longest_length_is_proven_when_every_answer_is_right() -> None:
    assert reach(view_of(PLAN, right)) == (4_096, None)


def test_the_length_is_bracketed_when_answers_fail_beyond_it() -> None:
    assert reach(view_of(PLAN, until(1_024))) == (1_024, 4_096)


def test_nothing_is_proven_when_there_are_too_few_answers() -> None:
    """18 of 18 right: 0.05^(1/18) = 0.847 is below 0.85; 19 would do."""
    few = replace(PLAN, answers=18)
    assert reach(view_of(few, right)) == (None, None)
    assert reach(view_of(replace(PLAN, answers=19), right)) == (4_096, None)


def test_no_length_can_hold_when_the_evidence_alone_is_too_much() -> None:
    view = view_of(PLAN, lambda item, arm, length: "It is 555555.")
    assert reach(view) == (None, 1_024)
    assert any(
        "cannot: it is lost with the evidence alone" in item.text for item in said(view) if isinstance(item, Statement)
    )


def test_the_worst_family_counts_when_there_are_several() -> None:
    both = replace(PLAN, families=("literal", "multi-key-8"))
    limits = {"literal": 4_096, "multi-key-8": 1_024}
    view = view_of(both, lambda item, arm, length: until(limits[item.family])(item, arm, length))
    assert reach(view) == (1_024, 4_096)


def test_the_worst_family_is_unknown_when_one_could_not_be_asked() -> None:
    plan = replace(PLAN, families=("literal", "quote"))
    view = view_of(PLAN, right)
    header = build_header(protocol=build_protocol(steps=(step_of("quality", plan),)))
    assert reach(replace(view, header=header)) == (None, None)


@pytest.mark.parametrize("text", ["", "Let me think about where the ticket"])
def test_nothing_is_scored_wrong_when_the_budget_ended_the_answer(text: str) -> None:
    view = view_of(PLAN, lambda item, arm, length: text if length else right(item, arm, length), finish_reason="length")
    share = next(i for i in said(view) if isinstance(i, Statement) and i.metric == "accuracy")
    assert share.n == 0
    assert "60 budget" in share.text
    assert reach(view) == (None, None)


def test_nothing_is_scored_when_the_server_read_another_number_of_tokens() -> None:
    usage = Usage(prompt_tokens=77, completion_tokens=16)
    view = view_of(PLAN, right, usage=usage)
    share = next(i for i in said(view) if isinstance(i, Statement) and i.metric == "accuracy")
    assert share.n == 0
    assert "60 length unproven" in share.text


def test_a_broken_reply_is_no_wrong_answer_when_the_server_failed() -> None:
    view = view_of(PLAN, right, ended_by=EndedBy.CUT, finish_reason=None)
    share = next(i for i in said(view) if isinstance(i, Statement) and i.metric == "accuracy")
    assert share.n == 0
    assert "60 failed" in share.text


def test_a_leak_is_found_when_answers_are_right_without_text() -> None:
    assert "quality.closed_book_leak" in findings(view_of(PLAN, lambda item, arm, length: item.answers[0]))
    assert "quality.closed_book_leak" not in findings(view_of(PLAN, right))


def cached(share: float | None) -> Callable[[str, int], dict[str, Any]]:
    """What `usage` says of a prompt when so much of it came from the cache, where it was asked again. None: nothing."""

    def usage(arm: str, sent: int) -> dict[str, Any]:
        tokens = None if share is None else round(share * sent) if arm == "warm" else 0
        return {"usage": Usage(prompt_tokens=sent, cached_tokens=tokens)}

    return usage


def damaged_when_warm(item: Item, arm: str, length: int) -> str:
    return "It is 555555." if arm == "warm" else right(item, arm, length)


@pytest.mark.parametrize(
    ("usage", "found", "words"),
    [
        (cached(None), True, "perhaps from the cache: it does not say"),
        (cached(0.98), True, "from the cache, by the server's own count"),
        (cached(0.02), False, "120 of 120 prompts that were asked again at once were not served from the cache"),
    ],
)
def test_what_is_called_warm_is_what_the_server_says_when_it_counts(
    usage: Callable[[str, int], dict[str, Any]], found: bool, words: str
) -> None:
    view = view_of(PLAN, damaged_when_warm, arms=("full", "warm"), usage_of=usage)
    assert ("quality.warm_damage" in findings(view)) is found
    assert any(words in item.text for item in said(view) if not isinstance(item, Finding))
    assert "quality.warm_damage" not in findings(view_of(PLAN, right, arms=("full", "warm"), usage_of=usage))
    (flips,) = [item for item in said(view) if isinstance(item, Statement) and item.metric == "flip_rate"]
    assert (flips.n, flips.value.value) == (120, 1.0)  # type: ignore[union-attr] - 60 at each of two lengths


def test_a_control_that_is_harder_than_the_shortest_length_is_named() -> None:
    """Every third item is wrong with the evidence alone only: 20 of 60, 0.5^20 one-sided."""

    def says(item: Item, arm: str, length: int) -> str:
        return "It is 555555." if arm == "evidence" and item.index % 3 == 0 else right(item, arm, length)

    assert findings(view_of(PLAN, says)) == {"quality.control_is_harder"}
    assert reach(view_of(PLAN, says)) == (4_096, None)
    assert findings(view_of(PLAN, right)) == set()


def test_a_bias_is_found_when_the_model_always_says_no() -> None:
    plan = replace(PLAN, families=("absent",), answers=20)
    assert "quality.says_always_the_same" in findings(view_of(plan, lambda item, arm, length: "No."))
    assert "quality.says_always_the_same" not in findings(view_of(plan, right))


def test_a_window_is_found_when_only_the_last_tokens_are_read() -> None:
    """Evidence farther than 1,024 tokens from the end is lost: at 4,096 tokens all but the last quarter."""

    def says(item: Item, arm: str, length: int) -> str:
        near = (1 - item.depth) * length <= 1_024
        return right(item, arm, length) if near else "It is 555555."

    found = findings(view_of(replace(PLAN, lengths=(1_024, 2_048, 4_096)), says))
    assert "quality.window_bug" in found


def test_everything_lost_is_doubted_when_the_model_could_do_it_without_filler() -> None:
    view = view_of(PLAN, lambda item, arm, length: "It is 555555." if length else right(item, arm, length))
    assert "quality.all_lost" in findings(view)


# -- gate -------------------------------------------------------------------------------------------------------------


def verdict(claim: Claim, requirement: str) -> object:
    return gate(claim, [requirement]).verdicts[0]


def test_the_gate_decides_by_what_is_proven_and_lost_when_it_asks_for_a_length() -> None:
    claim = claim_of(view_of(replace(PLAN, lengths=(1_024, 2_048, 4_096)), until(2_048)))
    assert isinstance(verdict(claim, "effective_context >= 2k @ 0.85"), Pass)
    assert isinstance(verdict(claim, "effective_context >= 4096 @ 0.85"), Fail)
    assert isinstance(verdict(claim, "effective_context >= 3k @ 0.85"), Undecided)


def test_the_gate_knows_what_follows_when_another_threshold_is_asked() -> None:
    """Kept at 0.85, so at 0.8 as well; lost at 0.85, so at 0.9 as well. The others were not measured."""
    claim = claim_of(view_of(PLAN, until(1_024)))
    assert isinstance(verdict(claim, "effective_context >= 1k @ 0.8"), Pass)
    assert isinstance(verdict(claim, "effective_context >= 1k @ 0.9"), Undecided)
    assert isinstance(verdict(claim, "effective_context >= 4096 @ 0.9"), Fail)
    assert isinstance(verdict(claim, "effective_context >= 4096 @ 0.8"), Undecided)


def test_one_family_can_be_asked_for_when_it_is_named() -> None:
    plan = replace(PLAN, families=("literal", "multi-key-8"))
    limits = {"literal": 4_096, "multi-key-8": 1_024}
    claim = claim_of(view_of(plan, lambda item, arm, length: until(limits[item.family])(item, arm, length)))
    assert isinstance(verdict(claim, "family_context{family=literal} >= 4096"), Pass)
    assert isinstance(verdict(claim, "family_context{family=multi-key-8} >= 4096"), Fail)


def test_the_same_claim_comes_out_when_a_climb_stopped_on_its_own_answers() -> None:
    """A climb needs an order and its own test: 60 of 60 right certify there as well, and 0 of 60 refute."""
    climb = replace(PLAN, mode="climb")
    assert reach(view_of(climb, until(1_024))) == (1_024, 4_096)


# -- in one line ------------------------------------------------------------------------------------------------------


def test_the_headline_says_how_far_the_window_is_used_when_that_was_asked() -> None:
    claim = claim_of(view_of(PLAN, until(1_024)))
    assert "effective context (85 % right, literal) proven to 1,024 and lost by 4,096 tokens" in claim.headline
    few = claim_of(view_of(replace(PLAN, answers=8), right))
    assert "effective context (85 % right, literal) undecided at every length that was asked" in few.headline


def test_a_fourth_number_stands_beside_the_three_when_quality_was_asked() -> None:
    view = view_of(PLAN, until(1_024))
    mark = three_numbers(claim_of(view), view)[3]
    assert (mark.tokens, mark.provenance, mark.relation) == (1_024, "proven", "lost by 4,096 tokens")
    undecided = view_of(replace(PLAN, answers=8), right)
    assert three_numbers(claim_of(undecided), undecided)[3].tokens is None


def test_too_few_answers_are_named_when_even_all_right_would_not_do() -> None:
    """0.05^(1/19) = 0.854; with one guess in two the bar is 0.925, and 0.05^(1/39) = 0.926."""
    plan = replace(PLAN, families=("literal", "absent"), answers=18)
    told = [item for item in said(view_of(plan, right)) if isinstance(item, NotShown)]
    assert [item.topic for item in told] == ["quality.answers"]
    assert "19 for literal, 39 for absent" in told[0].text
    enough = [item for item in said(view_of(replace(plan, answers=39), right)) if isinstance(item, NotShown)]
    assert enough == []


def test_nothing_says_that_no_answer_was_checked_when_some_were() -> None:
    assert "quality" not in {item.topic for item in claim_of(view_of(PLAN, right)).not_shown}
