"""What a lie is: a value that says what the server does wrong, and to which requests."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, TypeVar


@dataclass(frozen=True, slots=True, kw_only=True)
class Lie:
    """What all lies share: to which requests they apply."""

    name: ClassVar[str] = ""
    above_tokens: int = 0
    skip: int = 0
    times: int | None = None


LieT = TypeVar("LieT", bound=Lie)


def find(lies: Iterable[Lie], kind: type[LieT]) -> LieT | None:
    """The first lie of a kind, or None."""
    return next((lie for lie in lies if isinstance(lie, kind)), None)
