"""What a user may choose about a proof."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from longproof.domain.request import Route

IDLE_PROBES = ("accounting", "boundary", "speed", "warmth")
"""One request at a time."""
LOAD_PROBES: tuple[str, ...] = (
    "disaggregated",
    "busy",
    "reclaim",
    "restart",
    "conversation",
    "sweep",
    "sustained",
    "overload",
)
"""Many at once, or with the server's life in between. Overload comes last: a server may not survive it."""
PROBES = (*IDLE_PROBES, *LOAD_PROBES)
"""The probes in the order in which they run."""
DROP_ORDER = ("sweep", "conversation", "overload", "sustained", "restart", "reclaim", "busy", "warmth", "speed")
"""What a budget that does not hold everything loses first. Accounting and boundary are never dropped whole: without
them nothing else means anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """Choices about load. `concurrency`: requests of the background load (None: by what the server holds).
    `rate_per_s`: open-loop arrivals instead, Poisson. `trace`: file of request lengths and times to take the background
    from. `sustained_ns`: how long the sustained load lasts. `slo_ttft_s`, `slo_tpot_s`: what counts as good; without
    either no goodput is told. `restart_command`: run to restart a server that is not ours. `idle_ns`: stand idle that
    long before the repeat after a restart. `workers`: processes that send."""

    concurrency: int | None = None
    rate_per_s: float | None = None
    trace: str | None = None
    sustained_ns: int | None = None
    slo_ttft_s: float | None = None
    slo_tpot_s: float | None = None
    restart_command: str | None = None
    idle_ns: int = 0
    workers: int = 1

    def words(self) -> dict[str, str]:
        """What was chosen, by name; nothing for what was left as it is."""
        plain = LoadOptions()
        return {
            item.name: str(getattr(self, item.name))
            for item in fields(self)
            if getattr(self, item.name) != getattr(plain, item.name)
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ProveOptions:
    """Choices with their defaults. None = decided from what the server tells of itself (see `prove.protocol`).

    `context_tokens`: the window to prove. `lengths`: prompt lengths for speed and warmth. `repeats`: per cell. `only`:
    probes to run. `budget_ns`, `budget_tokens`: stop before either would be exceeded. `timeout_s`: a request without an
    end by then counts as hung. `route`: chat, or completions with token ids where the server takes them. `load`: what
    the probes under load do.
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
    load: LoadOptions = field(default_factory=LoadOptions)
