"""The budget holds before a request is sent, and counts what the evidence already holds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from longproof.asking.context import BudgetSpent
from longproof.errors import BudgetError
from longproof.evidence.records import Protocol, RequestBody, WindowBody
from longproof.prove.budget import RunBudget, require_useful
from longproof.testing.builders import build_header, build_record, build_refusal, build_request, build_timeline

S = 1_000_000_000


def protocol(*, ns: int | None = None, tokens: int | None = None) -> Protocol:
    return replace(build_header().protocol, budget_ns=ns, budget_tokens=tokens)


def answered(**details: int) -> RequestBody:
    return build_request("speed", {}, timeline=build_timeline(**details))


def test_tokens_are_counted_as_sent_and_produced() -> None:
    budget = RunBudget(protocol(tokens=1000))
    budget.finished(answered(prompt_tokens=500, max_tokens=16))
    assert budget.spent_tokens == 516
    budget.check(484)  # 516 + 484 = 1,000: just fits
    with pytest.raises(BudgetSpent, match="516 of 1,000"):
        budget.check(485)


def test_time_is_predicted_at_the_usual_rate_when_answers_have_been_seen() -> None:
    budget = RunBudget(protocol(ns=10 * S))
    budget.finished(answered(prompt_tokens=100, ttft_ns=3 * S, itl_ns=0))  # the first teaches nothing
    budget.finished(answered(prompt_tokens=1000, ttft_ns=S, itl_ns=0))  # 1 ms per token
    assert budget.predict_ns(2000) == pytest.approx(2 * S, rel=0.01)
    budget.check(5000)  # about 4 s spent + 5 s
    with pytest.raises(BudgetSpent):
        budget.check(7000)


def test_one_answer_that_was_held_up_changes_no_prediction_when_there_are_others() -> None:
    budget = RunBudget(protocol())
    for ttft_ns in (S, S, 60 * S, S):  # the first teaches nothing; of 1, 60 and 1 ms per token the median is 1
        budget.finished(answered(prompt_tokens=1000, ttft_ns=ttft_ns, itl_ns=0))
    assert budget.predict_ns(2000, 0) == pytest.approx(2 * S)


def test_a_refusal_costs_time_but_no_tokens_and_teaches_no_rate() -> None:
    budget = RunBudget(protocol(tokens=1000))
    for _ in range(3):
        budget.finished(build_request("speed", {}, timeline=build_refusal(prompt_tokens=9000)))
    assert budget.spent_tokens == 0
    assert budget.spent_ns > 0
    assert budget.predict_ns(1000) == 0


def test_what_the_evidence_holds_counts_as_spent() -> None:
    body = build_request(
        "speed", {"arm": "cold", "length": 500, "repeat": 0}, timeline=build_timeline(prompt_tokens=500)
    )
    assert RunBudget(protocol(), [build_record(body)]).spent_tokens == 516


def test_a_window_costs_its_own_time_when_its_requests_ran_together() -> None:
    """Eight requests of a second each, in a window of two: 2 s are spent, not 8; and no rate is learned."""
    budget = RunBudget(protocol(ns=10 * S))
    for _ in range(8):
        body = answered(prompt_tokens=500, max_tokens=16, ttft_ns=S, itl_ns=0)
        budget.finished(replace(body, planned_ns=0))
    budget.window_ended(
        WindowBody(probe="busy", cell={}, prefix="w#1/", load={}, started_ns=0, ended_ns=2 * S, requests=8)
    )
    assert budget.spent_ns == 2 * S
    assert budget.spent_tokens == 8 * 516
    assert budget.predict_ns(1000) == 0
    budget.check(1, 8 * S)  # 2 + 8 = 10: just fits
    with pytest.raises(BudgetSpent):
        budget.check(1, 8 * S + 1)


def test_a_budget_below_the_smallest_request_names_what_it_takes() -> None:
    with pytest.raises(BudgetError, match="100 tokens is below the 528") as error:
        require_useful(protocol(tokens=100), 528, 0)
    assert "--budget 528tok" in error.value.advice
    with pytest.raises(BudgetError) as error:
        require_useful(protocol(ns=S), 528, 3.4 * S)
    assert "--budget 4s" in error.value.advice
