"""How values are written in a ``fleet.toml``: tokens, durations, sizes, and numbers that must not be 0."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from pydantic import BeforeValidator, Field

from longproof.domain.units import parse_duration_ns, parse_tokens
from longproof.errors import UsageError
from longproof.gateway.byte_size import parse_bytes


def _written(parse: Callable[[str], int]) -> Callable[[object], object]:
    """A reader of what people write; what it refuses becomes one of pydantic's errors, which know the place."""

    def read(value: object) -> object:
        if not isinstance(value, str):
            return value
        try:
            return parse(value)
        except UsageError as problem:
            raise ValueError(f"{problem.problem}; {problem.advice}") from None

    return read


def _with_unit(value: object) -> object:
    if isinstance(value, str):
        return value
    raise ValueError('a duration is written with its unit, like "30s"')


Tokens = Annotated[int, BeforeValidator(_written(parse_tokens)), Field(ge=0)]
SomeTokens = Annotated[Tokens, Field(ge=1)]
Duration = Annotated[int, BeforeValidator(_written(parse_duration_ns)), BeforeValidator(_with_unit)]
"""Nanoseconds, written with a unit."""
Patience = Annotated[Duration, Field(gt=0)]
"""How long something may take: nothing is done in no time."""
Bytes = Annotated[int, BeforeValidator(_written(parse_bytes)), Field(ge=1)]
Count = Annotated[int, Field(ge=1)]
Amount = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1)]
