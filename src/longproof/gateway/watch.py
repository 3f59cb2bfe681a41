"""What the controller sees of the engines: metrics, KV events, who is there.

    GET /metrics, once a second ──▶ EngineSample ─────▶ controller.on_sample
                 └ answered? ─────▶ ReplicaHealth ────▶ controller.on_replica      up, down, restarted
    ZeroMQ ──▶ KvFeed (thread) ──▶ KvInbox (loop) ────▶ controller.on_kv_event
                                        └ IndexCheck ─▶ index ok or degraded; degraded: contents are guessed meanwhile

It only looks: a request that fails is the controller's to judge. What an engine does not offer (metrics, events) is
simply not seen.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from longproof.clock import NS_PER_S, Clock
from longproof.domain.events import EngineSample
from longproof.domain.fleet import ReplicaState
from longproof.domain.kv_event import KvEvent
from longproof.engines.base import Engine
from longproof.errors import EngineMisbehaved, EngineSilent, EngineUnreachable, UserError
from longproof.gateway.index_check import CheckRules, IndexCheck, Probed
from longproof.gateway.index_health import IndexHealth, IndexState
from longproof.gateway.kv_feed import KvFeed
from longproof.gateway.kv_inbox import KvInbox
from longproof.gateway.kv_stream import FeedState, KvSource
from longproof.gateway.replica_health import ReplicaHealth
from longproof.policy.actions import Action

_log = logging.getLogger("longproof.gateway")
Connect: TypeAlias = Callable[[], Awaitable[Engine]]
METRICS = frozenset(
    {
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "vllm:kv_cache_usage_perc",
        "vllm:gpu_cache_usage_perc",
        "vllm:num_preemptions_total",
        "vllm:prompt_tokens_total",
        "vllm:generation_tokens_total",
        "sglang:num_running_reqs",
        "sglang:num_queue_reqs",
        "sglang:token_usage",
        "sglang:num_retracted_requests_total",
        "sglang:prompt_tokens_total",
        "sglang:generation_tokens_total",
        "llamacpp:requests_processing",
        "llamacpp:requests_deferred",
        "llamacpp:prompt_tokens_total",
        "llamacpp:tokens_predicted_total",
    }
)
"""All that is read of an engine's metrics: a scrape of everything is thousands of lines."""


class Sees(Protocol):
    """The controller, as far as it is told of engines."""

    def on_sample(self, replica: str, sample: EngineSample, now_ns: int, /) -> Sequence[Action]: ...
    def on_kv_event(self, replica: str, event: KvEvent, now_ns: int, /) -> None: ...
    def on_replica(self, replica: str, state: ReplicaState, now_ns: int, /) -> Sequence[Action]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """One replica. `engine` None: it did not answer so far, and `connect` is tried. `sources`: where it publishes KV
    events, one per rank. `probed` needs them: where the index is checked, given the feeds' states."""

    name: str
    engine: Engine | None
    connect: Connect
    sources: tuple[KvSource, ...] = ()
    probed: Callable[[Sequence[FeedState]], Probed] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchRules:
    """`every_s` metrics are read, within `answer_s`; a replica that is silent for `silent_after_s` is down. `check`:
    how the index is checked, None = it is not. `trust`: told when a replica's events begin or cease to be worth
    believing, so that its contents are guessed meanwhile. `doubt`: what else is wrong with an index that gets its
    events (a tokenizer that is not the engine's), "" = nothing. `inferred`: why its events say nothing about the names
    that requests have, "" = they do. `back`: told of a replica that answers again, or for the
    first time."""

    every_s: float = 1.0
    answer_s: float = 5.0
    silent_after_s: float = 60.0
    check: CheckRules | None = None
    trust: Callable[[str, bool], None] = lambda _replica, _trusted: None
    doubt: Callable[[str], str] = lambda _replica: ""
    inferred: Callable[[str], str] = lambda _replica: ""
    back: Callable[[str], None] = lambda _replica: None


class Watch:
    """Everything above for one fleet. Make, `start` and `close` it on the event loop."""

    def __init__(
        self,
        watched: Sequence[Watched],
        sees: Sees,
        act: Callable[[Sequence[Action]], None],
        clock: Clock,
        rules: WatchRules = WatchRules(),
    ) -> None:
        self._watched, self._sees, self._act, self._clock, self._rules = watched, sees, act, clock, rules
        self._engines = {one.name: one.engine for one in watched}
        self._health = {
            one.name: ReplicaHealth(
                up=one.engine is not None,
                silent_after_ns=int(rules.silent_after_s * NS_PER_S),
                reason="" if one.engine is not None else "it has not answered since the gateway started",
            )
            for one in watched
        }
        self._trusted = {one.name: True for one in watched if one.sources}
        self._inbox = KvInbox(self._kv_event)
        sources = [source for one in watched for source in one.sources]
        self.feed = KvFeed(sources, self._inbox.put, clock=clock) if sources else None
        self.index = IndexCheck(self._probed(), rules.check, self._on_health) if rules.check is not None else None
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begins to look."""
        if self.feed is not None:
            self.feed.start()
        self._tasks = [asyncio.create_task(self._look_at(one)) for one in self._watched]
        if self.index is not None:
            self.index.start()

    async def close(self) -> None:
        """Looks no more. Engines that were connected to here are closed; those that were given are not."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self.index is not None:
            await self.index.close()
        self._inbox.close()
        if self.feed is not None:
            await asyncio.to_thread(self.feed.close)
        for one in self._watched:
            engine = self._engines[one.name]
            if engine is not None and one.engine is None:
                await engine.aclose()

    def index_health(self) -> tuple[IndexHealth, ...]:
        """What the index of every replica is worth, and why; in the order of the replicas."""
        checked = {health.replica: health for health in self.index.health()} if self.index is not None else {}
        return tuple(self._one_index(one, checked.get(one.name)) for one in self._watched)

    def _one_index(self, one: Watched, checked: IndexHealth | None) -> IndexHealth:
        health = checked or IndexHealth(
            replica=one.name, state=IndexState.CHECKING if one.sources else IndexState.INFERRED
        )
        doubt = self._rules.doubt(one.name) if health.state in (IndexState.OK, IndexState.INFERRED) else ""
        if doubt:
            return IndexHealth(replica=one.name, state=IndexState.DEGRADED, reason=doubt)
        inferred = self._rules.inferred(one.name) if health.state is IndexState.OK else ""
        return IndexHealth(replica=one.name, state=IndexState.INFERRED, reason=inferred) if inferred else health

    def why_down(self, replica: str) -> str:
        """Why a replica is down; "" while it is up."""
        return self._health[replica].reason

    # -- metrics and life ---------------------------------------------------------------------------------------------

    async def _look_at(self, one: Watched) -> None:
        loop = asyncio.get_running_loop()
        while True:
            began_s = loop.time()
            try:
                await self._look(one)
            except Exception:  # whatever an engine makes of its metrics must not end the watch over it
                _log.exception("watching %s", one.name)
            await asyncio.sleep(max(0.0, self._rules.every_s - (loop.time() - began_s)))

    async def _look(self, one: Watched) -> None:
        health = self._health[one.name]
        sample: EngineSample | None = None
        try:
            async with asyncio.timeout(self._rules.answer_s):
                engine = self._engines[one.name]
                if engine is None:
                    engine = self._engines[one.name] = await one.connect()
                sample = await engine.sample(wanted=METRICS)
            news = health.answered(sample)
        except (TimeoutError, UserError) as problem:
            news = health.silent(f"no answer: {problem or 'time-out'}", self._clock.now_ns())
        except EngineSilent as problem:
            news = health.silent(problem.what, self._clock.now_ns())
        except EngineUnreachable as problem:
            news = health.refused(problem.what)
        except EngineMisbehaved:
            news = health.answered(None)  # it answers; it has no metrics
        if news is not None:
            self._tell(one.name, news, health.reason)
        if sample is not None:
            self._act(self._sees.on_sample(one.name, sample, self._clock.now_ns()))

    def _tell(self, replica: str, state: ReplicaState, reason: str) -> None:
        _log.warning("replica %s is %s%s", replica, state.value, f": {reason}" if reason else "")
        self._act(self._sees.on_replica(replica, state, self._clock.now_ns()))
        if state in (ReplicaState.UP, ReplicaState.RESTARTED):
            self._rules.back(replica)
            if self.index is not None:
                self.index.again(replica)

    # -- KV events ----------------------------------------------------------------------------------------------------

    def _kv_event(self, replica: str, event: KvEvent) -> None:
        if self.index is not None:
            self.index.saw(replica, event)
        if self._trusted[replica]:
            self._sees.on_kv_event(replica, event, self._clock.now_ns())

    def _on_health(self, health: IndexHealth) -> None:
        if health.state is IndexState.DEGRADED:
            _log.warning("index=degraded for %s: %s", health.replica, health.reason)
        elif health.state is IndexState.OK:
            inferred = self._rules.inferred(health.replica)
            told = f"inferred for {health.replica}: {inferred}" if inferred else f"ok for {health.replica}"
            _log.info("index=%s", told)
        if health.state is IndexState.CHECKING:
            return
        trusted = health.state is IndexState.OK
        if trusted != self._trusted[health.replica]:
            self._trusted[health.replica] = trusted
            self._rules.trust(health.replica, trusted)

    def _probed(self) -> list[Probed]:
        states = self.feed.states if self.feed is not None else ()
        return [
            one.probed([state for state in states if state.source.replica == one.name])
            for one in self._watched
            if one.probed is not None and one.sources
        ]
