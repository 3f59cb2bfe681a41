"""Counts over time: is one rate lower than another, beyond what chance makes of counts?"""

from __future__ import annotations

from scipy.special import bdtr, gammaincinv

from longproof.domain.measure import Interval


def rate_interval(count: int, time: float, confidence: float = 0.95) -> Interval:
    """The exact interval of a Poisson rate (Garwood 1936), per unit of `time`. Events that keep a distance from each
    other, as a closed loop's do, vary less: the interval is then too wide, never too narrow. ValueError for no time."""
    if count < 0 or time <= 0:
        raise ValueError(f"{count} events in {time}")
    tail = (1 - confidence) / 2
    low = 0.0 if count == 0 else float(gammaincinv(count, tail))
    return Interval(
        low=low / time,
        high=float(gammaincinv(count + 1, 1 - tail)) / time,
        confidence=confidence,
        method="Garwood",
    )


def p_not_below(count: int, time: float, of_count: int, of_time: float, share: float = 1.0) -> float:
    """The chance of so few events in `time` (or fewer), were their rate at least `share` of the other's.

    Given the sum of both counts, one of them is binomial (Przyborowski and Wilenski 1940). 1 without any events.
    """
    if min(time, of_time) <= 0 or share <= 0:
        raise ValueError(f"times {time} and {of_time}, share {share}")
    total = count + of_count
    if total == 0:
        return 1.0
    expected = share * time / (share * time + of_time)
    return float(bdtr(count, total, expected))
