"""A step's parameters, read back from the protocol with their types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

Value: TypeAlias = int | float | str | bool | list[int]
Values: TypeAlias = Mapping[str, Value]


def int_of(values: Values, name: str) -> int:
    """A whole number. TypeError where it is none: our bug."""
    value = values[name]
    if not isinstance(value, int):
        raise TypeError(f"parameter {name} is {value!r}, not a number")
    return value


def int_or_none(values: Values, name: str) -> int | None:
    """A whole number, or None where it is left out."""
    return int_of(values, name) if name in values else None


def float_of(values: Values, name: str) -> float:
    """A number."""
    value = values[name]
    if not isinstance(value, (int, float)):
        raise TypeError(f"parameter {name} is {value!r}, not a number")
    return float(value)


def float_or_none(values: Values, name: str) -> float | None:
    """A number, or None where it is left out."""
    return float_of(values, name) if name in values else None


def text_of(values: Values, name: str) -> str:
    """A text."""
    value = values[name]
    if not isinstance(value, str):
        raise TypeError(f"parameter {name} is {value!r}, not a text")
    return value


def text_or_none(values: Values, name: str) -> str | None:
    """A text, or None where it is left out."""
    return text_of(values, name) if name in values else None


def ints_of(values: Values, name: str) -> tuple[int, ...]:
    """Whole numbers."""
    value = values[name]
    if not isinstance(value, list):
        raise TypeError(f"parameter {name} is {value!r}, not a list")
    return tuple(value)
