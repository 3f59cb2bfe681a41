"""The steps under load: what each probe is told to do, from what the server tells and the user chose. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

from longproof.asking.arrivals import SHORT_CHAT, Replay
from longproof.asking.background import Background
from longproof.domain.deployment import Deployment
from longproof.domain.measure import value_or_none
from longproof.engines.base import Capabilities
from longproof.evidence.records import Step
from longproof.probe import busy, conversation, disaggregated, overload, reclaim, restart, sustained, sweep
from longproof.prove.options import ProveOptions
from longproof.prove.parameters import step_of

_S = 1_000_000_000
_USUAL_CONCURRENCY = 8
_LONGEST_SHORT_TOKENS = 2_735
_SHORTEST_SHORT_TOKENS = 48
"""Template, nonce and a few words: below this no prompt of exact length can be promised."""
_MOST_AT_ONCE = 64
_OVERLOAD_OUTPUT_TOKENS = 32
_SUSTAINED_NS = 60 * _S
_LEAST_SUSTAINED_NS = 20 * _S
_SUSTAINED_SHARE = 1 / 20
"""Of a time budget, where nobody said how long: a minute would cost a short run other steps."""
_SUSTAINED_WINDOWS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What the plans are made from. `served_tokens`: the longest prompt + output that the server is expected to
    complete; `trace`: the user's own, read."""

    deployment: Deployment
    capabilities: Capabilities
    options: ProveOptions
    served_tokens: int
    trace: Replay | None = None

    @property
    def concurrency(self) -> int:
        """The user's, else as many as the server runs together, up to eight."""
        chosen = self.options.load.concurrency
        slots = value_or_none(self.deployment.slots)
        return chosen or min(_USUAL_CONCURRENCY, slots or _USUAL_CONCURRENCY)

    @property
    def short_tokens(self) -> int:
        """The longest prompt of a background load: short beside the window."""
        return max(_SHORTEST_SHORT_TOKENS, min(_LONGEST_SHORT_TOKENS, self.served_tokens // 16))

    @property
    def background(self) -> Background:
        """The background load that the user chose, else short chats in a closed loop."""
        options, trace = self.options, self.trace
        if trace is not None:
            lengths = trace.lengths.scaled(self.served_tokens // 2, least_input_tokens=_SHORTEST_SHORT_TOKENS)
            return Background.of_trace(trace, lengths=lengths, seed=options.seed)
        lengths = SHORT_CHAT.scaled(self.short_tokens, least_input_tokens=_SHORTEST_SHORT_TOKENS)
        if options.load.rate_per_s is not None:
            return Background(lengths=lengths, rate_per_s=options.load.rate_per_s, seed=options.seed)
        return Background(lengths=lengths, concurrency=self.concurrency, seed=options.seed)


Planned: TypeAlias = Step | str
"""A step, or the reason why there can be none."""


def _busy(at: Situation) -> Planned:
    output = at.options.output_tokens
    long_tokens = at.served_tokens * 3 // 4 - output
    if long_tokens <= 2 * at.short_tokens:
        return f"a window of {at.served_tokens} tokens has no long requests beside short ones"
    plan = busy.BusyPlan(
        background=at.background,
        long_tokens=long_tokens,
        long_output_tokens=output,
        injections=min(3, at.options.repeats),
    )
    window_ns = at.options.load.window_ns
    if window_ns is not None:
        around_ns = min(plan.lead_ns, window_ns)
        plan = replace(plan, alone_ns=window_ns, lead_ns=around_ns, tail_ns=around_ns)
    return step_of("busy", plan)


def _reclaim(at: Situation) -> Planned:
    largest = at.served_tokens - at.options.output_tokens
    length = max(_SHORTEST_SHORT_TOKENS, largest // 6)
    plan = reclaim.ReclaimPlan(
        length_tokens=length,
        largest_tokens=largest,
        decode_tokens=min(64, at.served_tokens - length),
        cycles=min(3, at.options.repeats),
        abort=at.capabilities.aborts,
    )
    return step_of("reclaim", replace(plan, blockers=reclaim.blockers_of(at.deployment, length + plan.decode_tokens)))


def _sustained_ns(budget_ns: int | None) -> int:
    if budget_ns is None:
        return _SUSTAINED_NS
    return min(_SUSTAINED_NS, max(_LEAST_SUSTAINED_NS, int(budget_ns * _SUSTAINED_SHARE)))


def _sustained(at: Situation) -> Planned:
    long_tokens = at.served_tokens // 4
    for_ns = at.options.load.sustained_ns or _sustained_ns(at.options.budget_ns)
    plan = sustained.SustainedPlan(
        short_tokens=at.short_tokens,
        long_tokens=long_tokens if long_tokens > 2 * at.short_tokens else None,
        concurrency=at.concurrency,
        windows=_SUSTAINED_WINDOWS,
        window_ns=max(_S, for_ns // _SUSTAINED_WINDOWS),
    )
    return step_of("sustained", plan)


def _conversation(at: Situation) -> Planned:
    plan = conversation.ConversationPlan(
        first_tokens=max(2 * _SHORTEST_SHORT_TOKENS, at.served_tokens // 8),
        delta_tokens=max(_SHORTEST_SHORT_TOKENS, at.served_tokens // 32),
        turns=4,
        concurrencies=tuple(sorted({1, min(4, at.concurrency)})),
        repeats=min(3, at.options.repeats),
    )
    longest = plan.longest_tokens(at.options.output_tokens)
    if longest > at.served_tokens:
        return f"a window of {at.served_tokens} tokens does not hold {plan.turns} turns of {longest} tokens"
    return step_of("conversation", plan)


def _sweep(at: Situation) -> Planned:
    """By default a short and a long length, alone and together; with --lengths those."""
    lengths = at.options.lengths or tuple(
        sorted(
            {max(_SHORTEST_SHORT_TOKENS, at.served_tokens // 16), max(_SHORTEST_SHORT_TOKENS, at.served_tokens // 4)}
        )
    )
    plan = sweep.SweepPlan(
        lengths=lengths,
        concurrencies=tuple(sorted({1, at.concurrency})),
        rounds=max(1, at.options.repeats - 1),
        per_round=2,
        slo_ttft_s=at.options.load.slo_ttft_s,
        slo_tpot_s=at.options.load.slo_tpot_s,
    )
    return step_of("sweep", plan)


def _restart(at: Situation) -> Planned:
    if not at.capabilities.restarts and at.options.load.restart_command is None:
        return "the server is not ours to restart, and no --restart-cmd was given"
    largest = at.served_tokens - at.options.output_tokens
    limit = value_or_none(at.deployment.slot_limit_tokens) or value_or_none(at.deployment.configured_limit_tokens)
    lengths = tuple(sorted({max(_SHORTEST_SHORT_TOKENS, largest // part) for part in (8, 4)}))
    plan = restart.RestartPlan(
        lengths=lengths,
        largest_tokens=largest,
        warm_tokens=lengths[-1],
        limit_tokens=limit if limit == at.served_tokens else None,
        repeats=min(3, at.options.repeats),
        idle_ns=at.options.load.idle_ns,
    )
    return step_of("restart", plan)


def _overload(at: Situation) -> Planned:
    """From two at a time to four times what runs together, or what the KV pool holds twice over, up to 64."""
    prompt = max(_SHORTEST_SHORT_TOKENS, at.served_tokens // 8)
    capacity = value_or_none(at.deployment.kv_capacity_tokens)
    held = at.concurrency if capacity is None else capacity // (prompt + _OVERLOAD_OUTPUT_TOKENS)
    most = max(4, min(_MOST_AT_ONCE, max(4 * at.concurrency, 2 * held)))
    rate = at.options.load.rate_per_s
    plan = overload.OverloadPlan(
        prompt_tokens=prompt,
        output_tokens=min(_OVERLOAD_OUTPUT_TOKENS, at.served_tokens - prompt),
        concurrencies=() if rate is not None else overload.doubling(most),
        rates_per_s=() if rate is None else tuple(rate * factor for factor in (0.5, 1.0, 2.0, 4.0, 8.0)),
        slo_ttft_s=at.options.load.slo_ttft_s,
        slo_tpot_s=at.options.load.slo_tpot_s,
        seed=at.options.seed,
    )
    window_ns = at.options.load.window_ns
    return step_of("overload", plan if window_ns is None else replace(plan, step_ns=window_ns, idle_ns=window_ns))


def _disaggregated(at: Situation) -> Planned:
    if not at.capabilities.disaggregated:
        return "one server serves both prefill and decode: name a pair with --prefill and --decode"
    largest = at.served_tokens - at.options.output_tokens
    lengths = at.options.lengths or tuple(sorted({max(_SHORTEST_SHORT_TOKENS, largest // part) for part in (8, 2)}))
    return step_of("disaggregated", disaggregated.DisaggregatedPlan(lengths=lengths, repeats=at.options.repeats))


LOAD_STEPS: dict[str, Callable[[Situation], Planned]] = {
    "disaggregated": _disaggregated,
    "busy": _busy,
    "reclaim": _reclaim,
    "conversation": _conversation,
    "sweep": _sweep,
    "restart": _restart,
    "sustained": _sustained,
    "overload": _overload,
}
"""How each probe under load is planned."""
