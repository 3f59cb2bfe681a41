"""Keeps pinned prefixes warm: sends each as a request of one token where `policy.pinned` wants it.

    every second: due? ─▶ desk (lowest priority, meant for one replica) ─▶ engine ─▶ desk, meter, pins

A warm-up goes the way of every request, through ledger, queue and books of whoever pinned it; it is only meant for one
replica, and nobody waits for its answer.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable
from dataclasses import replace

from longproof.clock import NS_PER_S
from longproof.domain.events import Usage
from longproof.domain.fleet import FleetSnapshot, ReplicaState
from longproof.gateway.exchange import Surroundings
from longproof.gateway.kept_prefixes import Kept, KeptPrefixes
from longproof.gateway.ports import Admitted, MeterUnavailable, Spent
from longproof.gateway.upstream import Lost, Unreached
from longproof.gateway.usage import usage_in
from longproof.policy.actions import Dispatch, Refusal
from longproof.policy.arrivals import Arrival, Ended, EndKind
from longproof.policy.pinned import PinnedPrefixes, Warm

_EVERY_S = 1.0
_PRIORITY = 1_000
"""Behind everybody else who waits."""
_LONGEST_ANSWER_BYTES = 1 << 20
_log = logging.getLogger("longproof.gateway")


class Warming:
    """The task that looks what is due. `start` it, and `close` it before the upstream pool is closed. `fleet`: the
    controller's snapshot."""

    def __init__(self, around: Surroundings, prefixes: KeptPrefixes, fleet: Callable[[], FleetSnapshot]) -> None:
        self._around = around
        self._fleet = fleet
        self._prefixes = prefixes
        self._numbers = itertools.count(1)
        self._looking: asyncio.Task[None] | None = None
        self._warming: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Begins to look, with what earlier runs left."""
        self._looking = asyncio.create_task(self._look())

    async def close(self) -> None:
        """Ends it; warm-ups under way are broken off."""
        tasks = [*self._warming, *([] if self._looking is None else [self._looking])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _look(self) -> None:
        for content in await asyncio.to_thread(self._prefixes.stored):
            if content.name in self._prefixes.kept:
                continue  # put anew before its turn came
            try:
                refused = await self._prefixes.put(content, self.caches(content.model))
            except Exception:  # one that cannot be counted must not keep the others cold
                _log.exception("prefix %s cannot be pinned again", content.name)
                continue
            if refused is not None:
                _log.warning("prefix %s is no longer pinned: %s", content.name, refused.reason)
        index = self._prefixes.router.index
        while True:
            for model, pins in self._prefixes.pins():
                for warm in pins.due(self._around.clock.now_ns(), self.caches(model), index.match):
                    task = asyncio.create_task(self._warm(pins, warm))
                    self._warming.add(task)
                    task.add_done_callback(self._warming.discard)
            await asyncio.sleep(_EVERY_S)

    def caches(self, model: str) -> dict[str, int | None]:
        """The replicas that serve a model now, with the blocks each can cache (None = not known)."""
        up = [one.name for one in self._fleet().replicas if one.state is ReplicaState.UP and model in one.models]
        return {name: self._prefixes.router.cache_blocks(name) for name in up}

    async def _warm(self, pins: PinnedPrefixes, warm: Warm) -> None:
        kept = self._prefixes.kept.get(warm.name)
        if kept is None:
            return
        done = False
        try:
            async with asyncio.timeout(pins.rule.retry_ns / NS_PER_S):
                done = await self._send(kept, warm.replica)
        except TimeoutError:
            kept.problem = f"replica {warm.replica} did not take it in time"
        finally:
            pins.warmed(warm.name, warm.replica, self._around.clock.now_ns(), done=done)

    async def _send(self, kept: Kept, replica: str) -> bool:
        desk, request_id = self._around.desk, f"lp-pin-{next(self._numbers)}"
        arrival = Arrival(
            id=request_id,
            tenant=kept.content.tenant,
            model=kept.content.model,
            input_tokens=kept.counted.input_tokens,
            exact=kept.counted.exact,
            output_tokens=1,
            blocks=kept.counted.blocks,
            by_text=kept.counted.by_text,
            priority=_PRIORITY,
            streamed=False,
            only=replica,
        )
        end = Ended(kind=EndKind.CANCELLED)
        dispatch: Dispatch | None = None
        try:
            ticket, wait = desk.arrive(arrival)
            if wait is not None and wait.count:
                desk.counted(request_id, replace(kept.counted, exact=True))
            answer = await ticket.answer()
            if isinstance(answer, Refusal):
                kept.problem = answer.reason
                return False
            self._write_down(kept, answer, request_id)
            dispatch = answer
            end = await self._exchange(kept, answer)
            return end.kind is EndKind.COMPLETED
        except MeterUnavailable as problem:
            kept.problem = f"its usage cannot be written down: {problem}"
            return False
        finally:
            self._settle(request_id, dispatch, end)

    async def _exchange(self, kept: Kept, dispatch: Dispatch) -> Ended:
        fleet, replica = self._around.fleet, self._around.fleet.by_name[dispatch.replica]
        headers = {"Content-Type": "application/json", "X-Request-Id": dispatch.id}
        if replica.authorization is not None:
            headers["Authorization"] = replica.authorization
        url = fleet.entry(dispatch.replica, kept.content.route)
        try:
            answer = await fleet.upstream.send(url, headers, kept.content.body())
            try:
                body = await answer.read(_LONGEST_ANSWER_BYTES)
            finally:
                answer.drop()
        except (Unreached, Lost) as problem:
            kept.problem = f"replica {dispatch.replica} was lost: {problem}"
            return Ended(kind=EndKind.FAILED)
        if answer.status != 200:
            kept.problem = f"replica {dispatch.replica} answered {answer.status}: {body[:200].decode(errors='replace')}"
            return Ended(kind=EndKind.REJECTED)
        kept.problem = None
        usage = usage_in(body) or Usage()
        return Ended(
            kind=EndKind.COMPLETED,
            input_tokens=usage.prompt_tokens,
            output_tokens=usage.completion_tokens,
            cached_tokens=usage.cached_tokens,
        )

    def _write_down(self, kept: Kept, dispatch: Dispatch, request_id: str) -> None:
        self._around.meter.admitted(
            Admitted(
                id=request_id,
                key=kept.content.key,
                tenant=kept.content.tenant,
                model=kept.content.model,
                replica=dispatch.replica,
                pool=dispatch.pool,
                predicted_cached_tokens=dispatch.cached_tokens,
                input_tokens=kept.counted.input_tokens,
                output_tokens=1,
                at_ns=self._around.clock.now_ns(),
            )
        )

    def _settle(self, request_id: str, dispatch: Dispatch | None, end: Ended) -> None:
        desk = self._around.desk
        if dispatch is None:
            desk.cancel(request_id)
            return
        occupied = desk.kv_token_ms(request_id)
        desk.leave(request_id, end)
        given = end.input_tokens
        self._around.meter.spent(
            Spent(
                id=request_id,
                ending=end.kind,
                status=200 if end.kind is EndKind.COMPLETED else 502,
                input_tokens=dispatch.input_tokens if given is None else given,
                cached_tokens=end.cached_tokens,
                output_tokens=end.output_tokens or 0,
                reported=given is not None,
                at_ns=self._around.clock.now_ns(),
                kv_token_ms=occupied,
            )
        )
