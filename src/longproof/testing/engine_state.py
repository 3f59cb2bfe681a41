"""What one life of the engine holds in memory: its pool, its prompt cache, its counters. A restart begins anew."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable

from longproof.clock import Clock, SystemClock
from longproof.testing.behaviour import Behaviour
from longproof.testing.counters import Counters
from longproof.testing.engine_log import EngineLog
from longproof.testing.fake_cache import PromptCache
from longproof.testing.fake_pool import Pool
from longproof.testing.kv_publisher import KvPublisher
from longproof.testing.lie import Lie, find
from longproof.testing.lies_of_load import Degrade, LeakMemory, StaleGauges
from longproof.testing.open_requests import OpenRequests
from longproof.testing.scheduler import Scheduler
from longproof.testing.side_channel import SideChannel
from longproof.testing.slowness import Slowness
from longproof.testing.step_loop import StepLoop

_RSS_BYTES = 1 << 30


class LieSchedule:
    """Which lies are in force for the next request: applies `above_tokens`, `skip` and `times`."""

    def __init__(self) -> None:
        self._matched: dict[Lie, int] = {}

    def in_force(self, lies: tuple[Lie, ...], prompt_tokens: int) -> tuple[Lie, ...]:
        """The lies that apply to a request of that length; counts it as one match for each."""
        chosen: list[Lie] = []
        for lie in lies:
            if prompt_tokens <= lie.above_tokens:
                continue
            before = self._matched.get(lie, 0)
            self._matched[lie] = before + 1
            if before >= lie.skip and (lie.times is None or before < lie.skip + lie.times):
                chosen.append(lie)
        return tuple(chosen)


class EngineState:
    """One life of the engine. `go_down` drops every connection and the listening socket, as a crash does."""

    def __init__(
        self,
        behaviour: Behaviour,
        log: EngineLog,
        go_down: Callable[[], None],
        side_channel: SideChannel | None = None,
        kv: KvPublisher | None = None,
    ) -> None:
        self.behaviour = behaviour
        self.log = log
        self.clock: Clock = SystemClock()
        self.go_down = go_down
        self.engine_id = str(uuid.uuid4())
        self.started = self.clock.wall()
        self.side_channel = SideChannel() if side_channel is None else side_channel
        self.schedule = LieSchedule()
        self.counters = Counters()
        self.open = OpenRequests()
        self.rng = random.Random(behaviour.seed)
        self.slowness = Slowness(self.rng, self.clock.now_ns())
        self.scheduler = Scheduler(behaviour, self.accepted) if behaviour.in_steps else None
        self.steps = None if self.scheduler is None else StepLoop(self.scheduler, self.clock, self.stretch)
        self.pool = self.scheduler or Pool(
            slots=behaviour.slots,
            capacity_tokens=behaviour.pool_tokens,
            over_capacity=behaviour.over_capacity,
            block_tokens=behaviour.dialect.cache_block_tokens,
        )
        self.cache = PromptCache(
            entries=behaviour.cache_entries,
            capacity_tokens=behaviour.pool_tokens,
            block_tokens=behaviour.dialect.cache_block_tokens,
            changed=None if kv is None else kv.changed,
        )
        self._frozen_usage: float | None = None

    def behave(self, behaviour: Behaviour) -> None:
        """Other lies and speeds from the next request on; what is running goes on as it began."""
        self.behaviour = behaviour
        self.schedule = LieSchedule()
        if self.scheduler is not None:
            self.scheduler.behave(behaviour)

    def stretch(self) -> float:
        """How many times longer than it should what begins now takes."""
        now_ns = self.clock.now_ns()
        self.slowness.queue(self.pool.waiting, self.behaviour, now_ns)
        return self.slowness.factor(self.behaviour, now_ns)

    def accepted(self) -> int:
        """Tokens that speculation gives with the next token of an answer."""
        drafted, good = self.behaviour.speculation, 0
        while good < drafted and self.rng.random() < self.behaviour.acceptance:
            good += 1
        if drafted:
            self.counters.drafts += 1
            self.counters.draft_tokens += drafted
            self.counters.accepted_tokens += good
        return good

    def arrived(self, lies: tuple[Lie, ...]) -> None:
        """A request is there, with these lies in force: what grows with requests grows."""
        self.slowness.request(find(lies, Degrade))
        leak = find(lies, LeakMemory)
        self.counters.leaked_bytes += 0 if leak is None else leak.bytes

    @property
    def preemptions(self) -> int:
        return 0 if self.scheduler is None else self.scheduler.preemptions

    @property
    def resident_bytes(self) -> int:
        """RSS of the process that it claims to be; honest ones breathe by up to 0.5 %."""
        return _RSS_BYTES + self.rng.randrange(_RSS_BYTES // 200) + self.counters.leaked_bytes

    def kv_usage(self) -> float:
        """Fraction of the pool in use, as the metrics show it."""
        usage = self.pool.gauges.used_tokens / self.pool.capacity_tokens
        if find(self.behaviour.lies, StaleGauges) is None:
            return usage
        self._frozen_usage = usage if self._frozen_usage is None else self._frozen_usage
        return self._frozen_usage
