"""The gate: bounds decide, what is missing never passes, and asking for more never gets more."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longproof.claim.gate import gate
from longproof.claim.metric import Kind
from longproof.claim.metrics import METRICS
from longproof.claim.statements import Claim, Finding, Severity, Standing, Statement
from longproof.domain.measure import Interval, Measured, Provenance, Unknown
from longproof.domain.verdict import Fail, Pass, Undecided, Verdict
from longproof.errors import UsageError

CLAIM = Claim(
    format=1,
    longproof_version="0",
    headline="",
    target="http://x",
    fingerprint_digest="",
    facts={},
    unknown={},
    conditions={},
    complete=True,
    statements=(),
    findings=(),
    not_shown=(),
    evidence_sha256="",
)


def measured(value: float) -> Measured[float]:
    return Measured(value=value, provenance=Provenance.MEASURED, source="test")


def sampled(metric: str, *samples: float, at: int | None = 4096, **fields: object) -> Statement:
    value = measured(sum(samples) / len(samples)) if samples else Unknown(reason="no content came")
    statement = Statement(
        id=f"test.{metric}.{at}",
        metric=metric,
        text="a text",
        standing=Standing.SHOWN,
        unit=METRICS[metric].unit,
        value=value,
        n=len(samples),
        samples=samples,
        at_tokens=at,
    )
    return replace(statement, **fields)  # type: ignore[arg-type]


def exact(metric: str, value: float, *, n: int = 1, **fields: object) -> Statement:
    return sampled(metric, at=None, value=measured(value), n=n, **fields)


def reach(shown: int | None, refuted: int | None, output: int = 16) -> tuple[Statement, ...]:
    found: list[Statement] = []
    if shown is not None:
        found.append(exact("context", shown, n=3, id="boundary.context"))
        found.append(exact("prompt_max", shown - output, n=3, id="boundary.prompt_max"))
    if refuted is not None:
        conditions = {"output_tokens": str(output)}
        found.append(
            exact("context", refuted, n=3, id="boundary.refused", standing=Standing.REFUTED, conditions=conditions)
        )
    return tuple(found)


def claim(*statements: Statement, **fields: object) -> Claim:
    return replace(CLAIM, statements=statements, **fields)  # type: ignore[arg-type]


def decided(about: Claim, requirement: str, confidence: float = 0.95) -> Verdict:
    (verdict,) = gate(about, [requirement], confidence).verdicts
    return verdict


# lengths


@pytest.mark.parametrize(
    ("requirement", "expected"),
    [
        ("context >= 8000", Pass),
        ("context >= 8190", Pass),
        ("context > 8189", Pass),
        ("context > 8190", Undecided),  # 8,191 is neither shown nor refuted
        ("context >= 8191", Undecided),
        ("context > 8192", Fail),  # the same as >= 8193
        ("context >= 8193", Fail),
        ("context >= 1M", Fail),
        ("prompt_max >= 8174", Pass),
        ("prompt_max >= 8175", Undecided),
        ("prompt_max >= 8177", Fail),  # 8,177 + 16 output tokens = 8,193
    ],
)
def test_reach_is_decided_by_shown_and_refuted_when_both_are_known(requirement: str, expected: type[Verdict]) -> None:
    assert isinstance(decided(claim(*reach(8190, 8193)), requirement), expected)


def test_reach_names_numbers_and_statements_when_decided() -> None:
    verdict = decided(claim(*reach(8190, 8193)), "context >= 8k")
    assert verdict.sentence == "context: 8,190 tokens completed every time (n = 3); required: >= 8,000 tokens"
    assert verdict.statements == ("boundary.context",)
    undecided = decided(claim(*reach(8190, None)), "context >= 9000")
    assert isinstance(undecided, Undecided)
    assert "8,190 tokens were shown, none above it was refuted" in undecided.sentence


def test_reach_fails_when_nothing_completed() -> None:
    nothing = exact("context", 256, n=3, id="boundary.context", standing=Standing.REFUTED)
    assert isinstance(decided(claim(nothing), "context >= 256"), Fail)
    assert isinstance(decided(claim(nothing), "context >= 255"), Undecided)


# missing is never a pass


@pytest.mark.parametrize("metric", METRICS)
def test_undecided_when_a_metric_was_not_measured(metric: str) -> None:
    ops = (">=", ">") if METRICS[metric].kind is Kind.REACH else (">=", ">", "<=", "<")
    ops = (*ops, "==") if METRICS[metric].kind is Kind.EXACT else ops
    for op, limit in ((op, limit) for op in ops for limit in ("0", "1", "1000000000")):
        verdict = decided(CLAIM, f"{metric} {op} {limit}")
        assert isinstance(verdict, Undecided)
        assert "was not measured" in verdict.sentence


@pytest.mark.parametrize("metric", METRICS)
def test_undecided_with_the_reason_when_a_value_is_unknown(metric: str) -> None:
    at = 4096 if METRICS[metric].by_length else None
    statement = sampled(metric, at=at, standing=Standing.NOT_SHOWN, value=Unknown(reason="the server is silent"))
    verdict = decided(claim(statement), f"{metric} >= 0")
    assert isinstance(verdict, Undecided)


def test_undecided_when_the_statement_itself_is_not_shown() -> None:
    statement = sampled("ttft", 1.0, 1.1, 1.2, standing=Standing.NOT_SHOWN, text="Not proven cold.")
    verdict = decided(claim(statement), "ttft_max@4096 <= 5")
    assert isinstance(verdict, Undecided)
    assert "Not proven cold." in verdict.sentence


def test_undecided_lists_measured_lengths_when_another_was_asked() -> None:
    about = claim(*(sampled("ttft", 1.0, 1.1, at=at) for at in (8000, 512, 4096)))
    verdict = decided(about, "ttft@4k <= 5")
    assert isinstance(verdict, Undecided)
    assert verdict.sentence == "ttft was not measured at 4,000 tokens; measured were 512, 4,096 and 8,000"


def test_warm_samples_do_not_count_when_a_metric_speaks_of_cold_ones() -> None:
    warm = sampled("ttft", 0.1, 0.1, 0.1, conditions={"cache": "warm"})
    assert isinstance(decided(claim(warm), "ttft_max@4096 <= 5"), Undecided)
    ratio = sampled("warm_ttft_ratio", 0.1, 0.11, 0.1, conditions={"cache": "warm"})
    assert isinstance(decided(claim(ratio), "warm_ttft_ratio@4096 <= 0.5"), Pass)


# samples


def test_p95_is_undecided_at_58_and_passes_at_59_when_all_are_fast() -> None:
    # 0.95^58 = 0.0510 > 0.05 >= 0.95^59 = 0.0485
    at_58 = decided(claim(sampled("ttft", *[1.0] * 58)), "ttft_p95@4096 <= 5")
    assert isinstance(at_58, Undecided)
    assert at_58.repeats_needed == 59
    assert "about 59 repeats would decide" in at_58.sentence
    at_59 = decided(claim(sampled("ttft", *[1.0] * 59)), "ttft_p95@4096 <= 5")
    assert isinstance(at_59, Pass)
    assert at_59.sentence == ("ttft p95 at 4,096 tokens is at most 1 s with 0.95 confidence (n = 59); required: <= 5 s")


def test_p95_counts_the_slow_ones_when_it_says_how_many_repeats_are_needed() -> None:
    # One of 59 above the limit: the second largest must be the bound, which takes n = 93 (see tests/stats).
    verdict = decided(claim(sampled("ttft", *[1.0] * 58, 6.0)), "ttft_p95@4096 <= 5")
    assert isinstance(verdict, Undecided)
    assert verdict.repeats_needed == 93


def test_p95_fails_when_too_many_are_slow() -> None:
    # If the p95 were <= 5, two of three above 5 would have probability 3 * 0.05^2 * 0.95 + 0.05^3 = 0.7 %; one of three
    # has 14 %, which is no evidence at 95 %; one of one has 5 %, which is.
    assert isinstance(decided(claim(sampled("ttft", 1.0, 6.0, 7.0)), "ttft_p95@4096 <= 5"), Fail)
    assert isinstance(decided(claim(sampled("ttft", 1.0, 1.0, 7.0)), "ttft_p95@4096 <= 5"), Undecided)
    assert isinstance(decided(claim(sampled("ttft", 7.0)), "ttft_p95@4096 <= 5"), Fail)
    assert isinstance(decided(claim(sampled("ttft", 7.0)), "ttft_p95@4096 <= 5", 0.99), Undecided)


def test_mean_is_decided_by_its_t_bound_when_samples_spread() -> None:
    # mean 2, s = 1, n = 3: 2 ± 2.91999 / sqrt(3) = 0.314 … 3.686
    about = claim(sampled("ttft", 1.0, 2.0, 3.0))
    assert isinstance(decided(about, "ttft@4096 <= 3.7"), Pass)
    undecided = decided(about, "ttft_mean_s@4096 <= 3")
    assert isinstance(undecided, Undecided)
    assert undecided.repeats_needed == 5  # t(0.95, 4) / sqrt(5) = 0.953 < 1
    assert isinstance(decided(about, "ttft_ms@4096 <= 314"), Fail)
    assert isinstance(decided(about, "ttft@4096 >= 0.31"), Pass)


@pytest.mark.parametrize("limit", ["0.001", "1", "1000"])
def test_mean_is_undecided_when_n_is_1(limit: str) -> None:
    verdict = decided(claim(sampled("ttft", 1.0)), f"ttft@4096 <= {limit}")
    assert isinstance(verdict, Undecided)
    assert "n = 1" in verdict.sentence
    assert verdict.repeats_needed == 3


def test_extremes_speak_of_the_samples_taken_when_required() -> None:
    about = claim(sampled("ttft", 1.0, 2.0, 3.0))
    assert isinstance(decided(about, "ttft_max@4096 <= 3"), Pass)
    assert isinstance(decided(about, "ttft_max@4096 < 3"), Fail)
    assert decided(about, "ttft_min@4096 >= 1").sentence == "ttft min at 4,096 tokens is 1 s (n = 3); required: >= 1 s"


def test_every_measured_length_must_hold_when_none_is_named() -> None:
    about = claim(sampled("ttft", 1.0, 1.1, 1.2, at=512), sampled("ttft", 9.0, 9.1, 9.2, at=8000))
    assert isinstance(decided(about, "ttft <= 10"), Pass)
    verdict = decided(about, "ttft <= 5")
    assert isinstance(verdict, Fail)
    assert "at 8,000 tokens" in verdict.sentence


def test_own_interval_decides_the_mean_when_samples_depend_on_each_other() -> None:
    spread = Interval(low=0.02, high=0.04, confidence=0.95, method="Student t")
    about = claim(sampled("itl", *[0.03] * 200, interval=spread))
    assert isinstance(decided(about, "itl_p95@4096 <= 1"), Undecided)
    assert isinstance(decided(about, "itl_max@4096 <= 0.03"), Pass)
    assert isinstance(decided(about, "itl@4096 <= 0.04"), Pass)
    assert isinstance(decided(about, "itl@4096 <= 0.039"), Undecided)
    # A two-sided 95 % interval is a one-sided bound at 97.5 %, and no more than that.
    assert isinstance(decided(about, "itl@4096 <= 0.04", 0.975), Pass)
    assert isinstance(decided(about, "itl@4096 <= 0.04", 0.98), Undecided)


def test_mean_is_undecided_when_neither_samples_nor_interval_were_kept() -> None:
    bare = sampled("ttft", value=measured(1.0), n=3)
    assert isinstance(decided(claim(bare), "ttft@4096 <= 5"), Undecided)
    assert isinstance(decided(claim(bare), "ttft_p95@4096 <= 5"), Undecided)
    spread = Interval(low=0.5, high=1.5, confidence=0.95, method="Student t")
    assert isinstance(decided(claim(replace(bare, interval=spread)), "ttft@4096 <= 5"), Pass)


def test_estimate_is_decided_by_its_own_interval_when_it_has_one() -> None:
    spread = Interval(low=1.2, high=1.6, confidence=0.95, method="Welch t on logs")
    about = claim(sampled("ttft_exponent", value=measured(1.4), n=3, interval=spread))
    assert isinstance(decided(about, "ttft_exponent <= 1.6"), Pass)
    assert isinstance(decided(about, "ttft_exponent <= 1.5"), Undecided)
    assert isinstance(decided(about, "ttft_exponent <= 1.1"), Fail)
    once = claim(sampled("ttft_exponent", value=measured(1.4), n=1))
    assert isinstance(decided(once, "ttft_exponent <= 2"), Undecided)


# ratios, proportions, exact numbers


def test_ratio_is_decided_on_logarithms_when_samples_are_pairs() -> None:
    # ratios 1/4, 1/2, 1: geometric mean 1/2, logs spread by log 2: factor 2^(2.91999 / sqrt(3)) = 2^1.68586 = 3.2173
    about = claim(sampled("warm_ttft_ratio", 0.25, 0.5, 1.0))
    assert isinstance(decided(about, "warm_ttft_ratio@4096 <= 1.61"), Pass)  # 0.5 * 3.2173 = 1.6086
    verdict = decided(about, "warm_ttft_ratio@4096 <= 1.6")
    assert isinstance(verdict, Undecided)
    assert verdict.repeats_needed == 4
    assert isinstance(decided(about, "warm_ttft_ratio@4096 <= 0.155"), Fail)  # 0.5 / 3.2173 = 0.1554
    assert isinstance(decided(about, "warm_ttft_ratio@4096 <= 0"), Fail)


def test_proportion_is_decided_by_clopper_pearson_when_trials_are_few() -> None:
    # 3 of 3: at least 0.05^(1/3) = 0.368; 59 of 59: at least 0.9505
    three = claim(sampled("success_rate", value=measured(1.0), n=3))
    assert isinstance(decided(three, "success_rate@4096 >= 36%"), Pass)
    verdict = decided(three, "success_rate@4096 >= 95%")
    assert isinstance(verdict, Undecided)
    assert verdict.repeats_needed is not None
    assert 59 <= verdict.repeats_needed <= 62
    assert isinstance(decided(claim(sampled("success_rate", value=measured(1.0), n=59)), "success_rate >= 95%"), Pass)
    # 0 of 3: at most 1 - 0.368 = 0.632
    assert isinstance(decided(claim(sampled("success_rate", value=measured(0.0), n=3)), "success_rate >= 64%"), Fail)


def test_number_is_compared_as_it_is_when_exact() -> None:
    about = claim(exact("configured_limit", 8192), exact("faults", 0, n=63))
    assert isinstance(decided(about, "configured_limit == 8Ki"), Pass)
    assert isinstance(decided(about, "configured_limit >= 8193"), Fail)
    assert isinstance(decided(about, "faults == 0"), Pass)
    assert isinstance(decided(claim(exact("faults", 2, n=63)), "faults == 0"), Fail)
    assert isinstance(decided(claim(exact("faults", 2, n=63)), "faults <= 2"), Pass)


# the report


@pytest.mark.parametrize(
    ("requirements", "code"),
    [
        (["context >= 8000"], 0),
        (["context >= 8000", "context >= 8191"], 3),
        (["context >= 8000", "context >= 8191", "context >= 9000"], 1),
        (["ttft <= 5"], 3),
        ([], 0),
    ],
)
def test_exit_code_is_the_worst_verdict_when_several_are_required(requirements: list[str], code: int) -> None:
    report = gate(claim(*reach(8190, 8193)), requirements)
    assert report.exit_code == code
    assert [verdict.requirement for verdict in report.verdicts] == requirements


def test_nothing_is_decided_when_one_requirement_cannot_be_meant() -> None:
    with pytest.raises(UsageError, match="speed"):
        gate(claim(*reach(8190, 8193)), ["context >= 8000", "speed >= 1"])


@pytest.mark.parametrize("confidence", [0.0, 0.49, 1.0, 95.0])
def test_usage_error_when_confidence_makes_no_sense(confidence: float) -> None:
    with pytest.raises(UsageError, match="confidence"):
        gate(CLAIM, ["faults == 0"], confidence)


def test_faults_are_said_aloud_when_nobody_required_their_absence() -> None:
    fault = Finding(id="accounting.usage_wrong", severity=Severity.FAULT, text="Sent 9, usage says 8.", evidence=())
    caution = Finding(id="stream.done_missing", severity=Severity.CAUTION, text="No [DONE].", evidence=())
    about = claim(*reach(8190, None), exact("faults", 1, n=9), findings=(fault, caution))
    report = gate(about, ["context >= 8000"])
    assert report.exit_code == 0
    assert report.warnings == ("fault accounting.usage_wrong: Sent 9, usage says 8.",)
    assert gate(about, ["faults == 0"]).warnings == ()  # the verdict itself says it
    assert gate(about, ["faults == 0"]).exit_code == 1


def test_warning_and_verdicts_are_given_when_the_run_is_unfinished() -> None:
    report = gate(claim(*reach(8190, None), complete=False), ["context >= 8000", "ttft <= 1"])
    assert [type(verdict) for verdict in report.verdicts] == [Pass, Undecided]
    assert any("did not end" in warning for warning in report.warnings)


# laws

SAMPLES = st.lists(st.floats(0.01, 100).map(lambda x: round(x, 2)), min_size=1, max_size=120)
STATS = st.sampled_from(["mean", "p50", "p90", "p95", "p99", "max", "min"])
RANK = {Fail: 0, Undecided: 1, Pass: 2}


def rank(verdict: Verdict) -> int:
    return RANK[type(verdict)]


@given(SAMPLES, STATS, st.floats(0.01, 100), st.floats(0.01, 100), st.sampled_from([0.5, 0.8, 0.95, 0.99]))
def test_verdict_is_never_better_when_the_limit_is_tighter(
    samples: list[float], stat: str, one: float, other: float, confidence: float
) -> None:
    about = claim(sampled("ttft", *samples))
    tight, loose = sorted((round(one, 3), round(other, 3)))
    for op in ("<=", "<"):
        tighter = decided(about, f"ttft_{stat}@4096 {op} {tight}", confidence)
        assert rank(tighter) <= rank(decided(about, f"ttft_{stat}@4096 {op} {loose}", confidence))
    for op in (">=", ">"):
        tighter = decided(about, f"ttft_{stat}@4096 {op} {loose}", confidence)
        assert rank(tighter) <= rank(decided(about, f"ttft_{stat}@4096 {op} {tight}", confidence))


@given(
    SAMPLES,
    STATS,
    st.floats(0.01, 100),
    st.sampled_from(["<=", "<", ">=", ">"]),
    st.floats(0.5, 0.999),
    st.floats(0.5, 0.999),
)
def test_undecided_stays_undecided_when_more_confidence_is_asked(
    samples: list[float], stat: str, limit: float, op: str, one: float, other: float
) -> None:
    about = claim(sampled("ttft", *samples))
    less, more = sorted((one, other))
    text = f"ttft_{stat}@4096 {op} {limit:.3f}"
    surer = decided(about, text, more)
    assert isinstance(surer, Undecided) or type(surer) is type(decided(about, text, less))


@given(SAMPLES, STATS, st.floats(0.01, 100), st.floats(0.5, 0.999))
def test_one_side_passes_when_the_other_fails(samples: list[float], stat: str, limit: float, confidence: float) -> None:
    about = claim(sampled("ttft", *samples))
    below = decided(about, f"ttft_{stat}@4096 < {limit:.3f}", confidence)
    above = decided(about, f"ttft_{stat}@4096 >= {limit:.3f}", confidence)
    if confidence > 0.5:
        assert not (isinstance(below, Pass) and isinstance(above, Pass))
    assert isinstance(below, Pass) == isinstance(above, Fail) or confidence == 0.5


@given(st.integers(17, 10_000), st.integers(1, 10_000), st.integers(1, 30_000), st.integers(1, 30_000))
def test_verdict_is_never_better_when_the_context_is_longer(shown: int, gap: int, one: int, other: int) -> None:
    about = claim(*reach(shown, shown + gap))
    short, long = sorted((one, other))
    for metric in ("context", "prompt_max"):
        for op in (">=", ">"):
            assert rank(decided(about, f"{metric} {op} {long}")) <= rank(decided(about, f"{metric} {op} {short}"))


@given(st.integers(0, 60), st.integers(0, 60), st.floats(0, 1), st.floats(0, 1))
def test_verdict_is_never_better_when_the_success_rate_is_higher(good: int, bad: int, one: float, other: float) -> None:
    n = good + bad + 1
    about = claim(sampled("success_rate", value=measured(good / n), n=n))
    low, high = sorted((one, other))
    assert rank(decided(about, f"success_rate >= {high:.4f}")) <= rank(decided(about, f"success_rate >= {low:.4f}"))


def test_wrong_answers_are_rare_when_simulated() -> None:
    # The median of a unit exponential is log 2 = 0.69315. With the limit there, a pass and a fail are each due to
    # chance in 5 % of rounds at most; 1,000 rounds have a standard error of 0.7 %.
    rng = random.Random("gate")
    rounds = 1_000
    answers = [
        type(decided(claim(sampled("ttft", *[rng.expovariate(1.0) for _ in range(15)])), "ttft_p50@4096 <= 0.69315"))
        for _ in range(rounds)
    ]
    assert answers.count(Pass) <= 0.07 * rounds
    assert answers.count(Fail) <= 0.07 * rounds
    assert answers.count(Undecided) > 0.8 * rounds


@settings(max_examples=60, deadline=None)
@given(SAMPLES, st.sampled_from(["p50", "p90", "p95"]), st.floats(0.01, 100))
def test_promised_repeats_decide_when_the_rest_is_like_the_best(samples: list[float], stat: str, limit: float) -> None:
    verdict = decided(claim(sampled("ttft", *samples)), f"ttft_{stat}@4096 <= {limit:.3f}")
    if not isinstance(verdict, Undecided):
        return
    assert verdict.repeats_needed is not None
    assert verdict.repeats_needed > len(samples)
    rest = verdict.repeats_needed - len(samples)
    answers = [
        decided(claim(sampled("ttft", *samples, *[filler] * rest)), f"ttft_{stat}@4096 <= {limit:.3f}")
        for filler in (0.0001, 10_000.0)
    ]
    assert any(not isinstance(answer, Undecided) for answer in answers)
