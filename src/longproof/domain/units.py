"""Units: parsing what people type and writing what people read.

``k`` and ``M`` are decimal (8k = 8,000), ``Ki`` and ``Mi`` binary (8Ki = 8,192). Time inside is integer nanoseconds.
"""

from __future__ import annotations

import re
from fractions import Fraction

from longproof.errors import UsageError

NS_PER_S = 1_000_000_000
NS_PER_MS = 1_000_000
"""For those who may not see a clock: policies, claims. `longproof.clock` has the same."""
_COUNT = re.compile(r"^\s*([0-9][0-9_,]{0,999}(?:\.[0-9]{1,32})?)\s*(k|ki|m|mi)?\s*$", re.IGNORECASE)
_FACTOR = {None: 1, "k": 1_000, "ki": 1_024, "m": 1_000_000, "mi": 1_048_576}
_MOST_TOKENS = 10**12
"""Beyond any window or pool; larger numbers are slips of the keyboard."""
_DURATION = re.compile(r"^\s*([0-9]{1,12}(?:\.[0-9]{1,32})?)\s*(ms|s|m|min|h)\s*$", re.IGNORECASE)
_NS = {"ms": 1_000_000, "s": 1_000_000_000, "m": 60_000_000_000, "min": 60_000_000_000, "h": 3_600_000_000_000}


def parse_tokens(text: str) -> int:
    """``8192``, ``8_192``, ``8k`` (8,000), ``8Ki`` (8,192), ``1M`` → tokens. Raises UsageError for anything else."""
    found = _COUNT.match(text)
    if found is None:
        raise UsageError(
            f"'{text}' is not a token count",
            advice="write 8192, 8k (8,000), 8Ki (8,192) or 1M (1,000,000)",
        )
    suffix = found.group(2)
    number = found.group(1).replace("_", "").replace(",", "")
    value = Fraction(number) * _FACTOR[suffix.lower() if suffix else None]
    if value.denominator != 1:
        raise UsageError(
            f"'{text}' is {float(value)} tokens, not a whole number", advice="write a whole number of tokens"
        )
    if value > _MOST_TOKENS:
        raise UsageError(f"'{text}' is more tokens than can be meant", advice=f"give at most {_MOST_TOKENS:,}")
    return int(value)


def parse_duration_ns(text: str) -> int:
    """``90s``, ``5m``, ``1.5h``, ``200ms`` → nanoseconds. Raises UsageError for anything else."""
    found = _DURATION.match(text)
    if found is None:
        raise UsageError(f"'{text}' is not a duration", advice="write a number and a unit: 90s, 5m, 1.5h")
    return int(float(found.group(1)) * _NS[found.group(2).lower()])


def format_tokens(tokens: int | float) -> str:
    """8192 → ``8,192``."""
    return f"{tokens:,.0f}"


def format_ns(ns: int | float) -> str:
    """Nanoseconds with three significant figures: ``812 ms``, ``1.23 s``, ``4 min 05 s``."""
    seconds = ns / 1e9
    if abs(seconds) < 1:
        return f"{ns / 1e6:.3g} ms" if abs(ns) < 999.5e6 else "1 s"
    if abs(seconds) < 120:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 120:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def format_bytes(count: int | float) -> str:
    """Bytes in binary units: ``1.50 GiB``."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.2f} {unit}"
        size /= 1024
    return f"{size:.2f} TiB"
