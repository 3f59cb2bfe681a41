"""One generation request from its first byte to its end, as an ASGI exchange.

    body ─▶ Ask ─▶ lies in force ─▶ read part ─▶ window ─▶ queue limit ─▶ pool ─▶ prefill ─▶ tokens ─▶ end
              │            │                        │           │          │                  │
           refusal   refuse, hang, crash         refusal     refusal   refusal, queue   error, cut, crash

The client's leaving ends it wherever it is.
"""

from __future__ import annotations

import asyncio
import json

from longproof.clock import NS_PER_S
from longproof.testing.admission import Admission
from longproof.testing.answer_plan import AnswerPlan, plan_answer, read_part
from longproof.testing.answers import Asked
from longproof.testing.ask import Ask, Refusal, read_ask, read_json
from longproof.testing.dialects import VLLM
from longproof.testing.engine_log import Ending, Served
from longproof.testing.engine_state import EngineState
from longproof.testing.event_stream import Send, send_whole
from longproof.testing.fake_pool import PoolRefusal
from longproof.testing.fake_tokenizer import tokenizer
from longproof.testing.generation import Generation
from longproof.testing.kv_transfer import KvLoadFailed, load, offer, transfer_asked
from longproof.testing.lie import Lie, find
from longproof.testing.lies import Crash, Hang, HtmlAnswer, IgnoreCold, IgnoreDisconnect, Refuse, SlowHeaders
from longproof.testing.presence import Aborted, ClientLeft, Presence, Receive
from longproof.testing.queue_limit import FullInStream, turn_away_when_full
from longproof.testing.refusals import HTML_PAGE, refusal_body
from longproof.testing.replies import Fault, Reply, StreamReply, WholeReply
from longproof.testing.window import no_room, output_allowance
from longproof.testing.wire_shapes import Shapes

_KV_LOAD_FAILED = Fault(message="Internal server error", type="InternalServerError")


class _Over(Exception):  # noqa: N818 - a way out, not an error
    """The exchange ends here; a response that is open stays incomplete, so the server closes the connection."""

    def __init__(self, ending: Ending) -> None:
        super().__init__(ending.value)
        self.ending = ending


class Exchange:
    """Serves one request. `run` returns when it is over, whatever happened; the log entry says what did."""

    def __init__(self, state: EngineState, served: Served, receive: Receive, send: Send, *, chat: bool) -> None:
        self._state = state
        self._behaviour = state.behaviour
        self._served = served
        self._send = send
        self._chat = chat
        self._client = Presence(receive, state.clock, served)
        self._lies: tuple[Lie, ...] = ()
        dialect = state.behaviour.dialect
        own_id = served.headers.get("x-request-id") if dialect is VLLM else None
        self._answer_id = f"{dialect.id_prefix[0 if chat else 1]}{own_id or f'fake{served.index:08d}'}"
        # a completion's prompts are numbered inside vLLM
        self._id = self._answer_id if chat else f"{self._answer_id}-0"

    async def run(self) -> None:
        served = self._served
        try:
            await self._serve(await self._client.body())
        except Refusal as refusal:
            served.ending = Ending.REFUSED
            await self._refuse(refusal)
        except PoolRefusal as refusal:
            served.ending = Ending.REFUSED
            await self._refuse(no_room(refusal, self._behaviour))
        except ClientLeft:
            served.ending = Ending.DISCONNECTED
        except _Over as over:
            served.ending = over.ending
        finally:
            self._client.stop()
            self._state.open.leave(self._id)
            served.ending = served.ending or Ending.STOPPED
            served.finished_ns = self._state.clock.now_ns()

    async def _serve(self, raw: bytes) -> None:
        served, state = self._served, self._state
        ask = read_ask(read_json(raw, self._behaviour), self._behaviour, chat=self._chat)
        self._lies = state.schedule.in_force(self._behaviour.lies, len(ask.ids))
        self._client.stay = find(self._lies, IgnoreDisconnect) is not None
        served.options, served.prompt_tokens = ask.options, len(ask.ids)
        served.lies = tuple(lie.name for lie in self._lies)
        state.arrived(self._lies)
        await self._before_reading()
        served.read_ids = read_part(ask.ids, self._lies)
        allowance = output_allowance(ask, served.read_tokens, self._behaviour)
        plan = plan_answer(ask, served.read_ids, allowance, self._lies, words=self._words(ask))
        reply = self._reply(ask, plan)
        try:
            turn_away_when_full(state, ask, self._lies)
            await self._answer(ask, plan, reply, allowance)
        except (FullInStream, KvLoadFailed) as problem:
            if served.status is None:
                await self._open(reply)
            fault = problem.fault if isinstance(problem, FullInStream) else _KV_LOAD_FAILED
            served.ending = Ending.ERROR
            self._client.stop()
            await reply.error(fault)

    async def _answer(self, ask: Ask, plan: AnswerPlan, reply: Reply, allowance: int) -> None:
        served, state, hang = self._served, self._state, find(self._lies, Hang)
        asked = transfer_asked(ask.options, state)
        admission = Admission(state, served, self._client, ask, self._lies)
        state.open.enter(self._id, self._client, served)
        try:
            claimed = 0
            if asked.get("do_remote_prefill"):
                await self._open(reply)
                claimed = await load(state, served, self._client, asked, self._lies)
            admission.enter(allowance, len(plan.tokens), keeps=bool(asked.get("do_remote_decode")))
            if served.status is None and (hang is None or hang.headers == "at_once"):
                await self._open(reply)
            await admission.admitted()
            if admission.hangs:
                await reply.early_role("null")
                await self._client.wait_for(asyncio.Event())
            generation = Generation(
                state,
                served,
                self._client,
                ask,
                plan,
                reply,
                self._lies,
                pace=admission.pace(),
                claimed_transfer_tokens=claimed,
            )
            served.ending = await generation.run(lambda: offer(state, served, admission, asked, self._id))
        except ClientLeft:
            served.ending = Ending.DISCONNECTED
        except Aborted:  # before it was admitted
            served.ending = Ending.ABORTED
            self._client.stop()
            reply.role()
            await reply.end("abort", None, None)
        finally:
            gone = served.ending in (Ending.DISCONNECTED, Ending.ABORTED)
            admission.leave(cancelled=gone, finished=served.ending is Ending.COMPLETED)

    def _words(self, ask: Ask) -> str | None:
        """What `Behaviour.answers` says to what was read. The cache is looked up as it stands now, before queueing."""
        answers, read = self._behaviour.answers, self._served.read_ids
        if answers is None:
            return None
        cold = ask.cold and find(self._lies, IgnoreCold) is None
        cached = 0 if cold else self._state.cache.cached_tokens(read, salt=ask.salt)
        return answers(Asked(text=tokenizer().decode(read), tokens=len(read), cached_tokens=cached))

    async def _open(self, reply: Reply) -> None:
        await reply.open()
        self._served.status, self._served.headers_ns = 200, self._state.clock.now_ns()

    async def _before_reading(self) -> None:
        slow, refuse, crash = find(self._lies, SlowHeaders), find(self._lies, Refuse), find(self._lies, Crash)
        if slow is not None:
            await self._client.sleep_until(self._state.clock.now_ns() + round(slow.delay_s * NS_PER_S))
        if refuse is not None:
            status, headers, raw = refusal_body(refuse, self._behaviour.dialect)
            await self._whole(status, headers, raw)
            raise _Over(Ending.REFUSED)
        if find(self._lies, HtmlAnswer) is not None:
            await self._whole(200, [("content-type", "text/html; charset=utf-8")], HTML_PAGE)
            raise _Over(Ending.COMPLETED)
        if crash is not None and crash.after_tokens is None:
            self._state.go_down()
            raise _Over(Ending.CRASHED)

    def _reply(self, ask: Ask, plan: AnswerPlan) -> Reply:
        dialect = self._behaviour.dialect
        shapes = Shapes(
            dialect=dialect,
            answer_id=self._answer_id,
            created=int(self._state.clock.wall().timestamp()),
            model=self._behaviour.model,
            chat=ask.chat,
            top_logprobs=ask.top_logprobs,
        )
        if not ask.stream:
            return WholeReply(self._send, dialect, shapes)
        return StreamReply(self._send, dialect, shapes, self._lies, finish=plan.finish, include_usage=ask.include_usage)

    async def _refuse(self, refusal: Refusal) -> None:
        dialect = self._behaviour.dialect
        headers = [*dialect.headers, ("content-type", dialect.json_type)]
        if refusal.retry_after_s is not None:
            headers.append(("retry-after", str(refusal.retry_after_s)))
        await self._whole(refusal.status, headers, json.dumps(refusal.body).encode())

    async def _whole(self, status: int, headers: list[tuple[str, str]], raw: bytes) -> None:
        self._served.status, self._served.headers_ns = status, self._state.clock.now_ns()
        await send_whole(self._send, status, headers, raw)
