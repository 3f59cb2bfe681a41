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
PROBES = (*IDLE_PROBES, "quality", *LOAD_PROBES)
"""The probes in the order in which they run."""
DROP_ORDER = (
    "sweep",
    "conversation",
    "overload",
    "sustained",
    "restart",
    "quality",
    "reclaim",
    "busy",
    "warmth",
    "speed",
)
"""What a budget that does not hold everything loses first. Accounting and boundary are never dropped whole: without
them nothing else means anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """Choices about load. `concurrency`: requests of the background load (None: by what the server holds).
    `rate_per_s`: open-loop arrivals instead, Poisson. `trace`: file of request lengths and times to take the background
    from. `window_ns`: how long busy watches the background alone, and how long each step of overload lasts (None: 10
    s). `sustained_ns`: how long the sustained load lasts. `slo_ttft_s`, `slo_tpot_s`: what counts as good; without
    either no goodput is told. `restart_command`: run to restart a server that is not ours. `idle_ns`: stand idle that
    long before the repeat after a restart. `workers`: processes that send."""

    concurrency: int | None = None
    rate_per_s: float | None = None
    trace: str | None = None
    window_ns: int | None = None
    sustained_ns: int | None = None
    slo_ttft_s: float | None = None
    slo_tpot_s: float | None = None
    restart_command: str | None = None
    idle_ns: int = 0
    workers: int = 1

    def words(self) -> dict[str, str]:
        """What was chosen, by name; nothing for what was left as it is."""
        return _chosen(self, LoadOptions())


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityOptions:
    """Choices about effective context. `families`: task families. `lengths`: prompt lengths (None: a few of the
    window's). `answers`: at each length; `certify`: as many as it takes to decide, at most that many where a length is
    dear. `threshold`: the share of right answers a length must keep; `retention`: relative to the model's own answers
    without filler. `corpus`, `code_corpus`: a kept name or a folder. `thinking_tokens`: allowed on top of the answer.
    `together`: requests at a time."""

    families: tuple[str, ...] | None = None
    lengths: tuple[int, ...] | None = None
    answers: int | None = None
    certify: bool = False
    threshold: float = 0.85
    retention: bool = False
    corpus: str | None = None
    code_corpus: str | None = None
    thinking_tokens: int = 0
    together: int = 1

    def words(self) -> dict[str, str]:
        """What was chosen, by name; nothing for what was left as it is."""
        return _chosen(self, QualityOptions())


@dataclass(frozen=True, slots=True, kw_only=True)
class ProveOptions:
    """Choices with their defaults. None = decided from what the server tells of itself (see `prove.protocol`).

    `context_tokens`: the window to prove. `lengths`: prompt lengths for speed and warmth. `repeats`: per cell. `only`:
    probes to run. `budget_ns`, `budget_tokens`: stop before either would be exceeded. `timeout_s`: a request without an
    end by then counts as hung. `route`: chat, or completions with token ids where the server takes them. `load`: what
    the probes under load do. `quality`: what is asked to see how well the window is used.
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
    quality: QualityOptions = field(default_factory=QualityOptions)


def _chosen(options: LoadOptions | QualityOptions, plain: LoadOptions | QualityOptions) -> dict[str, str]:
    return {
        item.name: str(getattr(options, item.name))
        for item in fields(options)
        if getattr(options, item.name) != getattr(plain, item.name)
    }
