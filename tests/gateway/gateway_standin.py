"""A controller that decides as simply as can be, for tests of the shell alone: `most` requests run per replica, the
rest wait in order; replicas that refused are not asked again before their time."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Sequence
from typing import Any

import aiohttp

from longproof.gateway.ask import Ask
from longproof.gateway.intake import Intake
from longproof.gateway.listener import Listener
from longproof.gateway.ports import Admitted, Counted, Spent
from longproof.gateway.routes import Routes
from longproof.policy.actions import Action, Decision, Dispatch, Refusal, Wait
from longproof.policy.arrivals import Arrival, Ended

NS_PER_S = 1_000_000_000
MODEL = "fake-135m"


class StandIn:
    """`count`: every request must be counted first. `told` is everything it was told, in order."""

    def __init__(self, replicas: Sequence[str], *, most: int = 1_000, count: bool = False) -> None:
        self.replicas = list(replicas)
        self.most = most
        self.count = count
        self.running: dict[str, str] = {}
        self.waiting: deque[str] = deque()
        self.not_before: dict[str, int] = {}
        self.told: list[tuple[str, str, object]] = []
        self.ended: dict[str, Ended] = {}
        self.tokens: dict[str, int] = {}

    def on_arrival(self, arrival: Arrival, now_ns: int) -> Decision:
        self.told.append(("arrival", arrival.id, arrival))
        self.tokens[arrival.id] = arrival.input_tokens
        if self.count and not arrival.exact:
            return Wait(id=arrival.id, reason="counting", count=True)
        return self._place(arrival.id, now_ns)

    def on_counted(
        self, request_id: str, input_tokens: int, blocks: tuple[int, ...], now_ns: int, *, by_text: int = 0
    ) -> Sequence[Action]:
        self.told.append(("counted", request_id, input_tokens))
        self.tokens[request_id] = input_tokens
        answer = self._place(request_id, now_ns)
        return [] if isinstance(answer, Wait) else [answer]

    def on_first_token(self, request_id: str, now_ns: int) -> Sequence[Action]:
        self.told.append(("first", request_id, None))
        return []

    def on_output(self, request_id: str, output_tokens: int, now_ns: int) -> Sequence[Action]:
        self.told.append(("output", request_id, output_tokens))
        return []

    def on_refused_by_engine(self, request_id: str, retry_after_ns: int | None, now_ns: int) -> Sequence[Action]:
        self.told.append(("refused", request_id, retry_after_ns))
        replica = self.running.pop(request_id)
        self.not_before[replica] = now_ns + (retry_after_ns or NS_PER_S)
        answer = self._place(request_id, now_ns)
        return [] if isinstance(answer, Wait) else [answer]

    def on_finish(self, request_id: str, end: Ended, now_ns: int) -> Sequence[Action]:
        assert request_id not in self.ended, "ended twice"
        self.ended[request_id] = end
        self.running.pop(request_id, None)
        return self._next(now_ns)

    def on_tick(self, now_ns: int) -> Sequence[Action]:
        return self._next(now_ns)

    def cancel(self, request_id: str, now_ns: int) -> Sequence[Action]:
        self.told.append(("cancel", request_id, None))
        if request_id in self.waiting:
            self.waiting.remove(request_id)
        return []

    def kv_token_ms(self, request_id: str, now_ns: int) -> int | None:
        return None

    def names(self, kind: str) -> list[object]:
        return [value for what, _, value in self.told if what == kind]

    def _place(self, request_id: str, now_ns: int) -> Decision:
        open_to_all = [name for name in self.replicas if self.not_before.get(name, 0) <= now_ns]
        if not open_to_all:
            wait_ns = min(self.not_before.values()) - now_ns
            return Refusal(id=request_id, status=503, code="busy", reason="all refuse", retry_after_ns=wait_ns)
        for name in open_to_all:
            if list(self.running.values()).count(name) < self.most:
                self.running[request_id] = name
                return Dispatch(id=request_id, replica=name, reason="first with room")
        self.waiting.append(request_id)
        return Wait(id=request_id, reason="full")

    def _next(self, now_ns: int) -> list[Action]:
        found: list[Action] = []
        while self.waiting:
            answer = self._place(self.waiting.popleft(), now_ns)
            if isinstance(answer, Wait):
                self.waiting.rotate(1)
                break
            found.append(answer)
        return found


class Books:
    """A meter that remembers."""

    def __init__(self) -> None:
        self.intents: list[Admitted] = []
        self.ends: list[Spent] = []

    def admitted(self, request: Admitted) -> None:
        self.intents.append(request)

    def passed(self, request_id: str, output_tokens: int) -> None:
        pass

    def spent(self, request: Spent) -> None:
        self.ends.append(request)


class ByBytes:
    """Counting that knows bytes alone; exactly a quarter of them, when asked to count."""

    def bound(self, ask: Ask) -> Counted:
        return Counted(input_tokens=len(ask.body), exact=False)

    async def count(self, ask: Ask, *, exact: bool = True) -> Counted:
        return Counted(input_tokens=len(ask.body) // 4, exact=True)

    def told(self, model: str, counted: Counted, prompt_tokens: int | None) -> None:
        pass


@dataclasses.dataclass(kw_only=True)
class Shell:
    """A running shell: `url`, and what it told the controller and the books."""

    url: str
    controller: StandIn
    books: Books
    intake: Intake
    listener: Listener
    routes: Routes
    session: aiohttp.ClientSession

    async def chat(self, text: str = "Hi", **fields: Any) -> aiohttp.ClientResponse:
        headers = fields.pop("headers", {})
        body = {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 8, **fields}
        return await self.session.post(f"{self.url}/v1/chat/completions", json=body, headers=headers)
