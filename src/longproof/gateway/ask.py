"""One generation request as the gateway understood it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from longproof.domain.request import Route

Json = dict[str, Any]
"""A JSON object as orjson gives it: the engines' bodies are open, so its values have no narrower type."""


@dataclass(slots=True, kw_only=True)
class Ask:
    """A body that was read and parsed once.

    `body` are the client's bytes, which go upstream unchanged but for what `wire_body` adds. `fields` is the parsed
    body: whoever has read the prompt out of it may call `forget_prompt`, so that a long prompt is not held twice for
    as long as its answer takes. `output_tokens` is the allowance asked for, all choices together; None = none was
    named. `salt` separates this request's prefixes from everybody else's (vLLM's ``cache_salt``, and the tenant's own
    where tenants are separated). `session` is a hint that names a conversation; nothing depends on it. `responses`: it
    came by /v1/responses; `fields` is then the chat that engines make of it. `countable` False: they differ in what
    they make of it, and only its bound is sure. `deadline_ns`: without a first token by then nobody wants the answer.
    """

    id: str
    route: Route
    model: str
    body: bytes
    fields: Json
    stream: bool = False
    wants_usage: bool = False
    choices: int = 1
    output_tokens: int | None = None
    salt: str = ""
    responses: bool = False
    countable: bool = True
    session: str | None = None
    tenant: str = ""
    key: str = ""
    priority: int = 0
    received_ns: int = 0
    deadline_ns: int | None = None
    on_dropped: Callable[[], None] | None = None

    def drop_body(self) -> None:
        """Nobody will send it again: its bytes go, and whoever counts them is told, once."""
        self.body = b""
        told, self.on_dropped = self.on_dropped, None
        if told is not None:
            told()

    def forget_prompt(self) -> None:
        """Drops the parsed prompt; the body's bytes stay."""
        self.fields.pop("messages", None)
        self.fields.pop("prompt", None)
