"""Reading JSON that somebody else wrote: decode without surprises, take a field as what it should be or get None."""

from __future__ import annotations

import json
import math
from typing import TypeAlias, cast

import orjson

JsonObject: TypeAlias = dict[str, object]

_LARGEST_INT = 2**53
"""Whole numbers beyond this are not exact in JSON, and no count of tokens is that large."""


def decode(data: bytes | str) -> object:
    """JSON text → value. Raises ValueError, and nothing else, for what is not JSON.

    orjson first; the standard library second, because servers written in Python send NaN for a logprob and lone
    surrogates for half an emoji, both of which orjson rejects.
    """
    try:
        return orjson.loads(data)
    except ValueError:
        pass
    try:
        return json.loads(data)
    except RecursionError as problem:
        raise ValueError("JSON nested too deeply") from problem


def as_object(value: object) -> JsonObject | None:
    """A JSON object, or None."""
    return cast("JsonObject", value) if isinstance(value, dict) else None


def as_list(value: object) -> list[object] | None:
    """A JSON array, or None."""
    return cast("list[object]", value) if isinstance(value, list) else None


def as_text(value: object) -> str | None:
    """A JSON string that can be stored as UTF-8 (lone surrogates become U+FFFD), or None."""
    if not isinstance(value, str):
        return None
    if value.isascii():
        return value
    try:
        value.encode()
    except UnicodeEncodeError:
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return value


def as_int(value: object) -> int | None:
    """A whole number within ±2^53 (``12.0`` counts, ``true`` does not), or None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if isinstance(value, float) and not value.is_integer():
        return None
    return int(value) if abs(value) <= _LARGEST_INT else None


def as_float(value: object) -> float | None:
    """A finite number, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def as_bool(value: object) -> bool | None:
    """true or false, or None."""
    return value if isinstance(value, bool) else None
