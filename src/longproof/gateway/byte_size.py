"""Sizes as people write them: ``64MiB``, ``1GB``, ``4096``."""

from __future__ import annotations

import re

from longproof.errors import UsageError

_SIZE = re.compile(r"^\s*([0-9]{1,18}(?:\.[0-9]{1,32})?)\s*(B|kB|KiB|MB|MiB|GB|GiB)?\s*$", re.IGNORECASE)
_FACTOR = {"b": 1, "kb": 10**3, "kib": 2**10, "mb": 10**6, "mib": 2**20, "gb": 10**9, "gib": 2**30}


def parse_bytes(text: str) -> int:
    """Bytes. Raises UsageError for anything that is no size."""
    found = _SIZE.match(text)
    if found is None:
        raise UsageError(f"'{text}' is not a size", advice="write a number and a unit: 64MiB, 1GB, 4096")
    return int(float(found[1]) * _FACTOR[(found[2] or "b").lower()])
