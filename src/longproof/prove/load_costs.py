"""What the probes under load cost: one line each."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from longproof.prove.parameters import Values

LoadCost: TypeAlias = Callable[[Values, int], tuple[int, int, int, int]]
"""(parameters, output tokens) → requests and tokens sent one at a time; ns of windows under load, tokens in them."""

LOAD_COSTS: dict[str, LoadCost] = {}
