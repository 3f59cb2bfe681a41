"""Arrivals and lengths of a background load: Poisson by seed, traces as recorded, lengths scaled to a window."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from longproof.asking.arrivals import SHORT_CHAT, Lengths, one_length, poisson_times, replay
from longproof.asking.background import Background
from longproof.plan.traces import TraceRow, read_trace

S = 1_000_000_000


def row(at_s: float, input_tokens: int, output_tokens: int = 10) -> TraceRow:
    return TraceRow(at_ns=round(at_s * S), input_tokens=input_tokens, output_tokens=output_tokens)


def test_poisson_times_are_those_of_the_seed_when_drawn_again() -> None:
    assert poisson_times(20.0, 10 * S, seed=3) == poisson_times(20.0, 10 * S, seed=3)
    assert poisson_times(20.0, 10 * S, seed=3) != poisson_times(20.0, 10 * S, seed=4)


def test_poisson_counts_have_the_mean_and_spread_of_poisson_when_many_are_drawn() -> None:
    """200 windows of 10 s at 20/s: 200 each; the mean of 200 windows is within 4 × sqrt(200/200) = 4 of it, and the
    variance within 40 % of 200 (its own deviation is about 200 × sqrt(2/200) = 20)."""
    counts = [len(poisson_times(20.0, 10 * S, seed=seed)) for seed in range(200)]
    mean = sum(counts) / len(counts)
    variance = sum((count - mean) ** 2 for count in counts) / len(counts)
    assert mean == pytest.approx(200, abs=4)
    assert variance == pytest.approx(200, rel=0.4)


def test_times_are_in_order_and_inside_when_drawn() -> None:
    times = poisson_times(50.0, 2 * S, seed=0)
    assert list(times) == sorted(times)
    assert times[0] >= 0
    assert times[-1] < 2 * S


def test_lengths_are_scaled_by_one_factor_when_the_longest_is_too_long() -> None:
    """2,735 → 512 is a factor of 0.18720; 207 × 0.1872 = 38.75 and 105 × 0.1872 = 19.66, cut to whole tokens."""
    scaled = SHORT_CHAT.scaled(512)
    assert scaled.input_tokens == (38, 75, 190, 211, 512)
    assert scaled.output_tokens == (19, 18, 74, 74, 14)
    assert scaled.scale == pytest.approx(512 / 2735)
    assert "scaled by 0.187" in scaled.words()


def test_no_prompt_is_shorter_than_can_be_built_when_scaled() -> None:
    assert min(SHORT_CHAT.scaled(512, least_input_tokens=48).input_tokens) == 48


def test_lengths_stay_when_they_fit() -> None:
    assert SHORT_CHAT.scaled(4096) is SHORT_CHAT


def test_classes_come_by_their_weights_when_many_are_drawn() -> None:
    """3 of 4 weigh on the first: 750 of 1,000, within four deviations of sqrt(1000 × 0.75 × 0.25) = 13.7."""
    lengths = Lengths(source="two", input_tokens=(10, 20), output_tokens=(2, 2), weights=(3, 1))
    first = sum(lengths.class_of(i, 7) == 0 for i in range(1000))
    assert first == pytest.approx(750, abs=4 * math.sqrt(1000 * 0.75 * 0.25))


def test_a_trace_keeps_its_times_and_rounds_its_lengths_when_replayed() -> None:
    """Six rows in two classes of three: medians 110 and 1,010."""
    rows = [row(i, tokens) for i, tokens in enumerate((100, 1000, 110, 1010, 120, 1020))]
    found = replay(rows, source="t", for_ns=60 * S, most_classes=2)
    assert found.lengths.input_tokens == (110, 1010)
    assert found.classes == (0, 1, 0, 1, 0, 1)
    assert found.at_ns == tuple(i * S for i in range(6))


def test_one_time_stamp_is_spread_when_several_share_it() -> None:
    """Three at 0 s and one at 3 s: the three leave 1 s apart."""
    found = replay([row(0, 10), row(0, 11), row(0, 12), row(3, 13)], source="t", for_ns=60 * S)
    assert found.at_ns == (0, 1 * S, 2 * S, 3 * S)


def test_times_are_divided_when_a_trace_is_sped_up() -> None:
    found = replay([row(0, 10), row(10, 11)], source="t", for_ns=60 * S, speed_up=5)
    assert found.at_ns == (0, 2 * S)


def test_a_trace_begins_again_when_a_window_is_longer() -> None:
    """Two rows over 1 s; the span is one nanosecond more, so the second round begins there."""
    found = replay([row(0, 10), row(1, 11)], source="t", for_ns=60 * S)
    times = [at for at, _ in found.within(3 * S)]
    assert times == [0, S, S + 1, 2 * S + 1, 2 * S + 2]


def test_both_kinds_of_trace_are_read_when_they_are_replayed(tmp_path: Path) -> None:
    mooncake, azure = tmp_path / "t.jsonl", tmp_path / "t.csv"
    mooncake.write_text('{"timestamp": 0, "input_length": 700, "output_length": 5, "hash_ids": [1, 2]}\n')
    azure.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,300,4\n")
    assert replay(read_trace(mooncake), source="m", for_ns=S).lengths.input_tokens == (700,)
    assert replay(read_trace(azure), source="a", for_ns=S).lengths.output_tokens == (4,)


def test_a_background_is_one_thing_when_made() -> None:
    with pytest.raises(ValueError, match="one of them"):
        Background(lengths=one_length(10, 2))
    with pytest.raises(ValueError, match="one of them"):
        Background(lengths=one_length(10, 2), concurrency=2, rate_per_s=1.0)


def test_an_open_loop_is_the_same_in_every_window_when_asked_again() -> None:
    background = Background(lengths=SHORT_CHAT, rate_per_s=10.0, seed=5)
    assert background.arrivals(5 * S) == background.arrivals(5 * S)
    assert background.arrivals(2 * S) == tuple(item for item in background.arrivals(5 * S) if item[0] < 2 * S)
