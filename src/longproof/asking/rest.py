"""When has an engine come to rest? Read from its own gauges, which may be a step old."""

from __future__ import annotations

import asyncio

from longproof.asking.context import ProbeContext
from longproof.clock import NS_PER_S, Clock
from longproof.domain.events import EngineSample
from longproof.errors import EngineMisbehaved

_POLL_S = 0.05
_TIMEOUT_S = 15.0


class Rest:
    """Told one sample after the other, says when the engine rests: no more runs or waits than in `base`, and KV usage
    back, or no longer falling, for `quiet_ns`.

    The quiet time is there because a gauge may rise late: vLLM 0.32 writes its gauges at the end of a step, and a step
    of prefill takes seconds on a slow machine. `reached`: it said so, with KV usage back.
    """

    def __init__(self, *, base: EngineSample | None, quiet_ns: int, clock: Clock) -> None:
        self._base = base
        self._quiet_ns = quiet_ns
        self._clock = clock
        self._since_ns: int | None = None
        self._usage: float | None = None
        self.reached = False

    def __call__(self, sample: EngineSample) -> bool:
        now_ns, base = self._clock.now_ns(), self._base
        if base is None:
            return True
        idle = _most(sample.running) <= _most(base.running) and _most(sample.waiting) <= _most(base.waiting)
        back = sample.kv_usage is None or base.kv_usage is None or sample.kv_usage <= base.kv_usage
        if not idle or (not back and sample.kv_usage != self._usage):
            self._since_ns = None
        elif self._since_ns is None:
            self._since_ns = now_ns
        self._usage = sample.kv_usage
        quiet = self._since_ns is not None and now_ns - self._since_ns >= self._quiet_ns
        self.reached = quiet and back
        return quiet


async def sample_or_none(ctx: ProbeContext) -> EngineSample | None:
    """The engine's metrics now; None where it has none or does not answer."""
    if not ctx.engine.capabilities.metrics:
        return None
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            return await ctx.engine.sample()
    except (EngineMisbehaved, TimeoutError):
        return None


async def wait_for_rest(ctx: ProbeContext, *, most_s: float) -> None:
    """Waits until nothing runs or waits by the engine's gauges, or `most_s`, where it has no gauges all of it."""
    until_ns = ctx.clock.now_ns() + round(most_s * NS_PER_S)
    while ctx.clock.now_ns() < until_ns:
        sample = await sample_or_none(ctx)
        if sample is not None and sample.running == 0 and not sample.waiting:
            return
        await asyncio.sleep(_POLL_S)


def _most(count: int | None) -> int:
    return count or 0
