"""Values that are made by the million."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest

from longproof.frozen import frozen


@frozen(kw_only=True)
class Length:
    tokens: int
    exact: bool = True


@frozen()
class Pair:
    first: int
    second: int


def test_equal_values_are_equal_and_found_by_their_hash_when_made_twice() -> None:
    assert Length(tokens=3) == Length(tokens=3, exact=True)
    assert Length(tokens=3) != Length(tokens=3, exact=False)
    assert len({Length(tokens=3), Length(tokens=3), Length(tokens=4)}) == 2


def test_a_changed_copy_leaves_the_value_as_it_is_when_replaced() -> None:
    length = Length(tokens=3)
    assert replace(length, tokens=4) == Length(tokens=4)
    assert length.tokens == 3


def test_fields_are_given_by_name_only_where_that_is_asked_for() -> None:
    assert Pair(1, 2) == Pair(first=1, second=2)
    with pytest.raises(TypeError):
        Length(3)  # type: ignore[misc]


def test_nothing_can_be_added_to_a_value() -> None:
    with pytest.raises(AttributeError):
        Pair(1, 2).third = 3  # type: ignore[attr-defined]


def test_a_value_survives_pickling() -> None:
    assert pickle.loads(pickle.dumps(Length(tokens=3))) == Length(tokens=3)
