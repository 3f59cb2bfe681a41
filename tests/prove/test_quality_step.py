"""What is asked of a window, and what is refused before anything is."""

from __future__ import annotations

import pytest

from longproof.errors import UsageError
from longproof.prove.options import ProveOptions, QualityOptions
from longproof.prove.quality_step import quality_step
from longproof.quality.plan import QualityPlan


def step(served_tokens: int = 8_192, **quality: object) -> dict[str, object]:
    chosen = ProveOptions(quality=QualityOptions(certify=True, **quality))  # type: ignore[arg-type]
    found = quality_step(served_tokens, chosen)
    assert not isinstance(found, str)
    return dict(found.parameters)


@pytest.mark.parametrize(
    ("family", "fewest"),
    [
        ("literal", 25),  # the bar is 0.85
        ("multi-key-8", 29),  # 1/8 by chance: 0.85 + 0.15/8 = 0.869
        ("code-definition", 38),  # one of three: 0.9
        ("absent", 52),  # yes or no: 0.925
    ],
)
def test_too_few_answers_are_refused_when_chance_raises_the_bar(family: str, fewest: int) -> None:
    assert step(families=(family,), answers=fewest)["answers"] == fewest
    with pytest.raises(UsageError, match=f"it takes {fewest} for {family}"):
        step(families=(family,), answers=fewest - 1)


def test_the_bar_is_that_of_the_shortest_text_when_keys_grow_with_it() -> None:
    """A guess among 2 keys at 128 tokens is right by half, the bar 0.925 as for yes or no; among 32 at 2,048 by one
    part in 32, the bar 0.8547, and 25 answers of 25 are enough."""
    assert step(families=("multi-key-dense",), lengths=(128, 2_048))["answers"] == 60
    with pytest.raises(UsageError, match="it takes 52 for multi-key-dense"):
        step(families=("multi-key-dense",), lengths=(128, 2_048), answers=51)
    assert step(families=("multi-key-dense",), lengths=(2_048, 4_096), answers=26)["answers"] == 26


def test_the_hardest_family_decides_when_several_are_asked() -> None:
    with pytest.raises(UsageError, match="it takes 29 for multi-key-8, 52 for absent") as refused:
        step(families=("literal", "multi-key-8", "absent"), answers=25)
    assert "--answers 52" in (refused.value.advice or "")


def test_as_many_answers_as_it_takes_are_asked_when_nobody_says() -> None:
    assert step(families=("absent",))["answers"] == 60
    assert step(families=("absent",), threshold=0.9)["answers"] == 79  # the bar is 0.95


def test_code_is_asked_where_it_has_room_when_there_is_such_a_length() -> None:
    plan = QualityPlan(families=("literal", "call-trace"), lengths=(256, 1_024, 4_096), answers=8)
    assert plan.lengths_of("prose") == (256, 1_024, 4_096)
    assert plan.lengths_of("code") == plan.design(0.25, "code").lengths_tokens == (1_024, 4_096)
    assert QualityPlan(families=("call-trace",), lengths=(600, 800), answers=8).lengths_of("code") == (600, 800)
