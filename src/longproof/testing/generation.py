"""What happens once a request is admitted: prefill, tokens, and the end or the fault."""

from __future__ import annotations

from array import array
from collections.abc import Callable

from longproof.clock import NS_PER_S
from longproof.testing.answer_plan import AnswerPlan, claimed_counts, damaged, pieces, told_of, usage_of
from longproof.testing.ask import Ask
from longproof.testing.dialects import Json
from longproof.testing.engine_log import Ending, Served
from longproof.testing.engine_state import EngineState
from longproof.testing.lie import Lie, find
from longproof.testing.lies import Crash, CutStream, ErrorInStream, HideCached, KeepAlive, RoleEarly
from longproof.testing.lies_of_load import SpecDecodeOutputChanges, WarmDamage, WrongWhenBusy
from longproof.testing.pace import Pace
from longproof.testing.presence import Aborted, Presence
from longproof.testing.replies import Fault, Reply
from longproof.testing.wire_shapes import timings

HandOn = Callable[[], Json | None]
"""Keeps the KV for another engine, once all is computed; gives what the answer then carries."""


class Generation:
    """One admitted request. `pace` says when its tokens are ready. `claimed_transfer_tokens`: prompt tokens that the
    answer says another engine computed."""

    def __init__(
        self,
        state: EngineState,
        served: Served,
        client: Presence,
        ask: Ask,
        plan: AnswerPlan,
        reply: Reply,
        lies: tuple[Lie, ...],
        *,
        pace: Pace,
        claimed_transfer_tokens: int = 0,
    ) -> None:
        self._state = state
        self._behaviour = state.behaviour
        self._served = served
        self._client = client
        self._ask = ask
        self._reply = reply
        self._lies = lies
        self._pace = pace
        self._claimed_transfer_tokens = claimed_transfer_tokens
        self._started_ns = served.admitted_ns or state.clock.now_ns()
        self._last_ns = self._started_ns
        self._plan = self._really(plan)

    async def run(self, hand_on: HandOn) -> Ending:
        """Generates and ends the reply, in order or not. Raises ClientLeft."""
        try:
            await self._prefill()
            self._count_prefill()
            try:
                await self._tokens()
            finally:
                self._count_tokens()
        except Aborted:
            await self._finish("abort", None)
            return Ending.ABORTED
        self._keep(self._served.read_ids + array("I", self._plan.tokens))
        return await self._end(hand_on)

    def _really(self, plan: AnswerPlan) -> AnswerPlan:
        """The plan, but for the lies that change what is said."""
        read, lies = self._served.read_ids, self._lies
        warm, busy, speculates = find(lies, WarmDamage), find(lies, WrongWhenBusy), find(lies, SpecDecodeOutputChanges)
        if warm is not None and self._served.cached_tokens >= warm.cached_tokens:
            plan = told_of(plan, damaged(read))
        if speculates is not None and self._behaviour.speculation:
            plan = told_of(plan, damaged(read), after_tokens=speculates.after_tokens)
        other = self._state.open.beside(self._served) if busy is not None else None
        return plan if other is None else told_of(plan, other.read_ids)

    async def _prefill(self) -> None:
        early, alive = find(self._lies, RoleEarly), find(self._lies, KeepAlive)
        if early is not None:
            await self._reply.early_role(early.content)
        if alive is not None:
            ready = False
            while not ready:
                await self._reply.comment()
                ready = await self._pace.first(alive.every_s)
        await self._pace.first()
        self._keep(self._served.read_ids)
        if self._plan.tokens or self._plan.fault is None:
            self._reply.role()

    async def _tokens(self) -> None:
        served, plan, clock = self._served, self._plan, self._state.clock
        for piece, out in pieces(plan, self._ask, self._lies):
            await self._pace.token(out)
            now_ns = clock.now_ns()
            if served.first_token_ns is None:
                served.first_token_ns = now_ns
            else:
                self._state.counters.inter_token.observe((now_ns - self._last_ns) / NS_PER_S)
            self._last_ns = now_ns
            await self._reply.token(piece, last=out == len(plan.tokens) and plan.fault is None)
            served.output_tokens = out
            served.text += piece.text
        served.output_tokens = len(plan.tokens)

    async def _end(self, hand_on: HandOn) -> Ending:
        fault = self._plan.fault
        if isinstance(fault, Crash):
            self._state.go_down()
            return Ending.CRASHED
        if isinstance(fault, CutStream):
            await self._reply.cut(fault)
            return Ending.CUT
        if isinstance(fault, ErrorInStream):
            await self._reply.error(Fault(message=fault.message, form=fault.form, then_done=fault.then_done))
            return Ending.ERROR
        await self._finish(self._plan.finish, hand_on())
        self._count_end()
        return Ending.COMPLETED

    async def _finish(self, reason: str, handed_on: Json | None) -> None:
        served, lies, first_ns = self._served, self._lies, self._pace.first_ns
        claimed = claimed_counts(
            self._ask,
            read=served.read_tokens,
            cached=self._claimed_transfer_tokens or served.cached_tokens,
            produced=served.output_tokens if reason == "abort" else len(self._plan.tokens),
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
        served.claimed_usage = await self._reply.end(reason, usage, own_account, handed_on)

    def _keep(self, ids: array[int]) -> None:
        self._state.cache.keep(ids, salt=self._ask.salt)

    def _count_prefill(self) -> None:
        served, counters = self._served, self._state.counters
        hide = find(self._lies, HideCached)
        shown = 0 if hide is not None and hide.in_metrics else served.cached_tokens
        prefill_s = (self._pace.first_ns - self._started_ns) / NS_PER_S
        counters.processed_tokens += served.read_tokens - shown - served.transferred_tokens
        counters.cached_tokens += shown
        counters.external_tokens += served.transferred_tokens
        counters.prefill_s += prefill_s
        counters.prefill.observe(prefill_s)
        counters.ttft.observe((self._state.clock.now_ns() - served.received_ns) / NS_PER_S)

    def _count_tokens(self) -> None:
        decode_s = (self._state.clock.now_ns() - self._pace.first_ns) / NS_PER_S
        self._state.counters.output_tokens += self._served.output_tokens
        self._state.counters.decode_s += decode_s

    def _count_end(self) -> None:
        counters, served, now_ns = self._state.counters, self._served, self._state.clock.now_ns()
        counters.longest_tokens = max(counters.longest_tokens, served.read_tokens + len(self._plan.tokens))
        counters.finish(self._plan.finish)
        counters.decode.observe((now_ns - self._pace.first_ns) / NS_PER_S)
        counters.e2e.observe((now_ns - served.received_ns) / NS_PER_S)
