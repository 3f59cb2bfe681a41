"""The index's self-test: a new prompt is sent to a replica, and its blocks have to come back as events.

    new text ─▶ counted as every prompt is ─▶ names of its blocks      ┐
            └─▶ the engine, one token of output ─▶ event ─▶ names      ┴▶ all there `wait_s` after the answer: ok
                                                                        else: degraded, with the reason

Done when a replica comes up, again every `retry_s` while it fails; between, what comes with ordinary traffic is looked
at, and replies are held against what the index promised. The probe is a
few blocks long, differs every time, and asks for one token.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import orjson

from longproof.domain.kv_event import KvEvent, KvStored
from longproof.domain.request import Route
from longproof.engines.link import Link
from longproof.errors import EngineMisbehaved, EngineSilent
from longproof.gateway.ask import Ask, Json
from longproof.gateway.index_health import (
    IndexHealth,
    IndexState,
    Mark,
    diagnose,
    over_credit,
    running_trouble,
    wrong_size,
)
from longproof.gateway.kv_stream import FeedState
from longproof.gateway.ports import Counted

_log = logging.getLogger("longproof.gateway")
Count: TypeAlias = Callable[[Ask], Awaitable[Counted]]
Credit: TypeAlias = Callable[[str], tuple[int, int] | None]
OnHealth: TypeAlias = Callable[[IndexHealth], None]
_PROBE_BLOCKS = 2
_SEND_S = 120.0
_SUBSCRIBE_S = 0.2
_RETRY_FACTOR, _LONGEST_RETRY_S = 4.0, 3_600.0
_WORDS = ("lake", "river", "stone", "cloud", "field", "winter", "harbour", "lantern", "garden", "bridge", "market")


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """One replica to test. `model` is what its requests name; `states` are its feeds (one per rank)."""

    replica: str
    model: str
    link: Link
    block_tokens: int
    states: Sequence[FeedState]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckRules:
    """`count` counts a probe as every prompt is. `credit`: blocks that the index promised and replies found, since
    ever, by replica. `wait_s`: so long after its answer a probe's events must have come; `retry_s` after a failure it
    is sent again."""

    count: Count
    credit: Credit = lambda _: None
    wait_s: float = 5.0
    retry_s: float = 30.0


class IndexCheck:
    """Checks all replicas that publish events. `on_health` is told every change, on the event loop."""

    def __init__(
        self, probed: Sequence[Probed], rules: CheckRules, on_health: OnHealth, *, rng: random.Random | None = None
    ) -> None:
        chance = rng or random.SystemRandom()
        self._checks = {one.replica: _Check(one, rules, on_health, chance) for one in probed}

    def start(self) -> None:
        """Begins with every replica."""
        for check in self._checks.values():
            check.begin()

    async def close(self) -> None:
        """Ends all checks."""
        tasks = [check.task for check in self._checks.values() if check.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def health(self) -> tuple[IndexHealth, ...]:
        """All, in the order given."""
        return tuple(check.health for check in self._checks.values())

    def again(self, replica: str) -> None:
        """A replica is up again: what was found of it no longer counts."""
        if replica in self._checks:
            self._checks[replica].begin()

    def saw(self, replica: str, event: KvEvent) -> None:
        """An event on its way into the index."""
        if isinstance(event, KvStored) and replica in self._checks:
            self._checks[replica].stored(event.blocks)


class _Check:
    """One replica's."""

    def __init__(self, probed: Probed, rules: CheckRules, on_health: OnHealth, rng: random.Random) -> None:
        self._probed, self._rules, self._on_health, self._rng = probed, rules, on_health, rng
        self.health = IndexHealth(replica=probed.replica, state=IndexState.CHECKING)
        self.task: asyncio.Task[None] | None = None
        self._probes = 0
        self._wanted: set[int] = set()
        self._came = asyncio.Event()
        self._marks: list[Mark] = []
        self._credit = (0, 0)

    def begin(self) -> None:
        """From the start, whatever goes on."""
        if self.task is not None:
            self.task.cancel()
        self._tell(IndexState.CHECKING, "")
        self.task = asyncio.create_task(self._follow())

    def stored(self, blocks: Sequence[int]) -> None:
        """The engine has stored these."""
        if self._wanted:
            self._wanted.difference_update(blocks)
            if not self._wanted:
                self._came.set()

    async def _follow(self) -> None:
        retry_s = self._rules.retry_s
        while True:
            try:
                trouble = await self._probe()
            except Exception:  # without a word from here the index would be called checked for ever
                _log.exception("checking the index of %s", self._probed.replica)
                trouble = "the check itself failed; the gateway's log says how"
            if trouble is None:
                await asyncio.sleep(retry_s)
                continue
            if not trouble:
                self._tell(IndexState.OK, "")
                while not trouble:
                    await asyncio.sleep(self._rules.wait_s)
                    trouble = self._trouble()
                # the probe was good and what runs is not: another probe will be good as well, and would only begin
                # the same again, with an index that is empty each time
                retry_s = min(retry_s * _RETRY_FACTOR, _LONGEST_RETRY_S)
            self._tell(IndexState.DEGRADED, trouble)
            await asyncio.sleep(retry_s)

    def _trouble(self) -> str:
        for state, mark in zip(self._probed.states, self._marks, strict=True):
            found = running_trouble(state, mark)
            if found:
                return found
        promised, found_blocks = self._rules.credit(self._probed.replica) or (0, 0)
        return over_credit(promised - self._credit[0], found_blocks - self._credit[1])

    async def _probe(self) -> str | None:
        """Why it failed; "" when the blocks came; None when nothing can be said since the engine is too busy to answer:
        its events are not late as long as its answer is not there."""
        ask = self._ask()
        counted = await self._rules.count(ask)
        if not counted.exact or not counted.blocks:
            return "the probe's tokens cannot be counted: without them blocks have no names"
        await self._subscribed()
        self._mark()
        self._wanted, self._came = set(counted.blocks), asyncio.Event()
        try:
            await self._probed.link.post("/v1/completions", ask.fields, timeout_s=_SEND_S)
            async with asyncio.timeout(self._rules.wait_s):
                await self._came.wait()
        except TimeoutError:
            reasons = [diagnose(state, mark) for state, mark in zip(self._probed.states, self._marks, strict=True)]
            return reasons[self._nearest()]
        except EngineSilent:
            return None
        except EngineMisbehaved as problem:
            return f"the engine did not take the probe: {problem.what[:200]}"
        finally:
            self._wanted = set()
        pairs = zip(self._probed.states, self._marks, strict=True)  # what an earlier life of the engine told is over
        size = next((found for state, mark in pairs if (found := wrong_size(state, mark))), "")
        self._mark()
        return size

    async def _subscribed(self) -> None:
        """Waits for the connections: a publisher knows of a subscription a moment after its connection, and what it
        publishes before is lost."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + self._rules.wait_s / 2
        # what is waited for happens in the feed's thread, which has no asyncio.Event to set
        while not all(state.connected for state in self._probed.states) and loop.time() < end_s:  # noqa: ASYNC110
            await asyncio.sleep(_SUBSCRIBE_S / 10)
        await asyncio.sleep(_SUBSCRIBE_S)

    def _mark(self) -> None:
        self._marks = [Mark.of(state) for state in self._probed.states]
        self._credit = self._rules.credit(self._probed.replica) or (0, 0)

    def _nearest(self) -> int:
        """Of several feeds, one that brought something: it knows best what is wrong."""
        pairs = enumerate(zip(self._probed.states, self._marks, strict=True))
        return next((place for place, (state, mark) in pairs if state.messages > mark.messages), 0)

    def _ask(self) -> Ask:
        """Text of a few blocks that nobody sent before; a word is a token at least, and so is a number."""
        self._probes += 1
        pairs = (_PROBE_BLOCKS + 1) * self._probed.block_tokens // 2 + 1
        text = " ".join(f"{self._rng.choice(_WORDS)} {self._rng.randrange(10_000)}" for _ in range(pairs))
        fields: Json = {"model": self._probed.model, "prompt": text, "max_tokens": 1, "temperature": 0}
        return Ask(
            id=f"probe-{self._probes}",
            route=Route.COMPLETIONS,
            model=self._probed.model,
            body=orjson.dumps(fields),
            fields=fields,
        )

    def _tell(self, state: IndexState, reason: str) -> None:
        if (self.health.state, self.health.reason) == (state, reason) and self.task is not None:
            return
        self.health = IndexHealth(replica=self._probed.replica, state=state, reason=reason)
        self._on_health(self.health)
