"""How numbers are written."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longproof.claim.statements import Standing, Statement
from longproof.domain.measure import Interval, Measured, Provenance, Unknown
from longproof.report.numbers import (
    DASH,
    interval,
    number,
    percent,
    plural,
    sample_size,
    short_ns,
    spread_text,
    tick,
    value_text,
)


@pytest.mark.parametrize(
    ("value", "unit", "written"),
    [
        (1.2345, "s", "1.23 s"),
        (31.66, "s", "31.7 s"),
        (421.4, "s", "421 s"),
        (0.0284, "s", "28.4 ms"),
        (0.9999, "s", "1.00 s"),
        (9.996, "s", "10.0 s"),
        (0.00001234, "s", "12.3 µs"),
        (0, "s", "0 ms"),
        (-0.005, "s", "−5.00 ms"),
        (8192, "tokens", "8,192 tokens"),
        (1, "tokens", "1 token"),
        (386.4, "tok/s", "386 tok/s"),
        (21_716, "tok/s", "21,716 tok/s"),
        (0.0413, "ratio", "0.0413"),
        (1.237, "power", "1.24"),
        (0.875, "fraction", "87.5 %"),
        (1, "fraction", "100 %"),
        (3, "places", "3 places"),
    ],
)
def test_number_has_unit_and_three_digits_when_written(value: float, unit: str, written: str) -> None:
    assert number(value, unit) == written


@given(st.floats(min_value=1e-6, max_value=1e4))
def test_number_stays_within_half_a_percent_when_it_is_a_time(seconds: float) -> None:
    text, unit = number(seconds, "s").replace(",", "").split()
    read = float(text) * {"s": 1, "ms": 1e-3, "µs": 1e-6}[unit]
    assert math.isclose(read, seconds, rel_tol=0.0051)  # three digits: at most half of the last, 0.5 in 100


def test_interval_keeps_the_scale_of_its_value_when_bounds_are_small() -> None:
    found = Interval(low=0.95, high=1.4512, confidence=0.95, method="Student t")
    assert interval(found, "s", around=1.2) == "[0.95, 1.45]"  # in seconds as 1.20 s is, not 950 ms


def test_interval_is_in_per_cent_when_the_unit_is_a_fraction() -> None:
    assert interval(Interval(low=0.48, high=1, confidence=0.95, method="x"), "fraction", around=1) == "[48, 100]"


@pytest.mark.parametrize(("part", "written"), [(0.0002, "0.020 %"), (0.046, "4.6 %"), (0.37, "37 %"), (0, "0 %")])
def test_percent_has_two_digits_when_small(part: float, written: str) -> None:
    assert percent(part) == written


@pytest.mark.parametrize(
    ("value", "unit", "written"),
    [
        (30, "s", "30 s"),
        (0.1, "s", "100 ms"),
        (1.5, "s", "1.5 s"),
        (400, "tok/s", "400"),
        (0, "s", "0"),
        (5e-5, "s", "50 µs"),
        (0.5, "fraction", "50 %"),
        (0.015, "fraction", "1.5 %"),
        (2, "GiB", "2 GiB"),
    ],
)
def test_tick_has_no_trailing_zeros_when_round(value: float, unit: str, written: str) -> None:
    assert tick(value, unit) == written


def test_plural_names_one_as_one_when_counting() -> None:
    assert (plural(1, "request"), plural(2, "request"), plural(1_200, "is", "are")) == (
        "1 request",
        "2 requests",
        "1,200 are",
    )


def test_sample_size_does_not_break_when_lines_wrap() -> None:
    assert sample_size(3).split(" ") == ["n\u00a0=\u00a03"]


def test_short_ns_is_in_ms_when_below_a_second() -> None:
    assert short_ns(812_000_000) == "812 ms"


def test_value_is_a_dash_when_unknown() -> None:
    assert value_text(_statement("ttft", Unknown(reason="n=0"), n=0)) == DASH


def test_spread_says_n_is_1_when_a_sample_has_no_interval() -> None:
    assert spread_text(_statement("ttft", _measured(1.0), n=1)) == sample_size(1)


def test_spread_is_empty_when_the_number_is_only_reported() -> None:
    assert spread_text(_statement("configured_limit", _measured(8192.0), n=1)) == ""


def _measured(value: float) -> Measured[float]:
    return Measured(value=value, provenance=Provenance.MEASURED, source="test")


def _statement(metric: str, value: Measured[float] | Unknown, *, n: int) -> Statement:
    return Statement(
        id=f"test.{metric}", metric=metric, text="", standing=Standing.SHOWN, unit="s", value=value, n=n, at_tokens=1
    )


def test_rate_keeps_its_second_when_it_is_one() -> None:
    assert number(1, "req/s") == "1 req/s"
    assert number(1, "tokens") == "1 token"
