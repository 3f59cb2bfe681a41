"""The claim at the door: what is proven is served, what is not is refused, marked or sent where it is."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from longproof.policy.claim_gate import GateAnswer, OnExcess, ProvenLimits, judge

LIMITS = ProvenLimits(model="m", admitted_tokens=100_000, effective_tokens=60_000)


def test_everything_passes_when_there_is_no_claim() -> None:
    assert judge(None, 10**9, 10**9) == GateAnswer()


def test_a_request_passes_at_the_limit_and_not_one_token_beyond() -> None:
    assert judge(LIMITS, 60_000, 40_000) == GateAnswer()
    beyond = judge(LIMITS, 60_000, 40_001).refused
    assert beyond is not None
    assert (beyond.code, beyond.limit, beyond.actual) == ("beyond_proven_length", 100_000, 100_001)
    assert "100,001" in beyond.reason
    too_deep = judge(LIMITS, 60_001, 1).refused
    assert too_deep is not None
    assert (too_deep.code, too_deep.limit, too_deep.actual) == ("beyond_effective_context", 60_000, 60_001)


def test_a_header_says_so_when_excess_is_only_marked() -> None:
    marked = judge(ProvenLimits(model="m", admitted_tokens=None, effective_tokens=10, on_excess=OnExcess.WARN), 11, 0)
    assert marked.refused is None
    (warning,) = marked.warnings
    assert warning.startswith("not-proven: 11 input tokens")


def test_the_proven_pool_alone_serves_it_when_excess_is_routed() -> None:
    routed = judge(ProvenLimits(model="m", effective_tokens=10, on_excess=OnExcess.ROUTE, pool="long"), 11, 0)
    assert (routed.refused, routed.pool) == (None, "long")
    nowhere = judge(ProvenLimits(model="m", effective_tokens=10, on_excess=OnExcess.ROUTE), 11, 0)
    assert nowhere.refused is not None


def test_every_answer_says_so_when_the_claim_has_a_problem() -> None:
    expired = ProvenLimits(model="m", effective_tokens=10, problem="it expired on 2026-10-01")
    assert judge(expired, 1, 0).warnings == ("claim-problem: it expired on 2026-10-01",)
    assert judge(expired, 11, 0).refused is not None  # and its limits still bind


@given(
    tokens=st.tuples(st.integers(0, 200_000), st.integers(0, 200_000)),
    more=st.tuples(st.integers(0, 9_000), st.integers(0, 9_000)),
)
def test_a_longer_request_is_never_proven_when_a_shorter_one_is_not(
    tokens: tuple[int, int], more: tuple[int, int]
) -> None:
    if judge(LIMITS, *tokens).refused is not None:
        assert judge(LIMITS, tokens[0] + more[0], tokens[1] + more[1]).refused is not None
