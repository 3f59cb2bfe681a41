"""How numbers are written, once for the card and the page: a unit, sensible digits, the interval in brackets and n
beside it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from longproof.claim.metrics import METRICS, Kind
from longproof.claim.statements import Statement
from longproof.domain.measure import Interval, Measured
from longproof.domain.units import format_tokens

DASH = "–"
"""Stands in a table for a number that nobody measured; the reason stands below the table."""
_MINUS = "−"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How one unit is written: a number is divided by `divisor`, given `digits` decimals and followed by `suffix`."""

    divisor: float
    decimals: int
    suffix: str

    def bare(self, value: float) -> str:
        """The number alone, in this scale."""
        return f"{value / self.divisor:,.{self.decimals}f}".replace("-", _MINUS)


def scale_for(value: float, unit: str) -> Scale:
    """The scale in which `value` has about three significant digits. Counts (tokens, requests) are always written in
    full."""
    if unit == "s":
        return _seconds(value)
    if unit == "ms":
        seconds = _seconds(value / 1e3)
        return Scale(divisor=seconds.divisor * 1e3, decimals=seconds.decimals, suffix=seconds.suffix)
    if unit == "fraction":
        return Scale(divisor=0.01, decimals=min(1, _decimals(value * 100)), suffix=" %")
    if unit in ("ratio", "power", "tok/s"):
        return Scale(divisor=1, decimals=_decimals(value), suffix=" tok/s" if unit == "tok/s" else "")
    singular = unit[:-1] if value == 1 and unit.endswith("s") and "/" not in unit else unit
    decimals = 0 if float(value).is_integer() else _decimals(value)
    return Scale(divisor=1, decimals=decimals, suffix=f" {singular}" if unit else "")


def number(value: float, unit: str) -> str:
    """A value with its unit: ``1.28 s``, ``812 ms``, ``8,192 tokens``, ``386 tok/s``, ``0.041``."""
    scale = scale_for(value, unit)
    return f"{scale.bare(value)}{scale.suffix}"


def interval(found: Interval, unit: str, *, around: float) -> str:
    """``[1.21, 1.35]`` in the scale that `around` (the value it belongs to) is written in."""
    scale = scale_for(around, unit)
    return f"[{scale.bare(found.low)}, {scale.bare(found.high)}]"


def tick(value: float, unit: str) -> str:
    """A round number at an axis, without trailing zeros: ``30 s``, ``100 ms``, ``400``, ``50 %``, ``2 GiB``. Rates
    name their unit above the axis."""
    if value == 0:
        return "0"
    if unit == "fraction":
        return f"{100 * value:,.4g} %"
    if unit == "GiB":
        return f"{value:,.4g} GiB"
    if unit != "s":
        return f"{value:,.6g}".replace("-", _MINUS)
    if value < 0.9995e-3:
        return f"{value * 1e6:,.4g} µs"
    return f"{value * 1e3:,.4g} ms" if value < 0.9995 else f"{value:,.6g} s"


def sample_size(n: int) -> str:
    """``n = 3``, with spaces that do not break."""
    return f"n\u00a0=\u00a0{n:,}"  # not broken over lines


def value_text(statement: Statement) -> str:
    """The statement's value with unit, or a dash when it is unknown."""
    if not isinstance(statement.value, Measured):
        return DASH
    return number(statement.value.value, statement.unit)


def spread_text(statement: Statement) -> str:
    """The statement's interval ``[low, high]``, or ``n = 1`` where there is a value and no interval can be; else
    nothing."""
    if not isinstance(statement.value, Measured):
        return ""
    if statement.interval is None:
        exact = statement.metric in METRICS and METRICS[statement.metric].kind is Kind.EXACT
        return sample_size(statement.n) if statement.n == 1 and not exact else ""
    return interval(statement.interval, statement.unit, around=statement.value.value)


def percent(part: float) -> str:
    """A fraction as per cent with two significant digits: ``0.02 %``, ``37 %``."""
    shown = part * 100
    if shown == 0:
        return "0 %"
    return f"{shown:.{max(0, 1 - math.floor(math.log10(abs(shown))))}f} %"


def tokens(count: int | float) -> str:
    """``8,192``."""
    return format_tokens(count)


def plural(count: int, one: str, many: str | None = None) -> str:
    """``1 request``, ``3 requests``."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def short_ns(ns: int | float) -> str:
    """A duration with three significant digits: ``812 ms``, ``1.23 s``."""
    return number(ns / 1e9, "s")


def _seconds(value: float) -> Scale:
    size = abs(value)
    if size >= 0.9995:
        return Scale(divisor=1, decimals=_decimals(size), suffix=" s")
    if size >= 0.9995e-3 or size == 0:
        return Scale(divisor=1e-3, decimals=_decimals(size * 1e3), suffix=" ms")
    return Scale(divisor=1e-6, decimals=_decimals(size * 1e6), suffix=" µs")


def _decimals(value: float) -> int:
    """Decimals that leave three significant digits, none for numbers of three digits and more."""
    size = abs(value)
    if size == 0 or not math.isfinite(size):
        return 0
    return min(6, max(0, 2 - math.floor(math.log10(float(f"{size:.3g}")))))  # 9.996 is written 10.0, not 10.00


Formatter = Callable[[float], str]
"""A number → its text, as an axis needs it."""
