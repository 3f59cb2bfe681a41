"""Successes in two groups, and in pairs: exact tests that need no large samples.

Sources: Fisher 1934 (hypergeometric); McNemar 1947 in its exact form, a sign test of the pairs that differ.
"""

from __future__ import annotations

import math


def fisher_higher(successes: int, n: int, other_successes: int, other_n: int) -> float:
    """One-sided p-value of "the first group succeeds more often". Raises ValueError for impossible counts."""
    for found, of in ((successes, n), (other_successes, other_n)):
        if not 0 <= found <= of:
            raise ValueError(f"{found} successes of {of} trials")
    all_successes = successes + other_successes
    most = min(all_successes, n)
    ways = [
        math.comb(n, k) * math.comb(other_n, all_successes - k)
        for k in range(successes, most + 1)
        if all_successes - k <= other_n
    ]
    return sum(ways) / math.comb(n + other_n, all_successes)


def mcnemar(only_first: int, only_second: int) -> float:
    """Two-sided p-value of "in pairs one side succeeds as often as the other", from the pairs in which exactly one side
    did. 1 without such pairs. Raises ValueError for negative counts."""
    if only_first < 0 or only_second < 0:
        raise ValueError(f"{only_first} and {only_second} pairs")
    n = only_first + only_second
    tail = sum(math.comb(n, k) for k in range(min(only_first, only_second) + 1))
    return min(1.0, 2 * tail / 2**n)
