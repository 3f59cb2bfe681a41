"""The load: clients of every kind, each of which writes down what became of its requests.

plain, stream                          wait for the whole answer
leaves early, leaves midway            disconnect before the first byte, or after some tokens
slow reader, stalled reader            take a long answer a bit at a time, or nothing of it
"""

from __future__ import annotations

import asyncio
import itertools
import random
import socket
import time
from typing import Any

import aiohttp
import orjson

from chaos.truth import NUMBER_HEADER, Asked, header_of

MODEL = "fake-135m"
_PATIENCE_S = 60.0
_KINDS = (("plain", 25), ("stream", 50), ("leaves early", 10), ("leaves midway", 15))
_LONG_TOKENS = 2_500


class Clients:
    """Clients that ask again and again, until told to stop. `asked` keeps every request of all of them."""

    def __init__(self, url: str, rng: random.Random) -> None:
        self._url, self._rng = f"{url}/v1/chat/completions", rng
        self._numbers = itertools.count(1)
        self.asked: list[Asked] = []
        self.episode = 0
        self.kinds = _KINDS
        self.other_model: str | None = None
        """Asked for by one in six, where there is one."""
        self._shared = [_words(rng) for _ in range(6)]
        self._sessions: list[aiohttp.ClientSession] = []

    async def __aenter__(self) -> Clients:
        reused = aiohttp.TCPConnector(limit=0, keepalive_timeout=1.0)
        new = aiohttp.TCPConnector(limit=0, force_close=True)
        narrow = aiohttp.TCPConnector(limit=0, force_close=True, socket_factory=_narrow)
        self._sessions = [aiohttp.ClientSession(connector=one) for one in (reused, new, narrow)]
        return self

    async def __aexit__(self, *_: object) -> None:
        for session in self._sessions:
            await session.close()

    async def ask_until(self, over: asyncio.Event, *, pause_s: float = 0.05) -> None:
        """One client."""
        while not over.is_set():
            names, weights = zip(*self.kinds, strict=True)
            asked = await self.one(self._rng.choices(names, weights)[0])
            away = asked.outcome == "unreached" or asked.code == "meter_unavailable"
            await asyncio.sleep(self._rng.random() * (10 * pause_s if away else pause_s))

    async def one(self, kind: str) -> Asked:
        """One request, to its end."""
        number = next(self._numbers)
        asked = Asked(
            number=number,
            episode=self.episode,
            streamed=kind != "plain" and (kind != "leaves early" or number % 2 == 0),
            kind=kind,
            reused="reader" not in kind and number % 2 == 0,
            began_ns=time.monotonic_ns(),
        )
        self.asked.append(asked)
        outcome = await self._outcome(asked)
        asked.outcome, asked.ended_ns = outcome, time.monotonic_ns()
        asked.ends += 1
        return asked

    async def _outcome(self, asked: Asked) -> str:
        leave_s = self._rng.random() * 0.3 if asked.kind == "leaves early" else _PATIENCE_S
        try:
            async with asyncio.timeout(leave_s):
                return await self._exchange(asked)
        except TimeoutError:
            return "left" if asked.kind == "leaves early" else "silent"
        except aiohttp.ClientConnectorError:
            return "unreached"
        except (aiohttp.ClientError, ConnectionError):
            return "broken"
        except ValueError:
            return "garbled"

    def _body(self, asked: Asked) -> dict[str, Any]:
        rng, long = self._rng, "reader" in asked.kind
        other = self.other_model if asked.number % 6 == 0 and not long else None
        text = f"question {asked.number} " + "word " * rng.randrange(40)
        if other is None:  # a real model's prefill takes real time
            alone = asked.number % 4 == 0  # a prompt that is cached nowhere may go anywhere
            text = f"{_words(rng) if alone else rng.choice(self._shared)} {text}"
        body: dict[str, Any] = {
            "model": other or MODEL,
            "messages": [{"role": "user", "content": text}],
            "max_tokens": _LONG_TOKENS if long else rng.randrange(4, 48),
            "ignore_eos": True,
            "stream": asked.streamed,
        }
        if asked.streamed and asked.number % 3 == 0:
            body["stream_options"] = {"include_usage": True}
        return body

    async def _exchange(self, asked: Asked) -> str:
        session = self._sessions[2 if "reader" in asked.kind else int(not asked.reused)]
        headers = {NUMBER_HEADER: header_of(asked.number)}
        async with session.post(self._url, json=self._body(asked), headers=headers) as response:
            asked.status = response.status
            asked.gateway_id = response.headers.get("X-Request-Id")
            asked.replica = response.headers.get("X-Longproof-Replica")
            asked.retry_after = response.headers.get("Retry-After")
            if response.status != 200:
                asked.code = _code(await response.read())
                return "error" if response.status >= 500 and response.status != 503 else "refused"
            if asked.streamed:
                return await self._stream(asked, response)
            _note_usage(asked, orjson.loads(await response.read()))
            return "completed"

    async def _stream(self, asked: Asked, response: aiohttp.ClientResponse) -> str:
        leave_after = self._rng.randrange(1, 20) if asked.kind == "leaves midway" else None
        error = done = False
        if asked.kind == "stalled reader":
            await asyncio.sleep(8.0)
        async for line in response.content:
            if not line.startswith(b"data: "):
                continue
            if line.startswith(b"data: [DONE]"):
                done = True
                continue
            event = orjson.loads(line[6:])
            if "error" in event:
                asked.code, error = str(event["error"].get("code")), True
                continue
            _note_usage(asked, event)
            choices = event.get("choices") or [{}]
            if (choices[0].get("delta") or {}).get("content"):
                asked.tokens += 1
            if leave_after is not None and asked.tokens >= leave_after:
                response.close()
                return "left"
            if asked.kind == "slow reader" and asked.tokens % 250 == 0:
                await asyncio.sleep(0.3)
        if error:
            return "error"
        return "completed" if done else "broken"


def _words(rng: random.Random) -> str:
    return " ".join(rng.choices(("alpha", "beta", "gamma", "delta"), k=120))


def _note_usage(asked: Asked, answer: dict[str, Any]) -> None:
    usage = answer.get("usage")
    if usage:
        asked.used_input, asked.used_output = usage["prompt_tokens"], usage["completion_tokens"]


def _code(body: bytes) -> str:
    try:
        return str(orjson.loads(body)["error"]["code"])
    except (ValueError, KeyError, TypeError):
        return body[:80].decode("utf-8", "replace")


def _narrow(address: Any) -> socket.socket:
    """A connection whose reader cannot fall far behind."""
    family, kind, protocol, _, _ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 << 10)
    return made
