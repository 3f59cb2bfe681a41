"""What people write as requirements, and what it means."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longproof.claim.metric import Kind
from longproof.claim.metrics import METRICS
from longproof.claim.requirement import Op, Stat, parse_requirement
from longproof.errors import UsageError


@pytest.mark.parametrize(
    ("text", "metric", "stat", "length", "op", "limit"),
    [
        ("context >= 8000", "context", None, None, Op.AT_LEAST, 8000),
        ("context>=32k", "context", None, None, Op.AT_LEAST, 32_000),
        ("context >= 32Ki", "context", None, None, Op.AT_LEAST, 32_768),
        ("context ≥ 1M", "context", None, None, Op.AT_LEAST, 1_000_000),
        ("context >= 8,192 tokens", "context", None, None, Op.AT_LEAST, 8_192),
        ("prompt_max > 4096", "prompt_max", None, None, Op.ABOVE, 4096),
        ("ttft_p95_s@4096 <= 5", "ttft", Stat.P95, 4096, Op.AT_MOST, 5.0),
        ("ttft_p50_ms@4Ki <= 800", "ttft", Stat.P50, 4096, Op.AT_MOST, 0.8),
        ("ttft@4k <= 800ms", "ttft", Stat.MEAN, 4000, Op.AT_MOST, 0.8),
        ("ttft_p95@8k<2min", "ttft", Stat.P95, 8000, Op.BELOW, 120.0),
        ("TTFT_MAX <= 5s", "ttft", Stat.MAX, None, Op.AT_MOST, 5.0),
        ("ttft_min_ms >= 1", "ttft", Stat.MIN, None, Op.AT_LEAST, 0.001),
        ("tpot_mean_s@8k <= 0.05", "tpot", Stat.MEAN, 8000, Op.AT_MOST, 0.05),
        ("prefill_rate_mean@4096 >= 200", "prefill_rate", Stat.MEAN, 4096, Op.AT_LEAST, 200),
        ("prefill_rate_p50_tok_s@4096 >= 200 tok/s", "prefill_rate", Stat.P50, 4096, Op.AT_LEAST, 200),
        ("faults == 0", "faults", None, None, Op.EQUAL, 0),
        ("faults = 0", "faults", None, None, Op.EQUAL, 0),
        ("warm_ttft_ratio@4096 <= 0.5", "warm_ttft_ratio", None, 4096, Op.AT_MOST, 0.5),
        ("warm_ttft_ratio@4096 <= 50%", "warm_ttft_ratio", None, 4096, Op.AT_MOST, 0.5),
        ("success_rate@512 >= 99.9 %", "success_rate", None, 512, Op.AT_LEAST, 0.999),
        ("e2e_p99@1Mi <= 1h", "e2e", Stat.P99, 1_048_576, Op.AT_MOST, 3600.0),
    ],
)
def test_requirement_means_what_it_says_when_well_formed(
    text: str, metric: str, stat: Stat | None, length: int | None, op: Op, limit: float
) -> None:
    found = parse_requirement(text)
    assert (found.metric.id, found.stat, found.length_tokens, found.op, found.limit) == (
        metric,
        stat,
        length,
        op,
        limit,
    )
    assert found.confidence is None
    assert found.text == text.strip()


@pytest.mark.parametrize(("tail", "confidence"), [("@ 0.99", 0.99), ("@0.5", 0.5), ("@ 99%", 0.99), ("@ .9", 0.9)])
def test_confidence_is_read_when_it_stands_behind_the_number(tail: str, confidence: float) -> None:
    assert parse_requirement(f"ttft_p95@4096 <= 5 {tail}").confidence == confidence


def test_millisecond_and_second_limits_are_equal_when_they_say_the_same() -> None:
    # 2300 * 0.001 is 2.3000000000000003 in floats
    assert parse_requirement("ttft <= 2300ms").limit == parse_requirement("ttft <= 2.3").limit == 2.3


@given(st.integers(1, 10**9))
def test_milliseconds_are_a_thousandth_when_any_number(number: int) -> None:
    assert parse_requirement(f"ttft_ms <= {number}").limit == number / 1000


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("context", "is not a requirement"),
        ("", "is not a requirement"),
        ("context >= ", "is not a requirement"),
        ("context >= eight", "is not a requirement"),
        ("8000 <= context", "is not a requirement"),
        ("context != 8000", "is not a requirement"),
        ("ttft_p95 <= 5; faults == 0", "is not a requirement"),
        ("latency <= 5", "names no metric: 'latency'"),
        ("contexts >= 5", "names no metric: 'contexts'"),
        ("context_p95 >= 8000", "asks for the p95 of context"),
        ("success_rate_mean >= 0.5", "asks for the mean of success_rate"),
        ("ttft_p42 <= 5", "has 'p42' behind ttft"),
        ("ttft_s_p95 <= 5", "has 's_p95' behind ttft"),
        ("ttft_tokens <= 5", "has 'tokens' behind ttft"),
        ("context@4096 >= 8000", "names a length"),
        ("ttft@4.5 <= 5", "not a whole number"),
        ("ttft@long <= 5", "not a token count"),
        ("context <= 8000", "limits context from above"),
        ("context == 8192", "limits context from above"),
        ("ttft == 5", "asks ttft to equal a number"),
        ("ttft_ms <= 5s", "two units, ms and s"),
        ("ttft <= 5k", "has the unit 'k'"),
        ("ttft <= 5 tok/s", "has the unit 'tok/s'"),
        ("faults <= 5%", "has the unit '%'"),
        ("context >= -5", "not a token count"),
        ("context >= 0.5", "not a whole number"),
        ("ttft <= 1.2.3", "which is not a number"),
        ("ttft <= 5 @ 0.4", "a confidence of 0.4 makes no sense"),
        ("ttft <= 5 @ 1", "a confidence of 1 makes no sense"),
        ("ttft <= 5 @ 100%", "a confidence of 1 makes no sense"),
        ("ttft <= 5 @ 95", "a confidence of 95 makes no sense"),
    ],
)
def test_usage_error_says_why_when_a_requirement_cannot_be_meant(text: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_requirement(text)
    assert words in caught.value.problem
    assert caught.value.advice


def test_advice_lists_all_metrics_when_one_is_unknown() -> None:
    with pytest.raises(UsageError) as caught:
        parse_requirement("speed >= 9")
    assert all(name in caught.value.advice for name in METRICS)


@pytest.mark.parametrize("metric", METRICS.values(), ids=lambda metric: metric.id)
def test_every_metric_can_be_required_when_written_plainly(metric: object) -> None:
    from longproof.claim.metric import Metric

    assert isinstance(metric, Metric)
    found = parse_requirement(f"{metric.id} >= 1")
    assert found.metric is metric
    assert found.stat is (Stat.MEAN if metric.kind in (Kind.SAMPLES, Kind.DEPENDENT) else None)
    assert metric.definition.endswith(".")
    assert metric.undefined
    assert metric.formula


@given(st.text(max_size=40))
def test_nothing_but_usage_error_when_any_text(text: str) -> None:
    with suppress(UsageError):
        assert parse_requirement(text).text == text.strip()


@given(
    st.from_regex(
        r"(ttft|context|faults)(_p95)?(_s|_ms)?(@[0-9a-zA-Z.]{0,6})? ?[<>=]{1,2} ?[0-9a-zA-Z.,%/-]{0,9}", fullmatch=True
    )
)
def test_nothing_but_usage_error_when_nearly_a_requirement(text: str) -> None:
    with suppress(UsageError):
        assert parse_requirement(text).text == text.strip()
