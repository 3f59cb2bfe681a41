"""Two accounts of one deployment made one: what the server tells, and what whoever started it knows."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from longproof.domain.deployment import Deployment
from longproof.domain.measure import Measured, Provenance, Reading, Unknown, reported

T = TypeVar("T")

_STRENGTH = {provenance: rank for rank, provenance in enumerate(Provenance)}
"""Provenance declares its members strongest first."""


def answered(value: T | None, source: str) -> Reading[T]:
    """What a server's answer says, or that it does not say it."""
    return Unknown(reason=f"{source} is missing") if value is None else reported(value, source)


def joined(told: Deployment, known: Deployment) -> Deployment:
    """Field by field the stronger reading (measured, reported, derived, given, assumed; then `told`).

    Where both are known and differ, the weaker one is kept in `other` as ``NAME (PROVENANCE)``: the report shows both.
    """
    other = dict(known.other)
    other.update({name: _stronger(reading, known.other.get(name)) for name, reading in told.other.items()})
    rivals = dict(known.readings())
    fields: dict[str, object] = {}
    for name, reading in told.readings():
        if name.startswith("other."):
            continue
        rival = rivals[name]
        fields[name] = _stronger(reading, rival)
        if isinstance(reading, Measured) and isinstance(rival, Measured) and reading.value != rival.value:
            weaker = rival if fields[name] is reading else reading
            other[f"{name} ({weaker.provenance})"] = Measured(
                value=str(weaker.value), provenance=weaker.provenance, source=weaker.source
            )
    return replace(told, other=other, **fields)  # pyright: ignore[reportArgumentType] - fields keep their own types


def _stronger(one: Reading[T], two: Reading[T] | None) -> Reading[T]:
    if not isinstance(two, Measured):
        return one
    if not isinstance(one, Measured):
        return two
    return two if _STRENGTH[two.provenance] < _STRENGTH[one.provenance] else one
