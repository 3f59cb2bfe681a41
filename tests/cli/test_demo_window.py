"""The window that the demo serves when nobody chose one."""

from __future__ import annotations

import pytest

from longproof.cli.demo import DEMO_PROBES, window_for


@pytest.mark.parametrize(
    ("only", "tokens"),
    [(DEMO_PROBES, 3_072), ("accounting, busy", 1_792), ("overload", 1_792), ("speed,quality", 3_072)],
)
def test_the_window_is_smaller_when_probes_under_load_are_chosen(only: str, tokens: int) -> None:
    assert window_for(only) == tokens
