"""What one life of the engine holds in memory: its pool, its prompt cache, its counters. A restart begins anew."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from longproof.clock import Clock, SystemClock
from longproof.testing.behaviour import Behaviour
from longproof.testing.engine_log import EngineLog
from longproof.testing.fake_cache import PromptCache
from longproof.testing.fake_pool import Pool
from longproof.testing.lies import Lie


@dataclass(slots=True, kw_only=True)
class Counters:
    """What /metrics is made of. Times in seconds, because that is what the metrics show."""

    processed_tokens: int = 0
    cached_tokens: int = 0
    prefill_s: float = 0.0
    output_tokens: int = 0
    decode_s: float = 0.0
    longest_tokens: int = 0
    finished: dict[str, int] = field(default_factory=dict[str, int])
    ttft_s: list[float] = field(default_factory=list[float])
    e2e_s: list[float] = field(default_factory=list[float])


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

    def __init__(self, behaviour: Behaviour, log: EngineLog, go_down: Callable[[], None]) -> None:
        self.behaviour = behaviour
        self.log = log
        self.clock: Clock = SystemClock()
        self.go_down = go_down
        self.schedule = LieSchedule()
        self.counters = Counters()
        self.pool = Pool(
            slots=behaviour.slots,
            capacity_tokens=behaviour.pool_tokens,
            over_capacity=behaviour.over_capacity,
        )
        self.cache = PromptCache(
            entries=behaviour.cache_entries,
            capacity_tokens=behaviour.pool_tokens,
            block_tokens=behaviour.dialect.cache_block_tokens,
        )

    def behave(self, behaviour: Behaviour) -> None:
        """Other lies and speeds from the next request on; what is running goes on as it began."""
        self.behaviour = behaviour
        self.schedule = LieSchedule()
