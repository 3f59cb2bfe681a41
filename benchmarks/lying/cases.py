"""Every lie that must be found by name: the engine that tells it, the probe that meets it, and the finding that names
it. Plans are short: the engine computes 20,000 prompt tokens a second and an output token in 8 ms."""

from __future__ import annotations

from dataclasses import dataclass

from longproof.asking.arrivals import one_length
from longproof.asking.background import Background
from longproof.asking.context import ProbeContext
from longproof.probe import busy, disaggregated, overload, reclaim, restart, sustained
from longproof.testing.behaviour import Behaviour
from longproof.testing.dialects import VLLM
from longproof.testing.lies_of_load import (
    AdmitThenHang,
    BusyInStream,
    Degrade,
    LeakKv,
    NoRetryAfter,
    PdBootstrapFail,
    RestartChanges,
    SlowRecovery,
    StarveShort,
    Thrash,
)
from lying.prober import Ask

S = 1_000_000_000
HONEST = Behaviour(
    dialect=VLLM,
    compute="shared",
    slots=16,
    prefill_tokens_per_s=20_000.0,
    token_s=0.006,
    step_s=0.002,
    step_tokens=1024,
    jitter=0.3,
    dev_mode=True,
)
"""Slow and jittery: every step takes between half and twice its time. Its pool holds what its slots can ask for."""
FULL = HONEST.but(slots=4)
"""The same, full with four requests."""
READER = HONEST.but(prefill_tokens_per_s=8_000.0, step_tokens=512)
"""The same, and a long prompt takes most of a second: longer than a busy machine keeps anybody waiting."""


async def ask_busy(ctx: ProbeContext) -> None:
    load = Background(lengths=one_length(64, 24), concurrency=5, seed=ctx.protocol.seed)
    plan = busy.BusyPlan(
        background=load,
        long_tokens=6000,
        long_output_tokens=8,
        injections=3,
        twins=2,
        alone_ns=3 * S,
        lead_ns=S // 3,
        tail_ns=S // 3,
        patience=6.0,
        least_patience_s=3.0,
        sample_every_s=0.05,
    )
    await busy.run(ctx, plan)


async def ask_reclaim(ctx: ProbeContext) -> None:
    plan = reclaim.ReclaimPlan(
        length_tokens=800, largest_tokens=4000, decode_tokens=40, cycles=3, slow_s=1.0, sample_every_s=0.02, abort=True
    )
    await reclaim.run(ctx, plan)


async def ask_sustained(ctx: ProbeContext) -> None:
    plan = sustained.SustainedPlan(
        short_tokens=200, long_tokens=2000, concurrency=3, windows=16, window_ns=S // 2, longs_per_window=2
    )
    await sustained.run(ctx, plan)


def overloading(*concurrencies: int, step_ns: int = S) -> Ask:
    """Overload in these steps."""

    async def ask(ctx: ProbeContext) -> None:
        plan = overload.OverloadPlan(
            prompt_tokens=400,
            output_tokens=16,
            concurrencies=concurrencies,
            step_ns=step_ns,
            idle_ns=2 * S,
            recovery_ns=12 * S,
            slice_ns=S // 2,
            slow_after_ns=S // 2,
            least_patience_s=6.0,
            sample_every_s=0.05,
            seed=ctx.protocol.seed,
        )
        await overload.run(ctx, plan)

    return ask


ask_overload = overloading(2, 4, 8, 16)


async def ask_restart(ctx: ProbeContext) -> None:
    plan = restart.RestartPlan(
        lengths=(400, 1600), largest_tokens=6000, warm_tokens=800, limit_tokens=8192, repeats=3, deadline_s=10.0
    )
    await restart.run(ctx, plan)


async def ask_disaggregated(ctx: ProbeContext) -> None:
    await disaggregated.run(
        ctx, disaggregated.DisaggregatedPlan(lengths=(400, 2000), repeats=3, concurrency=2, together=1)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """`decode`: the decode side of a pair, whose prefill side `engine` then is. `named_by`: findings any one of which
    names the lie; empty for the honest engine, which nothing may accuse."""

    engine: Behaviour
    asks: tuple[Ask, ...]
    decode: Behaviour | None = None
    named_by: frozenset[str] = frozenset()


def _found(engine: Behaviour, ask: Ask, *findings: str, decode: Behaviour | None = None) -> Case:
    return Case(engine=engine, asks=(ask,), decode=decode, named_by=frozenset(findings))


CASES: dict[str, Case] = {
    "honest_busy": Case(engine=READER, asks=(ask_busy,)),
    "honest_reclaim": Case(engine=HONEST, asks=(ask_reclaim,)),
    "honest_sustained": Case(engine=HONEST, asks=(ask_sustained,)),
    "honest_overload": Case(engine=FULL, asks=(ask_overload,)),
    "honest_restart": Case(engine=HONEST, asks=(ask_restart,)),
    "honest_pair": Case(engine=HONEST, asks=(ask_disaggregated,), decode=HONEST),
    "leak_kv": _found(HONEST.lying(LeakKv(blocks=2)), ask_reclaim, "reclaim.kv_leaked"),
    "starve_short": _found(READER.lying(StarveShort()), ask_busy, "busy.short_starved"),
    "admit_then_hang": _found(
        READER.lying(AdmitThenHang(above_tokens=1024, beside=1)), ask_busy, "busy.admitted_then_hung"
    ),
    "degrade": _found(HONEST.lying(Degrade()), ask_sustained, "sustained.degraded"),
    "slow_recovery": _found(FULL.lying(SlowRecovery(for_s=6.0, factor=4.0)), ask_overload, "overload.slow_recovery"),
    "thrash": _found(
        HONEST.lying(Thrash(every_tokens=1, running=6)), overloading(4, 12, step_ns=2 * S), "overload.thrash"
    ),
    "no_retry_after": _found(HONEST.lying(NoRetryAfter(limit=6)), ask_overload, "overload.retry_after_missing"),
    "restart_changes": _found(HONEST.lying(RestartChanges(kv_scale=0.5)), ask_restart, "restart.changed"),
    "busy_in_stream": _found(HONEST.lying(BusyInStream(limit=6)), ask_overload, "overload.error_after_200"),
    "pd_bootstrap_fail": _found(
        HONEST,
        ask_disaggregated,
        "disaggregated.bootstrap_failed",
        decode=HONEST.lying(PdBootstrapFail(above_tokens=1024, skip=1)),
    ),
}
