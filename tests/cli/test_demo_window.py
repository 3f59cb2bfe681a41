"""What the demo serves and asks when nobody chose."""

from __future__ import annotations

import pytest

from longproof.cli.demo import DEMO_FAMILIES, DEMO_PROBES, DEMO_QUALITY_LENGTHS, UNDER_LOAD_WINDOW_TOKENS, window_for
from longproof.quality.plan import QualityPlan, cost


@pytest.mark.parametrize(
    ("only", "tokens"),
    [(DEMO_PROBES, 3_072), ("accounting, busy", 1_792), ("overload", 1_792), ("speed,quality", 3_072)],
)
def test_the_window_is_smaller_when_probes_under_load_are_chosen(only: str, tokens: int) -> None:
    assert window_for(only) == tokens


def test_questions_fit_into_two_minutes_when_nobody_chose_them() -> None:
    """At 350 tokens a second, what two cores do with the default model: 120 s are 42,000 tokens. It cannot do the third
    family, whose controls settle it: 12 requests of some 180 tokens. What is asked again comes from the cache."""
    two = tuple(DEMO_FAMILIES.split(","))[:2]
    _, tokens = cost(QualityPlan(families=two, lengths=DEMO_QUALITY_LENGTHS, answers=8, warm=0), 16)
    assert tokens + 12 * 180 < 42_000
    assert max(DEMO_QUALITY_LENGTHS) + 256 <= UNDER_LOAD_WINDOW_TOKENS
