"""Several tests at once: what level each p-value has when the chance of any false alarm among all of them counts."""

from __future__ import annotations

from collections.abc import Sequence


def holm(p_values: Sequence[float]) -> tuple[float, ...]:
    """Adjusted p-values (Holm 1979), in the order given: those at most alpha may be called significant, and the chance
    that any of them is called so by chance alone is at most alpha, however the tests depend on each other."""
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    adjusted = [0.0] * len(p_values)
    highest = 0.0
    for rank, index in enumerate(order):
        highest = max(highest, min(1.0, p_values[index] * (len(p_values) - rank)))
        adjusted[index] = highest
    return tuple(adjusted)
