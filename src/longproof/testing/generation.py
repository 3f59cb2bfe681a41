"""What happens once a request is admitted: prefill, tokens, and the end or the fault."""

from __future__ import annotations

from array import array

from longproof.clock import NS_PER_S
from longproof.testing.answer_plan import AnswerPlan, claimed_counts, pieces, usage_of
from longproof.testing.ask import Ask
from longproof.testing.engine_log import Ending, Served
from longproof.testing.engine_state import EngineState
from longproof.testing.lies import (
    Crash,
    CutStream,
    ErrorInStream,
    HideCached,
    IgnoreCold,
    KeepAlive,
    Lie,
    RoleEarly,
    SlowPrefill,
    StallStream,
    find,
)
from longproof.testing.presence import Presence
from longproof.testing.replies import Reply
from longproof.testing.wire_shapes import timings


class Generation:
    """One admitted request. Times follow a timetable fixed at admission, so that waits do not add up:

    admitted ──(uncached tokens / rate + delay)──▶ token 1 ──token_s──▶ token 2 ──token_s──▶ …
    """

    def __init__(
        self,
        state: EngineState,
        served: Served,
        client: Presence,
        ask: Ask,
        plan: AnswerPlan,
        reply: Reply,
        lies: tuple[Lie, ...],
    ) -> None:
        self._state = state
        self._behaviour = state.behaviour
        self._served = served
        self._client = client
        self._ask = ask
        self._plan = plan
        self._reply = reply
        self._lies = lies
        self._started_ns = state.clock.now_ns()

    async def run(self) -> Ending:
        """Generates and ends the reply, in order or not. Raises ClientLeft."""
        served, cache = self._served, self._state.cache
        if not self._ask.cold or find(self._lies, IgnoreCold) is not None:
            served.cached_tokens = cache.cached_tokens(served.read_ids, salt=self._ask.salt)
        first_ns = self._started_ns + round(self._prefill_s() * NS_PER_S)
        await self._prefill(first_ns)
        cache.keep(served.read_ids, salt=self._ask.salt)
        self._count_prefill(first_ns)
        try:
            await self._tokens(first_ns)
        finally:
            self._state.counters.output_tokens += served.output_tokens
            self._state.counters.decode_s += (self._state.clock.now_ns() - first_ns) / NS_PER_S
        cache.keep(served.read_ids + array("I", self._plan.tokens), salt=self._ask.salt)
        ending = await self._end(first_ns)
        self._count_end()
        return ending

    def _prefill_s(self) -> float:
        slow = find(self._lies, SlowPrefill)
        uncached = self._served.read_tokens - self._served.cached_tokens
        return uncached / self._behaviour.prefill_tokens_per_s + (0.0 if slow is None else slow.delay_s)

    async def _prefill(self, first_ns: int) -> None:
        early, alive = find(self._lies, RoleEarly), find(self._lies, KeepAlive)
        if early is not None:
            await self._reply.early_role(early.content)
        while alive is not None and self._state.clock.now_ns() < first_ns:
            await self._reply.comment()
            await self._client.sleep_until(min(self._state.clock.now_ns() + round(alive.every_s * NS_PER_S), first_ns))
        await self._client.sleep_until(first_ns)
        if self._plan.tokens or self._plan.fault is None:
            self._reply.role()

    async def _tokens(self, first_ns: int) -> None:
        served, plan = self._served, self._plan
        stall, stalled_ns = find(self._lies, StallStream), 0
        for piece, out in pieces(plan, self._ask, self._lies):
            if stall is not None and out > stall.after_tokens:
                stalled_ns = round(stall.for_s * NS_PER_S)
            due_ns = first_ns + stalled_ns + round((out - 1) * self._behaviour.token_s * NS_PER_S)
            await self._client.sleep_until(due_ns)
            served.first_token_ns = served.first_token_ns or self._state.clock.now_ns()
            await self._reply.token(piece, last=out == len(plan.tokens) and plan.fault is None)
            served.output_tokens = out
            served.text += piece.text
        served.output_tokens = len(plan.tokens)

    async def _end(self, first_ns: int) -> Ending:
        fault = self._plan.fault
        if isinstance(fault, Crash):
            self._state.go_down()
            return Ending.CRASHED
        if isinstance(fault, CutStream):
            await self._reply.cut(fault)
            return Ending.CUT
        if isinstance(fault, ErrorInStream):
            await self._reply.error(fault)
            return Ending.ERROR
        served, lies = self._served, self._lies
        claimed = claimed_counts(
            self._ask,
            read=served.read_tokens,
            cached=served.cached_tokens,
            produced=len(self._plan.tokens),
            lies=lies,
        )
        usage = usage_of(claimed, self._ask, self._behaviour, lies)
        own_account = None
        if self._behaviour.dialect.timings and usage is not None:
            own_account = timings(
                cached=claimed.cached,
                processed=claimed.prompt - claimed.cached,
                prompt_s=(first_ns - self._started_ns) / NS_PER_S,
                predicted=claimed.completion,
                predicted_s=(self._state.clock.now_ns() - first_ns) / NS_PER_S,
            )
        self._client.stop()  # the answer is complete: what follows is the ordinary end
        served.claimed_usage = await self._reply.end(self._plan.finish, usage, own_account)
        return Ending.COMPLETED

    def _count_prefill(self, first_ns: int) -> None:
        served, counters = self._served, self._state.counters
        hide = find(self._lies, HideCached)
        shown = 0 if hide is not None and hide.in_metrics else served.cached_tokens
        counters.processed_tokens += served.read_tokens - shown
        counters.cached_tokens += shown
        counters.prefill_s += (first_ns - self._started_ns) / NS_PER_S
        counters.ttft_s.append((self._state.clock.now_ns() - served.received_ns) / NS_PER_S)

    def _count_end(self) -> None:
        counters, served = self._state.counters, self._served
        counters.longest_tokens = max(counters.longest_tokens, served.read_tokens + len(self._plan.tokens))
        counters.finished[self._plan.finish] = counters.finished.get(self._plan.finish, 0) + 1
        counters.e2e_s.append((self._state.clock.now_ns() - served.received_ns) / NS_PER_S)
