"""Amounts and lengths in the words of a verdict."""

from __future__ import annotations

from collections.abc import Sequence

from longproof.claim.requirement import Requirement
from longproof.claim.statements import Statement
from longproof.domain.units import format_ns, format_tokens


def amount(value: float, unit: str) -> str:
    """A value with its unit, as people read it: ``812 ms``, ``8,192 tokens``, ``0.983``."""
    if unit == "s":
        return format_ns(value * 1e9)
    if unit == "tokens":
        return f"{format_tokens(value)} tokens"
    if unit in ("ratio", "fraction"):
        return f"{value:.4g}"
    return f"{value:,.4g} {unit}"


def limit_words(requirement: Requirement) -> str:
    """The requirement's right side: ``<= 5 s``."""
    return f"{requirement.op} {amount(requirement.limit, requirement.metric.unit)}"


def at_length(statement: Statement) -> str:
    """`` at 4,096 tokens``, or nothing for what is not tied to a length."""
    return "" if statement.at_tokens is None else f" at {format_tokens(statement.at_tokens)} tokens"


def length_list(lengths: Sequence[int]) -> str:
    """``512, 1,024 and 4,096``"""
    words = [format_tokens(length) for length in lengths]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def many(count: int, one: str) -> str:
    """``1 preemption``, ``1,200 preemptions``"""
    return f"{format_tokens(count)} {one}" if count == 1 else f"{format_tokens(count)} {one}s"
