"""What is done to a fleet under load. Each fault undoes itself, so that what follows it can be judged at rest."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from chaos.clients import Clients
from chaos.processes import SILENCE_S, Disk, Engine, Gateway, WallClock
from chaos.truth import Feed, Kill

_DAY_S = 86_400
_LONGEST_S = 60.0
_PATIENCE_S = 30.0
"""How long what is wrong with KV events, or right again, is waited for; what the laws allow is less."""


@dataclass(slots=True, kw_only=True)
class Stage:
    """Everything a fault can get at. `embedded`: a real llama.cpp is one of the replicas."""

    engines: list[Engine]
    gateway: Gateway
    disk: Disk
    clock: WallClock
    clients: Clients
    kills: list[Kill]
    feeds: list[Feed]
    rng: random.Random
    embedded: bool
    restarts_s: list[float]

    async def busiest(self) -> Engine:
        """The engine with most requests: what is done to it is felt."""
        return (await self.busiest_first())[0]

    async def busiest_first(self) -> list[Engine]:
        """All engines."""
        figures = await asyncio.to_thread(self.gateway.figures)

        def running(engine: Engine) -> float:
            label = f'{{replica="{engine.name}"}}'
            return sum(figures.get(f"longproof_replica_{phase}{label}", 0.0) for phase in ("prefilling", "decoding"))

        return sorted(self.engines, key=running, reverse=True)

    async def kill_engine(self, engine: Engine, *, away_s: float, **kv: object) -> None:
        """kill -9, and a new process on the same ports after a while. `kv`: what is wrong with its KV events."""
        kill = Kill(what=engine.name, at_ns=time.monotonic_ns())
        self.kills.append(kill)
        engine.kill()
        await asyncio.sleep(away_s)
        await asyncio.to_thread(engine.start, **kv)
        kill.back_ns = time.monotonic_ns()

    async def wrong_feed(self, what: str, words: str, **kv: object) -> None:
        """An engine is started again with other KV events than the gateway expects, and then once more as it was."""
        engine, seen = await self.busiest(), len(self.gateway.log())
        await self.kill_engine(engine, away_s=0.3, **kv)
        feed = Feed(what=what, engine=engine.name, at_ns=time.monotonic_ns(), words=words)
        self.feeds.append(feed)
        feed.told_ns = await self._told(engine, seen, feed.words)
        await asyncio.sleep(1.0)
        seen = len(self.gateway.log())
        await self.kill_engine(engine, away_s=0.3)
        feed.mended_ns = time.monotonic_ns()
        feed.well_ns = await self._told(engine, seen, "ok")

    async def _told(self, engine: Engine, since: int, words: str) -> int | None:
        """When the gateway said so of an engine's index; None: it did not."""
        end_s = time.monotonic() + _PATIENCE_S
        while time.monotonic() < end_s:
            if any(words in told for told in await asyncio.to_thread(self.gateway.told_of, engine.name, since)):
                return time.monotonic_ns()
            await asyncio.sleep(0.05)
        return None

    async def kill_gateway(self) -> None:
        """kill -9, and a new process at once."""
        kill = Kill(what="gateway", at_ns=time.monotonic_ns())
        self.kills.append(kill)
        self.gateway.kill()
        self.restarts_s.append(await asyncio.to_thread(self.gateway.start))
        kill.back_ns = time.monotonic_ns()

    async def drain_gateway(self) -> None:
        """SIGTERM, and a new process when it has ended."""
        kill = Kill(what="drain", at_ns=time.monotonic_ns())
        self.kills.append(kill)
        code = await asyncio.to_thread(self.gateway.drain)
        if code:
            raise RuntimeError(f"the gateway ended with {code} when it was told to drain")
        await asyncio.to_thread(self.gateway.start)
        kill.back_ns = time.monotonic_ns()

    async def lie(self, engines: list[Engine], lies: list[str], *, for_s: float, **more: object) -> None:
        """Engines tell lies for a while."""
        for engine in engines:
            await asyncio.to_thread(engine.tell, lies=lies, **more)
        await asyncio.sleep(for_s)
        for engine in engines:
            await asyncio.to_thread(engine.tell, lies=[], start=True)


async def nothing(_: Stage) -> None:
    """The load alone."""
    await asyncio.sleep(2.0)


async def kill_replica(stage: Stage) -> None:
    """kill -9 one engine; a new process takes its ports."""
    await stage.kill_engine(await stage.busiest(), away_s=stage.rng.uniform(0.1, 3.0))


async def kill_gateway(stage: Stage) -> None:
    """kill -9 the gateway; a new process takes its port."""
    await stage.kill_gateway()


async def kill_both(stage: Stage) -> None:
    """kill -9 the gateway and an engine in the same moment."""
    await asyncio.gather(stage.kill_engine(await stage.busiest(), away_s=0.5), stage.kill_gateway())


async def drain(stage: Stage) -> None:
    """SIGTERM to the gateway."""
    await stage.drain_gateway()


async def freeze_short(stage: Stage) -> None:
    """SIGSTOP one engine for less than the gateway's patience."""
    await _freeze(stage, SILENCE_S * 0.4)


async def freeze_long(stage: Stage) -> None:
    """SIGSTOP one engine for longer than the gateway's patience."""
    await _freeze(stage, SILENCE_S * 1.6)


async def freeze_gateway(stage: Stage) -> None:
    """SIGSTOP the gateway for longer than its own patience with engines: its clock jumps, as after a pause of its
    machine, while answers wait in its sockets."""
    os.kill(stage.gateway.pid, signal.SIGSTOP)
    await asyncio.sleep(SILENCE_S * 1.4)
    os.kill(stage.gateway.pid, signal.SIGCONT)


async def _freeze(stage: Stage, for_s: float) -> None:
    engine = await stage.busiest()
    engine.signal(signal.SIGSTOP)
    await asyncio.sleep(for_s)
    engine.signal(signal.SIGCONT)


async def cut_streams(stage: Stage) -> None:
    """All engines but one close connections in the middle of answers: between events, in one, in a character."""
    where = stage.rng.choice(("between", "in_event", "in_utf8"))
    lies = [f"cut_stream:after_tokens={stage.rng.randrange(6)},where={where},skip=1"]
    await stage.lie((await stage.busiest_first())[:2], lies, for_s=2.0)


async def errors_in_streams(stage: Stage) -> None:
    """All engines but one report errors inside streams, with and without an end."""
    done = stage.rng.choice(("true", "false"))
    lies = [f"error_in_stream:after_tokens={stage.rng.randrange(6)},then_done={done}"]
    await stage.lie((await stage.busiest_first())[:2], lies, for_s=2.0)


async def crash(stage: Stage) -> None:
    """One engine drops every connection and stops listening, and listens again later."""
    engine = await stage.busiest()
    await stage.lie([engine], [f"crash:after_tokens={stage.rng.randrange(8)},skip=3,times=1"], for_s=2.0)


async def refuse_one(stage: Stage) -> None:
    """One engine refuses with 503 and Retry-After 2."""
    await stage.lie([await stage.busiest()], ["refuse:status=503,retry_after_s=2"], for_s=3.0)


async def refuse_all(stage: Stage) -> None:
    """All engines refuse with 429 and Retry-After 2, and one fails with 500."""
    await asyncio.gather(
        stage.lie(stage.engines[1:], ["refuse:status=429,retry_after_s=2"], for_s=3.0),
        stage.lie(stage.engines[:1], ["refuse:status=500,retry_after_s=none"], for_s=3.0),
    )


_LOST = {"lose": range(0, 400, 7), "lose_for_ever": range(1, 400, 50)}
_OUT_OF_ORDER = {"double": range(2, 400, 5), "swap": range(4, 400, 9)}


async def events(stage: Stage) -> None:
    """KV events of every engine are lost (some for ever), doubled and reordered."""
    await _wrong_numbers(stage, **_LOST, **_OUT_OF_ORDER)


async def events_no_replay(stage: Stage) -> None:
    """KV events of every engine are lost, and its replay takes questions and answers none: the feed gives up asking
    after five seconds."""
    await _wrong_numbers(stage, deaf=True, for_s=7.0, **_LOST)


async def _wrong_numbers(stage: Stage, *, for_s: float = 2.0, deaf: bool = False, **places: range) -> None:
    wrong = {name: list(where) for name, where in places.items()}
    for engine in stage.engines:
        await asyncio.to_thread(engine.tell, kv=wrong, deaf=deaf)
    await asyncio.sleep(for_s)
    for engine in stage.engines:
        await asyncio.to_thread(engine.tell, kv={name: [] for name in wrong}, deaf=False)


async def publisher_anew(stage: Stage) -> None:
    """The publisher of every engine begins again: other connections, numbers from 0, all that is cached told anew."""
    for engine in stage.engines:
        await asyncio.to_thread(engine.tell, publish_anew=True)
    await asyncio.sleep(2.0)


async def kv_topic(stage: Stage) -> None:
    """An engine comes back with another topic."""
    await stage.wrong_feed("topic", "(kv_topic)", topic="kv@other")


async def kv_block_size(stage: Stage) -> None:
    """An engine comes back with other blocks than it says."""
    await stage.wrong_feed("block size", "(block_tokens)", block_tokens=stage.rng.choice((8, 24, 64)))


async def kv_tokenizer(stage: Stage) -> None:
    """An engine comes back with the tokens of another tokenizer."""
    await stage.wrong_feed("tokenizer", "our tokenizer or template is not the engine's", shift_ids=1)


async def kv_silent(stage: Stage) -> None:
    """An engine comes back and publishes nothing."""
    await stage.wrong_feed("nothing", "no event came", silent=True)


async def kv_seed(stage: Stage) -> None:
    """An engine comes back with another seed of its hashes: no difference, as blocks are known by their tokens."""
    await stage.wrong_feed("seed", "ok", hash_seed=stage.rng.randrange(1, 1_000))


async def kv_parents(stage: Stage) -> None:
    """An engine comes back with hashes that do not hang together, as of two seeds."""
    await stage.wrong_feed("seed of parents", "follow blocks that were never told of", foreign_parents=True)


async def clock_forward(stage: Stage) -> None:
    """The wall clock jumps a day ahead, and back."""
    await _move(stage, _DAY_S)


async def clock_back(stage: Stage) -> None:
    """The wall clock jumps a day back, and ahead again."""
    await _move(stage, -_DAY_S)


async def _move(stage: Stage, seconds: int) -> None:
    stage.clock.move(seconds)
    await asyncio.sleep(2.0)
    stage.clock.move(0)


async def disk_full(stage: Stage) -> None:
    """The disk of usage journal, ledger and decision log is full for a while. Then a drain: the decision log has a hole
    now, and what follows is to be judged."""
    stage.disk.fill(stage.gateway.pid)
    await asyncio.sleep(2.5)
    stage.disk.free(stage.gateway.pid)
    await asyncio.sleep(2.0)
    await stage.drain_gateway()


async def disk_full_and_killed(stage: Stage) -> None:
    """The disk is full, the gateway is killed, and refuses to start before there is room."""
    stage.disk.fill(stage.gateway.pid)
    await asyncio.sleep(1.0)
    kill = Kill(what="gateway", at_ns=time.monotonic_ns())
    stage.kills.append(kill)
    stage.gateway.kill()
    code = await asyncio.to_thread(stage.gateway.start_in_vain) if stage.disk.mounted else 2
    if code != 2:
        raise RuntimeError(f"the gateway ended with {code} when its disk was full")
    stage.disk.free(stage.gateway.pid)
    stage.restarts_s.append(await asyncio.to_thread(stage.gateway.start))
    kill.back_ns = time.monotonic_ns()


async def slow_readers(stage: Stage) -> None:
    """Long answers to clients that take them slowly, or not at all."""
    for engine in stage.engines:
        await asyncio.to_thread(engine.tell, lies=[], token_s=0.0005)
    kinds = ("slow reader", "slow reader", "stalled reader", "stalled reader")
    async with asyncio.timeout(_LONGEST_S):
        await asyncio.gather(*(stage.clients.one(kind) for kind in kinds))
    for engine in stage.engines:
        await asyncio.to_thread(engine.tell, lies=[])


async def disconnects(stage: Stage) -> None:
    """Nearly every client leaves before its answer is whole."""
    before, stage.clients.kinds = stage.clients.kinds, (("leaves early", 45), ("leaves midway", 45), ("stream", 10))
    await asyncio.sleep(2.5)
    stage.clients.kinds = before


async def kill_embedded(stage: Stage) -> None:
    """kill -9 the embedded llama.cpp; the gateway starts it again."""
    child = stage.gateway.embedded()
    if child is None:
        raise RuntimeError("the embedded engine does not run")
    stage.kills.append(Kill(what="embedded", at_ns=time.monotonic_ns()))
    child.kill()
    async with asyncio.timeout(_LONGEST_S):
        # another process, which nothing tells us of
        while (found := stage.gateway.embedded()) is None or found.pid == child.pid:  # noqa: ASYNC110
            await asyncio.sleep(0.2)


async def freeze_embedded(stage: Stage) -> None:
    """SIGSTOP the embedded llama.cpp for longer than the gateway's patience."""
    child = stage.gateway.embedded()
    if child is None:
        raise RuntimeError("the embedded engine does not run")
    child.suspend()
    await asyncio.sleep(SILENCE_S * 1.6)
    child.resume()


Fault = Callable[[Stage], Awaitable[None]]
FAULTS: tuple[Fault, ...] = (
    nothing,
    kill_replica,
    kill_gateway,
    kill_both,
    drain,
    freeze_short,
    freeze_long,
    freeze_gateway,
    cut_streams,
    errors_in_streams,
    crash,
    refuse_one,
    refuse_all,
    events,
    events_no_replay,
    publisher_anew,
    kv_topic,
    kv_block_size,
    kv_tokenizer,
    kv_silent,
    kv_seed,
    kv_parents,
    clock_forward,
    clock_back,
    disk_full,
    disk_full_and_killed,
    slow_readers,
    disconnects,
)
EMBEDDED: tuple[Fault, ...] = (kill_embedded, freeze_embedded)
