"""What parent and load worker say to each other over their socket.

A message is its length (8 bytes), a header in JSON of that length, and after an order the body, `body_bytes` long.

    parent ─▶ worker   Order …, Leave …          worker ─▶ parent   Done …, Seen …
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

import orjson
from pydantic import TypeAdapter

from longproof.domain.events import RequestTimeline
from longproof.domain.request import ChatPrompt, CountSource, GenerationRequest, Route, TextPrompt
from longproof.engines.request_body import Body, Prepared
from longproof.evidence.records import Lag

_LENGTH_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A request to send at `at_ns` (None = at once) and to leave `leave_after_ns` after that, where it is to be left.
    The body follows."""

    number: int
    at_ns: int | None
    leave_after_ns: int | None
    route: Route
    prompt_tokens: int | None
    count_source: CountSource | None
    max_tokens: int
    timeout_s: float
    request_id: str
    path: str
    headers: dict[str, str]
    body_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave:
    """Leave an order's request now, or drop it where its time has not come."""

    leave: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A request is over."""

    done: int
    timeline: RequestTimeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What the worker saw of its own event loop since it last said so."""

    checks: int
    lags: tuple[Lag, ...] = field(default_factory=tuple[Lag, ...])


Said: TypeAlias = Order | Leave | Done | Seen
_SAID: TypeAdapter[Said] = TypeAdapter(Said)


def order_of(number: int, prepared: Prepared, *, at_ns: int | None, leave_after_ns: int | None) -> Order:
    """A prepared request as an order. Its body goes beside it."""
    request = prepared.request
    return Order(
        number=number,
        at_ns=at_ns,
        leave_after_ns=leave_after_ns,
        route=request.route,
        prompt_tokens=request.prompt_tokens,
        count_source=request.count_source,
        max_tokens=request.max_tokens,
        timeout_s=request.timeout_s,
        request_id=prepared.request_id,
        path=prepared.path,
        headers=dict(prepared.headers),
        body_bytes=prepared.body.size_bytes,
    )


def prepared_of(order: Order, body: bytes) -> Prepared:
    """The request that an order is. Its prompt is in the body alone."""
    request = GenerationRequest(
        prompt=ChatPrompt(messages=()) if order.route is Route.CHAT else TextPrompt(text=""),
        max_tokens=order.max_tokens,
        prompt_tokens=order.prompt_tokens,
        count_source=order.count_source,
        timeout_s=order.timeout_s,
    )
    return Prepared(
        request=request,
        request_id=order.request_id,
        path=order.path,
        headers=order.headers,
        body=Body.of(body),
        fields=frozenset(),
    )


def frames(said: Said, body: Body | None = None) -> Iterator[bytes | memoryview]:
    """A message as bytes to write, in slices."""
    header = orjson.dumps(said)
    yield len(header).to_bytes(_LENGTH_BYTES) + header
    if body is not None:
        yield from body.slices()


async def read_said(reader: asyncio.StreamReader) -> tuple[Said, bytes] | None:
    """The next message and its body; None when the other side has ended."""
    try:
        length = int.from_bytes(await reader.readexactly(_LENGTH_BYTES))
        said = _SAID.validate_json(await reader.readexactly(length))
        body = await reader.readexactly(said.body_bytes) if isinstance(said, Order) else b""
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    return said, body
