"""HTTP body → `Ask`: read within limits, parsed once, checked as far as the gateway must understand it.

    Content-Length over the limit ─▶ 413 before a byte is read
    chunks ─▶ one buffer, within `body_limit_bytes`, `body_timeout_s` and the bytes that all open bodies may take
    JSON ─▶ model, stream, output allowance, salt ─▶ Ask

What it does not understand it leaves to the engine: the body goes upstream as it came.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, cast

import orjson
from aiohttp import HttpVersion11
from aiohttp.web import BaseRequest, RequestPayloadError

from longproof.clock import NS_PER_S
from longproof.domain.request import Route
from longproof.domain.units import format_tokens
from longproof.gateway.ask import Ask, Json
from longproof.gateway.body_weight import parsed_bytes
from longproof.gateway.errors import ApiError, Problem, bad_request
from longproof.gateway.json_pieces import loads_in_pieces
from longproof.gateway.owner_fields import FieldRule
from longproof.gateway.turns import LARGE_BYTES, Turns

MOST_OUTPUT_TOKENS = 2**40
MOST_CHOICES = 128  # OpenAI's own bound of n
LONGEST_NAME = 512
_READ_TOGETHER = 4
"""Of bodies that are longer, so many go on being read per turn of the loop: 2 ms of work."""
PIECES_FROM_BYTES = 1 << 20
"""About 2 ms of parsing; longer bodies are parsed in pieces (`json_pieces`)."""
DEEPEST = 200
Container: TypeAlias = "Json | list[object]"


@dataclass(slots=True, kw_only=True)
class Intake:
    """Reads bodies. One object for the whole process: `open_bytes` counts what all unfinished requests hold."""

    body_limit_bytes: int
    open_limit_bytes: int
    body_timeout_s: float
    fields: FieldRule = field(default_factory=FieldRule)
    open_bytes: int = 0
    lane: asyncio.Lock = field(default_factory=asyncio.Lock)
    """One long body at a time is weighed or parsed, or the slices of all would come in one turn of the loop."""
    turns: Turns = field(default_factory=lambda: Turns(_READ_TOGETHER))
    _arriving: dict[str, int] = field(default_factory=dict[str, int])
    """Bytes of bodies that are not whole yet, by key."""

    async def read(self, request: BaseRequest, key: str = "") -> bytes:
        """The whole body; its bytes count as open until they are given to `release`. Those that are still arriving with
        one `key` may take half of what all may. ApiError 413, 408, 415, 503."""
        _require_plain(request)
        announced = request.content_length
        if announced is not None and announced > self.body_limit_bytes:
            raise _too_large(self.body_limit_bytes, announced)
        if not request.body_exists:
            return b""
        reader = request.content
        if reader.is_eof() and announced is not None and self.open_bytes + announced <= self.open_limit_bytes:
            body = reader.read_nowait()  # a small request is there as a whole when its handler starts
            self.open_bytes += len(body)
            return body
        _let_it_come(request)
        held = 0
        try:
            async with asyncio.timeout(self.body_timeout_s):
                parts: list[bytes] = []
                # a long body grows as it comes: joined at its end, it would stop the loop and be there twice
                whole = bytearray() if announced is not None and announced > LARGE_BYTES else None
                while part := await reader.readany():
                    held += len(part)
                    self.open_bytes += len(part)
                    self._arriving[key] = self._arriving.get(key, 0) + len(part)
                    if held > self.body_limit_bytes:
                        raise _too_large(self.body_limit_bytes, None)
                    if key and self._arriving[key] > max(self.open_limit_bytes // 2, self.body_limit_bytes):
                        raise _too_much_open(self.open_limit_bytes // 2)
                    if self.open_bytes > self.open_limit_bytes:
                        raise _too_much_open(self.open_limit_bytes)
                    if whole is None:
                        parts.append(part)
                    else:
                        whole += part
                    if held > LARGE_BYTES:
                        await self.turns.mine()
            if whole is not None:
                return cast(bytes, whole)  # nobody writes to it any more
            return parts[0] if len(parts) == 1 else b"".join(parts)
        except BaseException as problem:
            self.open_bytes -= held
            if isinstance(problem, TimeoutError):
                message = f"the body did not arrive within {self.body_timeout_s:g} s"
                raise ApiError(Problem(status=408, code="body_timeout", message=message)) from None
            if isinstance(problem, RequestPayloadError):
                raise bad_request("the body is not framed as its headers say", code="invalid_framing") from None
            raise
        finally:
            if held:
                self._arriving[key] -= held

    async def weigh(self, body: bytes) -> int:
        """Bytes that the body takes beside itself once it is parsed; they count as open until they are given to
        `release`. ApiError 400 for a body that could never be held, 503 for one that cannot be now."""
        if len(body) <= LARGE_BYTES:
            weight = await parsed_bytes(body)
        else:
            async with self.lane:
                weight = await parsed_bytes(body)
        if len(body) + weight > self.open_limit_bytes:
            message = f"the body has too many values: it would take {format_tokens(weight)} bytes of memory"
            raise bad_request(message, code="too_many_values")
        if self.open_bytes + weight > self.open_limit_bytes:
            raise _too_much_open(self.open_limit_bytes)
        self.open_bytes += weight
        return weight

    def release(self, body_bytes: int) -> None:
        """So many bytes are no longer held."""
        self.open_bytes -= body_bytes


def parsed(
    body: bytes, route: Route, *, request_id: str, rule: FieldRule | None = None, fields: Json | None = None
) -> Ask:
    """A body as an Ask that has no tenant yet. ApiError 400 for what is no request of that route, and for what `rule`
    does not leave to clients. `fields`: the parsed body, where it is there already."""
    fields = json_object(body) if fields is None else fields
    model = model_of(fields)
    _require_prompt(fields, route)
    if rule is not None:
        rule.require(fields)
    stream = stream_of(fields)
    options = fields.get("stream_options")
    if options is not None and not isinstance(options, dict):
        raise bad_request("'stream_options' must be an object", param="stream_options")
    choices = choices_of(fields)
    output = allowance(fields, ("max_completion_tokens", "max_tokens") if route is Route.CHAT else ("max_tokens",))
    salt = fields.get("cache_salt")
    user = fields.get("user")
    return Ask(
        id=request_id,
        route=route,
        model=model,
        body=body,
        fields=fields,
        stream=stream,
        wants_usage=bool(cast(Json, options).get("include_usage")) if options else False,
        choices=choices,
        output_tokens=None if output is None else output * choices,
        salt=salt[:LONGEST_NAME] if isinstance(salt, str) else "",
        session=user[:LONGEST_NAME] if isinstance(user, str) and user else None,
    )


def json_object(body: bytes) -> Json:
    """A body as the JSON object that it must be; else ApiError 400."""
    if not body:
        raise bad_request("the body is empty; a JSON object is expected")
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError as problem:
        raise bad_request(f"the body is not JSON: {problem}", code="invalid_json") from None
    return _object(fields, many=body.count(b"[") + body.count(b"{") > DEEPEST)


async def long_json_object(body: bytes) -> Json:
    """The same for a long body, in pieces between which the loop has its turn."""
    try:
        fields = await loads_in_pieces(body)
    except orjson.JSONDecodeError as problem:
        raise bad_request(f"the body is not JSON: {problem}", code="invalid_json") from None
    return _object(fields, many=True)


def _object(fields: object, *, many: bool) -> Json:
    """`many`: there may be more lists and objects in it than may lie in one another."""
    if not isinstance(fields, dict):
        raise bad_request("the body must be a JSON object")
    if many:
        _require_shallow(cast(Json, fields))
    return cast(Json, fields)


def _require_shallow(fields: Json) -> None:
    """ApiError 400 for what orjson reads (1,024 levels) and will not write again (254)."""
    level, depth = [cast(Container, fields)], 0
    while level:
        depth += 1
        if depth > DEEPEST:
            raise bad_request(f"the body nests deeper than {DEEPEST} levels", code="invalid_json")
        level = [cast(Container, child) for item in level for child in _inside(item) if isinstance(child, dict | list)]


def _inside(item: Container) -> Iterable[object]:
    return item.values() if isinstance(item, dict) else item


def _require_prompt(fields: Json, route: Route) -> None:
    if route is Route.CHAT:
        messages = fields.get("messages")
        if not isinstance(messages, list) or not messages:
            raise bad_request("'messages' must be a list that is not empty", param="messages")
        if not all(isinstance(message, dict) for message in cast("list[object]", messages)):
            raise bad_request("every entry of 'messages' must be an object", param="messages")
    elif not isinstance(fields.get("prompt"), str | list):
        raise bad_request("'prompt' must be a text, or a list of texts or of token ids", param="prompt")


def model_of(fields: Json) -> str:
    """The name of the model; ApiError 400 where there is none."""
    model = fields.get("model")
    if not isinstance(model, str) or not model or len(model) > LONGEST_NAME:
        raise bad_request("'model' must be the name of a served model", param="model")
    return model


def stream_of(fields: Json) -> bool:
    """Whether a stream is wanted; ApiError 400 for what is neither."""
    stream = fields.get("stream", False)
    if stream is not None and not isinstance(stream, bool):  # 1 is true to some engines, and not to others
        raise bad_request("'stream' must be true or false", param="stream")
    return bool(stream)


def allowance(fields: Json, names: Sequence[str]) -> int | None:
    """The output tokens that are asked for, by whichever of these names says most; None = none are."""
    # which name counts where several are there is each engine's own: vLLM 0.32 takes the newer one of OpenAI's, others
    # the older one, llama.cpp its own n_predict before either (seen in build b0, 2026-10)
    asked = [value for name in (*names, "n_predict") if (value := _whole(fields, name)) is not None]
    # llama.cpp: -1 means "as many as fit"; other engines refuse it themselves
    return None if not asked or -1 in asked else max(asked)


def _whole(fields: Json, name: str) -> int | None:
    value = fields.get(name)
    if value is None:
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # 16.0 is 16 to every engine
    if isinstance(value, bool) or not isinstance(value, int):
        raise bad_request(f"'{name}' must be a whole number", param=name)
    if value > MOST_OUTPUT_TOKENS:
        raise bad_request(f"'{name}' must be at most {MOST_OUTPUT_TOKENS:,}", param=name)
    return max(value, -1)


def choices_of(fields: Json) -> int:
    """How many answers are wanted, to all prompts together; ApiError 400 for what is no number of them."""
    most = 1
    for name in ("n", "best_of", "n_cmpl"):
        value = fields.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_CHOICES:
            raise bad_request(f"'{name}' must be 1 to {MOST_CHOICES}", param=name)
        most = max(most, value)
    prompt = fields.get("prompt")
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list):
        most *= len(cast("list[object]", prompt))
    return most


def _require_plain(request: BaseRequest) -> None:
    encoding = request.headers.get("Content-Encoding", "identity").lower()
    if encoding not in ("identity", ""):
        message = f"a body with Content-Encoding '{encoding[:40]}' is not taken; send it uncompressed"
        raise ApiError(Problem(status=415, code="content_encoding", message=message))


def _let_it_come(request: BaseRequest) -> None:
    """Who waits to be asked for the body (curl does with one of a megabyte, for a second) is asked."""
    expects = request.headers.get("Expect", "").lower() == "100-continue"
    if expects and request.version >= HttpVersion11 and request.transport is not None:
        request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")


def _too_large(limit: int, actual: int | None) -> ApiError:
    size = "it" if actual is None else f"its {format_tokens(actual)} bytes"
    return ApiError(
        Problem(
            status=413,
            code="request_too_large",
            message=f"the body is too large: {size} exceed{'s' if actual is None else ''} the limit of"
            f" {format_tokens(limit)} bytes",
            limit=limit,
            actual=actual,
            unit="bytes",
        )
    )


def _too_much_open(limit: int) -> ApiError:
    return ApiError(
        Problem(
            status=503,
            code="intake_full",
            message=f"the bodies of all open requests would exceed {format_tokens(limit)} bytes; try again shortly",
            limit=limit,
            unit="bytes",
            retry_after_ns=NS_PER_S,
        )
    )
