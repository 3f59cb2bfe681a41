"""`POST /v1/responses` (OpenAI's Responses API; vLLM 0.32 and llama.cpp serve it): understood as far as admission and
metering need it, and passed on as it came.

    instructions, input ──▶ the chat that engines make of them ──▶ bound, count, names of blocks
    events, answer      ──▶ usage of the last event (`response.completed`, `.incomplete`, `.failed`)

What would make a prompt's length unknowable here is refused: earlier responses that an engine has stored
(`previous_response_id`, `conversation`, `item_reference`, `prompt`), and answers that go on without a client
(`background`).
"""

from __future__ import annotations

from typing import cast

import orjson

from longproof.domain.events import Usage
from longproof.domain.request import Route
from longproof.engines.json_fields import as_int, as_object, as_text
from longproof.gateway.ask import Ask, Json
from longproof.gateway.errors import ApiError, bad_request
from longproof.gateway.intake import LONGEST_NAME, allowance, choices_of, json_object, model_of, stream_of
from longproof.gateway.owner_fields import FieldRule
from longproof.gateway.sse_events import is_error_event, whole_bytes

_STORED = ("previous_response_id", "conversation", "prompt")
_TEXTS = ("input_text", "output_text", "text")
_STRICT = FieldRule()
_FAILED = "response.failed"
_ENDS = ("response.completed", "response.incomplete", _FAILED)
_LONGEST_EVENT_BYTES = 64 << 20


def parsed_response(body: bytes, *, request_id: str, rule: FieldRule = _STRICT, fields: Json | None = None) -> Ask:
    """A body as an Ask that has no tenant yet. ApiError 400 for what is no request of that route, for one whose prompt
    lies at an engine, and for what `rule` does not leave to clients. `fields`: the parsed body, where it is there."""
    fields = json_object(body) if fields is None else fields
    model = model_of(fields)
    rule.require(fields)
    rule.require({"messages": [{"content": fields.get("input")}]})
    _require_own_tools(fields, rule)
    for name in _STORED:
        if fields.get(name) is not None:
            raise _kept_by_an_engine(name)
    if fields.get("background"):
        raise bad_request("'background' answers go on without a client; ask for a stream instead", param="background")
    messages, plain = as_chat(fields)
    salt, user = fields.get("cache_salt"), fields.get("user") or fields.get("prompt_cache_key")
    choices, output = choices_of(fields), allowance(fields, ("max_output_tokens",))
    chat: Json = {"messages": messages}
    if fields.get("tools"):
        chat["tools"] = fields["tools"]
    return Ask(
        id=request_id,
        route=Route.CHAT,
        model=model,
        body=body,
        fields=chat,
        stream=stream_of(fields),
        wants_usage=True,  # its last event has usage, asked for or not
        choices=choices,
        output_tokens=None if output is None else output * choices,
        salt=salt[:LONGEST_NAME] if isinstance(salt, str) else "",
        session=user[:LONGEST_NAME] if isinstance(user, str) and user else None,
        responses=True,
        countable=plain and not fields.get("tools"),
    )


def _require_own_tools(fields: Json, rule: FieldRule) -> None:
    """Functions are the client's to call; any other tool is called by the engine, wherever it is told to."""
    tools = fields.get("tools")
    for tool in cast("list[object]", tools) if isinstance(tools, list) else ():
        kind = cast(Json, tool).get("type") if isinstance(tool, dict) else None
        if kind not in ("function", "custom") and "tools" not in rule.allowed:
            message = f"tools of the type '{str(kind)[:40]}' would be called by the engine; [gateway] allow_fields can"
            raise bad_request(f'{message} allow "tools"', param="tools", code="field_not_allowed")


def as_chat(fields: Json) -> tuple[list[Json], bool]:
    """The messages that engines make of instructions and input, and whether there is text alone in them: with tools,
    pictures or reasoning engines differ, and only the bound is sure. ApiError 400 for what is no input."""
    messages: list[Json] = []
    plain = True
    instructions = fields.get("instructions")
    if isinstance(instructions, str) and instructions:
        messages.append({"role": "system", "content": instructions})
    given = fields.get("input")
    if isinstance(given, str):
        messages.append({"role": "user", "content": given})
        return messages, plain
    if not isinstance(given, list) or not given:
        raise bad_request("'input' must be a text, or a list of items that is not empty", param="input")
    for item in cast("list[object]", given):
        if not isinstance(item, dict):
            raise bad_request("every entry of 'input' must be an object", param="input")
        message, is_plain = _message(cast(Json, item))
        messages.append(message)
        plain = plain and is_plain
    return messages, plain


def private(body: bytes, *, salt: str, cold: bool) -> bytes:
    """The body with this salt, if there is one, in place of the client's; `cold`: without use of what llama.cpp has
    cached."""
    own = {"cache_salt": salt} if salt else {}
    return orjson.dumps({**json_object(body), **own, **({"cache_prompt": False} if cold else {})})


def response_usage(body: bytes) -> Usage | None:
    """The usage of an answer that was not streamed; None where it has none."""
    try:
        answer = as_object(orjson.loads(body)) or {}
    except orjson.JSONDecodeError:
        return None
    return _usage(as_object(answer.get("usage")))


class ResponseFlow:
    """One stream of response events on its way through, as `sse_events.EventFlow`: the bytes as they came, event by
    event; `tokens` are the events that carry output, `usage` is that of the last one."""

    __slots__ = ("_held", "done", "failed", "tokens", "usage")

    def __init__(self) -> None:
        self._held = b""
        self.tokens = 0
        self.done = False
        self.failed = False
        self.usage: Usage | None = None

    def take(self, data: bytes) -> bytes:
        """The next bytes; what goes on of them now: whole events."""
        seen = self._held + data if self._held else data
        cut = whole_bytes(seen)
        if len(seen) - cut > _LONGEST_EVENT_BYTES:
            cut = len(seen)  # it goes through unread
        self._held = seen[cut:]
        for event in seen[:cut].replace(b"\r\n", b"\n").split(b"\n\n"):
            self._look(event)
        return seen[:cut]

    def end(self) -> bytes:
        """The stream is over; its last event, where only its blank line is missing. Half an event is dropped."""
        rest, self._held = self._held, b""
        if not _data(rest.replace(b"\r\n", b"\n")):
            return b""
        self._look(rest.replace(b"\r\n", b"\n"))
        return rest

    def closing(self, _: int) -> bytes | None:
        """After `end`: what is still to be said to the client; None: the stream broke off."""
        return b"" if self.done or self.failed else None

    def _look(self, event: bytes) -> None:
        kind = _kind(event)
        if kind.endswith(".delta"):
            self.tokens += 1
        elif kind in _ENDS:
            self.done, self.failed = True, self.failed or kind == _FAILED
            self.usage = _usage(as_object((as_object(_data(event).get("response")) or {}).get("usage"))) or self.usage
        elif kind == "error" or is_error_event(event):
            self.failed = True


def _message(item: Json) -> tuple[Json, bool]:
    kind = item.get("type", "message")
    if kind == "item_reference":
        raise _kept_by_an_engine("item_reference")
    if kind == "message" or "role" in item:
        content, plain = _content(item.get("content"))
        return {"role": item.get("role", "user"), "content": content}, plain
    if kind == "function_call":
        function = {"name": item.get("name"), "arguments": item.get("arguments")}
        call = {"id": item.get("call_id"), "type": "function", "function": function}
        return {"role": "assistant", "content": None, "tool_calls": [call]}, False
    if kind == "function_call_output":
        output = item.get("output")
        return {"role": "tool", "tool_call_id": item.get("call_id"), "content": output}, False
    return {"role": "assistant", "content": orjson.dumps(item).decode()}, False


def _content(content: object) -> tuple[object, bool]:
    if not isinstance(content, list):
        return content, isinstance(content, str)
    parts: list[Json] = []
    plain = True
    for part in cast("list[object]", content):
        fields = cast(Json, part) if isinstance(part, dict) else {}
        if fields.get("type") in _TEXTS and isinstance(fields.get("text"), str):
            parts.append({"type": "text", "text": fields["text"]})
        elif fields.get("type") == "input_image":
            parts.append({"type": "image_url", "image_url": {"url": fields.get("image_url")}})
            plain = False
        else:
            parts.append(fields)
            plain = False
    return parts, plain


def _kind(event: bytes) -> str:
    """Its type: vLLM and llama.cpp name it before the data, so that no event need be parsed for it."""
    start = event.lstrip(b"\n")
    if start.startswith(b"event:"):
        return start[6 : start.find(b"\n") if b"\n" in start else None].strip().decode("utf-8", "replace")
    return as_text(_data(start).get("type")) or "" if b"data:" in start else ""


def _data(event: bytes) -> Json:
    data = b"\n".join(line[5:] for line in event.split(b"\n") if line.startswith(b"data:"))
    try:
        return as_object(orjson.loads(data)) or {}
    except orjson.JSONDecodeError:
        return {}


def _usage(fields: Json | None) -> Usage | None:
    """OpenAI's names of a response's usage. An impossible number reads as absent."""
    if fields is None:
        return None
    details = as_object(fields.get("input_tokens_details")) or {}
    given, made, cached = (
        _count(fields.get("input_tokens")),
        _count(fields.get("output_tokens")),
        _count(details.get("cached_tokens")),
    )
    if given is None:
        return None
    return Usage(
        prompt_tokens=given, completion_tokens=made, cached_tokens=None if cached is None or cached > given else cached
    )


def _count(value: object) -> int | None:
    number = as_int(value)
    return None if number is None or number < 0 else number


def _kept_by_an_engine(name: str) -> ApiError:
    return bad_request(
        f"'{name}' names something that one engine keeps; send the whole input with every request", param=name
    )
