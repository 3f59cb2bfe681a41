"""What a user may choose about a proof."""

from __future__ import annotations

from dataclasses import dataclass

from longproof.domain.request import Route

PROBES = ("accounting", "boundary", "speed", "warmth")
"""The probes in the order in which they run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProveOptions:
    """Choices with their defaults. None = decided from what the server tells of itself (see `prove.protocol`).

    `context_tokens`: the window to prove. `lengths`: prompt lengths for speed and warmth. `repeats`: per cell. `only`:
    probes to run. `budget_ns`, `budget_tokens`: stop before either would be exceeded. `timeout_s`: a request without an
    end by then counts as hung. `route`: chat, or completions with token ids where the server takes them.
    """

    context_tokens: int | None = None
    lengths: tuple[int, ...] | None = None
    repeats: int = 3
    only: tuple[str, ...] | None = None
    budget_ns: int | None = None
    budget_tokens: int | None = None
    output_tokens: int = 16
    timeout_s: float | None = None
    resolution_tokens: int | None = None
    route: Route | None = None
    seed: int = 0
