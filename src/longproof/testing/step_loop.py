"""The clock of an engine whose requests share steps: plans a step, lets its time pass, hands out what it gave."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from longproof.clock import NS_PER_S, Clock
from longproof.testing.behaviour import Behaviour
from longproof.testing.scheduler import Scheduler, Step

_LOOK_AGAIN_S = 0.005
"""How soon it looks again when there are requests, and none may do anything."""
_CATCH_UP_NS = 50_000_000
"""A machine that was busy elsewhere for longer than this gets no burst of steps to make up for it."""


class StepLoop:
    """Runs a scheduler for as long as the server's event loop lives. `stretch` tells how much slower than it should be
    everything is now."""

    def __init__(self, scheduler: Scheduler, clock: Clock, stretch: Callable[[], float]) -> None:
        self.scheduler = scheduler
        self._clock = clock
        self._stretch = stretch
        self._task: asyncio.Task[None] | None = None

    def start(self, behaviour: Callable[[], Behaviour]) -> None:
        """Begins, in the event loop that runs now; once."""
        if self._task is None:
            self._task = asyncio.create_task(self._run(behaviour))

    async def _run(self, behaviour: Callable[[], Behaviour]) -> None:
        end_ns = 0
        while True:
            step = self.scheduler.plan(self._clock.now_ns())
            if not step.parts:
                self.scheduler.finish(step)
                end_ns = 0
                await self._idle()
                continue
            now_ns = self._clock.now_ns()
            start_ns = end_ns if 0 < now_ns - end_ns < _CATCH_UP_NS else now_ns
            end_ns = start_ns + round(self._duration_s(step, behaviour()) * NS_PER_S)
            await asyncio.sleep(max(end_ns - now_ns, 0) / NS_PER_S)
            self.scheduler.finish(step, end_ns)
            await asyncio.sleep(0)  # those whose tokens came may send them, and those who finished may be followed

    async def _idle(self) -> None:
        somebody = self.scheduler.running or self.scheduler.waiting
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LOOK_AGAIN_S if somebody else None):
                await self.scheduler.changed.next()

    def _duration_s(self, step: Step, behaviour: Behaviour) -> float:
        prompts_s = step.prompt_tokens / behaviour.prefill_tokens_per_s
        answers_s = behaviour.token_s * (1 + behaviour.batch_share * (step.answers - 1)) if step.answers else 0.0
        return (behaviour.step_s + prompts_s + answers_s) * step.stretch * self._stretch()
