"""What will run, decided before the first request from what the server tells and the user chose. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from longproof.asking.arrivals import Replay
from longproof.domain.deployment import Deployment
from longproof.domain.measure import value_or_none
from longproof.domain.request import Route
from longproof.domain.units import format_tokens
from longproof.engines.base import Capabilities
from longproof.errors import UsageError
from longproof.evidence.records import Parameters, Protocol, Step
from longproof.probe.accounting import CANARY_OUTPUT_TOKENS
from longproof.prove.load_steps import LOAD_STEPS, Situation
from longproof.prove.options import LOAD_PROBES, PROBES, ProveOptions
from longproof.prove.quality_step import quality_step

_SHORTEST_TOKENS = 512
_ROUND_LENGTHS = ((8_000, 8_192), (32_000, 32_768), (128_000, 131_072), (1_000_000, 1_048_576))
"""Round lengths people speak of, each with the power of two that stands in for it where that fits."""
_WINDOW_WHEN_UNTOLD_TOKENS = 8_192
_COUNT_CHECK_TOKENS = (97, 211, 389)
_FLOOR_TOKENS = 256
_MOST_BOUNDARY_REPEATS = 3
_EXACT_UP_TO_TOKENS = 16_384
_STEPS_IN_LARGE_WINDOWS = 8_192
_LONG_WINDOW_TOKENS = 131_072
_TIMEOUT_S = 600.0
_LONG_TIMEOUT_S = 3_600.0
LEFT_OUT = "left out with --only"
"""Why a probe is not run, when that was the user's wish."""


def usual_probes(*, pair: bool) -> tuple[str, ...]:
    """All probes; what only a pair of servers can show is asked only of one."""
    return tuple(probe for probe in PROBES if pair or probe != "disaggregated")


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The window to prove. `limit_tokens`: the server's own limit for one sequence, None = it does not tell. `tokens`:
    what will be proved (limit, cut by --context). `served_tokens`: `tokens` cut by the engine's KV capacity: longer
    cells could not complete."""

    limit_tokens: int | None
    capacity_tokens: int | None
    context_tokens: int | None

    @property
    def tokens(self) -> int:
        known = [item for item in (self.limit_tokens, self.context_tokens) if item is not None]
        return min(known) if known else _WINDOW_WHEN_UNTOLD_TOKENS

    @property
    def served_tokens(self) -> int:
        return self.tokens if self.capacity_tokens is None else min(self.tokens, self.capacity_tokens)

    @property
    def whole(self) -> bool:
        """Whether the whole of the server's window is proved, so that its edge may be asked about."""
        return self.limit_tokens is not None and self.tokens == self.limit_tokens


def window_of(deployment: Deployment, options: ProveOptions) -> Window:
    """The window that follows from deployment and options. UsageError when --context is above the server's own
    limit."""
    slot = value_or_none(deployment.slot_limit_tokens)
    limit = slot if slot is not None else value_or_none(deployment.configured_limit_tokens)
    if limit is not None and options.context_tokens is not None and options.context_tokens > limit:
        raise UsageError(
            f"--context asks for {format_tokens(options.context_tokens)} tokens; the server's own limit is"
            f" {format_tokens(limit)}",
            advice=f"leave --context out to prove all {format_tokens(limit)}, or raise the server's limit first",
        )
    return Window(
        limit_tokens=limit,
        capacity_tokens=value_or_none(deployment.kv_capacity_tokens),
        context_tokens=options.context_tokens,
    )


def default_lengths(window_tokens: int, output_tokens: int) -> tuple[int, ...]:
    """Powers of two that leave room for the output, and 8k, 32k, 128k, 1M where they fit and their power of two does
    not.

    8,192 with 16 output tokens → 512, 1024, 2048, 4096, 8000.
    """
    longest = window_tokens - output_tokens
    lengths: set[int] = set()
    power = _SHORTEST_TOKENS
    while power <= longest:
        lengths.add(power)
        power *= 2
    lengths |= {length for length, stand_in in _ROUND_LENGTHS if length <= longest < stand_in}
    return tuple(sorted(lengths)) or ((longest,) if longest > 0 else ())


def plan_protocol(
    deployment: Deployment, capabilities: Capabilities, options: ProveOptions, trace: Replay | None = None
) -> Protocol:
    """The whole protocol. `trace`: the background load's, read. UsageError for choices that cannot be meant."""
    window = window_of(deployment, options)
    lengths = options.lengths or default_lengths(window.served_tokens, options.output_tokens)
    _check(options, window, lengths)
    chosen = options.only or usual_probes(pair=capabilities.disaggregated)
    situation = Situation(
        deployment=deployment,
        capabilities=capabilities,
        options=options,
        served_tokens=window.served_tokens,
        trace=trace,
    )
    quality = {"quality": quality_step(window.served_tokens, options)} if "quality" in chosen else {}
    planned = quality | {probe: LOAD_STEPS[probe](situation) for probe in LOAD_PROBES if probe in chosen}
    impossible = {probe: step for probe, step in planned.items() if isinstance(step, str)}
    steps = (
        _accounting(window, options),
        _boundary(window, options),
        Step(probe="speed", parameters={"lengths": list(lengths), "repeats": options.repeats}),
        Step(probe="warmth", parameters={"lengths": _warm_lengths(lengths, options), "repeats": options.repeats}),
        *(step for step in planned.values() if isinstance(step, Step)),
    )
    long = window.tokens > _LONG_WINDOW_TOKENS
    return Protocol(
        seed=options.seed,
        route=options.route or (Route.CHAT if capabilities.chat else Route.COMPLETIONS),
        context_tokens=options.context_tokens,
        repeats=options.repeats,
        output_tokens=options.output_tokens,
        request_timeout_s=options.timeout_s or (_LONG_TIMEOUT_S if long else _TIMEOUT_S),
        budget_ns=options.budget_ns,
        budget_tokens=options.budget_tokens,
        steps=tuple(step for step in steps if step.probe in chosen),
        not_run={
            **impossible,
            **{probe: LEFT_OUT for probe in usual_probes(pair=capabilities.disaggregated) if probe not in chosen},
        },
        choices={**options.load.words(), **options.quality.words()},
    )


def _accounting(window: Window, options: ProveOptions) -> Step:
    room = window.served_tokens - max(CANARY_OUTPUT_TOKENS, options.output_tokens)
    lengths = sorted({length for length in (*_COUNT_CHECK_TOKENS, room // 2) if 0 < length <= room})
    parameters: Parameters = {
        "lengths": lengths,
        "canary_tokens": room,
    }
    if window.whole and window.limit_tokens is not None:
        parameters["limit_tokens"] = window.limit_tokens
    return Step(probe="accounting", parameters=parameters)


def _boundary(window: Window, options: ProveOptions) -> Step:
    exact = window.tokens <= _EXACT_UP_TO_TOKENS
    resolution = options.resolution_tokens or (1 if exact else window.tokens // _STEPS_IN_LARGE_WINDOWS)
    parameters: Parameters = {
        "top_tokens": window.tokens,
        "floor_tokens": min(_FLOOR_TOKENS, window.tokens),
        "resolution_tokens": resolution,
        "repeats": min(options.repeats, _MOST_BOUNDARY_REPEATS),
    }
    if window.limit_tokens is not None:
        parameters["limit_tokens"] = window.limit_tokens
    if window.capacity_tokens is not None:
        parameters["hint_tokens"] = window.capacity_tokens
    return Step(probe="boundary", parameters=parameters)


def _warm_lengths(lengths: tuple[int, ...], options: ProveOptions) -> list[int]:
    """The user's own lengths; by default two of the ladder, a short one and the longest but one: repeats of the longest
    cost most."""
    if options.lengths is not None or len(lengths) <= 2:
        return list(lengths)
    return [lengths[len(lengths) // 2 - 1], lengths[-2]] if len(lengths) > 3 else list(lengths[:2])


def _check(options: ProveOptions, window: Window, lengths: tuple[int, ...]) -> None:
    if options.repeats < 1:
        raise UsageError(f"--repeats {options.repeats} measures nothing", advice="use 1 or more; 3 gives intervals")
    if options.output_tokens < 2:
        raise UsageError(
            f"--output-tokens {options.output_tokens} leaves no time per output token", advice="use 2 or more"
        )
    if options.timeout_s is not None and options.timeout_s <= 0:
        raise UsageError("--timeout 0 gives no request time to answer", advice="use a time such as 90s")
    if options.resolution_tokens is not None and options.resolution_tokens < 1:
        raise UsageError(f"--resolution {options.resolution_tokens} is no distance", advice="use 1 or more tokens")
    unknown = sorted(set(options.only or ()) - set(PROBES))
    if unknown:
        raise UsageError(f"--only names no probe: {', '.join(unknown)}", advice=f"choose from {', '.join(PROBES)}")
    longest = window.tokens - options.output_tokens
    if longest < 1:
        raise UsageError(
            f"a window of {format_tokens(window.tokens)} tokens holds no prompt beside {options.output_tokens} output"
            " tokens",
            advice="raise --context or lower --output-tokens",
        )
    outside = [length for length in lengths if length > longest or length < 1]
    if outside:
        raise UsageError(
            f"--lengths {format_tokens(max(outside))} does not fit: the window is {format_tokens(window.tokens)}"
            " tokens and"
            f" {options.output_tokens} are kept for the answer",
            advice=f"use lengths up to {format_tokens(longest)}",
        )
