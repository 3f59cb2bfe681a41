"""The routes of pinned prefixes: PUT, GET and DELETE /v1/prefixes/NAME, GET /v1/prefixes. For keys with ``admin``.

The body of a PUT is that of a request whose prompt is to be kept: `model`, and `messages` or `prompt`, with whatever
else shapes the prompt (`tools`, `chat_template_kwargs`); and `copies`, on how many replicas.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import Protocol

import orjson
from aiohttp.web import BaseRequest, Response, StreamResponse

from longproof.clock import NS_PER_S
from longproof.domain.request import Route
from longproof.gateway.body_object import body_object
from longproof.gateway.errors import ApiError, Problem, bad_request
from longproof.gateway.fleet import Fleet
from longproof.gateway.intake import Intake, parsed
from longproof.gateway.kept_prefixes import Content, Kept, KeptPrefixes, kept_fields
from longproof.gateway.keys import KeyRing, KeyRule
from longproof.policy.pinned import PinnedSnapshot, PinRefused

ROUTE = "/v1/prefixes"
NAME_PATTERN = "[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
_NAME = re.compile(NAME_PATTERN)


class Caches(Protocol):
    """The replicas that serve a model now, with the blocks each can cache."""

    def __call__(self, model: str) -> Mapping[str, int | None]: ...


class PrefixRoutes:
    """Answers them."""

    def __init__(self, prefixes: KeptPrefixes, fleet: Fleet, intake: Intake, keys: KeyRing, caches: Caches) -> None:
        self._prefixes = prefixes
        self._fleet = fleet
        self._intake = intake
        self._keys = keys
        self._caches = caches
        self._files = asyncio.Lock()

    async def put(self, request: BaseRequest) -> StreamResponse:
        """PUT /v1/prefixes/NAME: 201 for a new one, 200 for one replaced."""
        rule, name = self._admin(request), _named(request)
        new = name not in self._prefixes.kept
        body = await self._intake.read(request, rule.name)
        held = len(body)
        try:
            held += await self._intake.weigh(body)
            content = await self._content(name, body, rule)
            caches = self._caches(content.model)
            if not caches:
                message = f"no replica that serves '{content.model}' is up; the prefix cannot be warmed"
                raise ApiError(Problem(status=503, code="no_replica_up", message=message, retry_after_ns=NS_PER_S))
            refused = await self._prefixes.put(content, caches)
        finally:
            self._intake.release(held)
        if refused is not None:
            raise _not_pinned(refused)
        await self._store(content)
        return _json(self._entry(name), status=201 if new else 200)

    async def all(self, request: BaseRequest) -> StreamResponse:
        """GET /v1/prefixes."""
        self._admin(request)
        return _json({"object": "list", "data": [_shown(kept, one) for kept, one in self._prefixes.snapshots()]})

    async def one(self, request: BaseRequest) -> StreamResponse:
        """GET /v1/prefixes/NAME."""
        self._admin(request)
        return _json(self._entry(_named(request)))

    async def delete(self, request: BaseRequest) -> StreamResponse:
        """DELETE /v1/prefixes/NAME. It stays in caches until it is evicted."""
        self._admin(request)
        name = _named(request)
        if not self._prefixes.drop(name):
            raise _unknown(name)
        async with self._files:
            if name not in self._prefixes.kept:  # else it was put again meanwhile
                await asyncio.to_thread(self._prefixes.erase, name)
        return Response(status=204)

    async def _store(self, content: Content) -> None:
        """Its file, one after the other: of two that come at once, the one that is pinned stays."""
        async with self._files:
            kept = self._prefixes.kept.get(content.name)
            if kept is None or kept.content is not content:
                return
            try:
                await asyncio.to_thread(self._prefixes.save, content)
            except OSError as problem:
                message = f"the prefix is pinned, and lost with the next restart: {problem.strerror or problem}"
                raise ApiError(Problem(status=500, code="prefix_not_stored", message=message)) from problem

    def _admin(self, request: BaseRequest) -> KeyRule:
        rule = self._keys.rule_of(request.headers.getall("Authorization", ()))
        if not rule.admin:
            message = "this key may not pin prefixes; it needs admin = true"
            raise ApiError(Problem(status=403, code="not_admin", message=message))
        return rule

    async def _content(self, name: str, body: bytes, rule: KeyRule) -> Content:
        fields = await body_object(self._intake, body)
        route = Route.CHAT if "messages" in fields else Route.COMPLETIONS
        ask = parsed(body, route, request_id=f"pin-{name}", rule=self._intake.fields, fields=fields)
        served = self._fleet.serving(ask.model)
        copies = ask.fields.get("copies", 1)
        if isinstance(copies, bool) or not isinstance(copies, int) or not 1 <= copies <= len(served):
            raise bad_request(f"'copies' must be 1 to {len(served)}, the replicas of '{ask.model}'", param="copies")
        if route is Route.COMPLETIONS and not isinstance(ask.fields["prompt"], str):
            raise bad_request("'prompt' must be a text here", param="prompt")
        return Content(
            name=name,
            route=route,
            model=ask.model,
            fields=kept_fields(ask.fields),
            copies=copies,
            tenant=rule.tenant,
            key=rule.name,
            salt=rule.salt(ask.salt),
        )

    def _entry(self, name: str) -> dict[str, object]:
        for kept, one in self._prefixes.snapshots():
            if one.name == name:
                return _shown(kept, one)
        raise _unknown(name)


def _named(request: BaseRequest) -> str:
    name = request.path.removeprefix(f"{ROUTE}/")
    if not _NAME.fullmatch(name):
        raise bad_request("a prefix is named by 1 to 64 letters, digits, '.', '_' and '-'", param="name")
    return name


def _shown(kept: Kept, one: PinnedSnapshot) -> dict[str, object]:
    return {
        "name": one.name,
        "object": "prefix",
        "model": kept.content.model,
        "tokens": one.input_tokens,
        "blocks": one.blocks,
        "copies": one.copies,
        "replicas": list(one.homes),
        "held_tokens": dict(one.held),
        "requests": one.requests,
        "hits": one.hits,
        "warmed": one.warmed,
        "moved": one.moved,
        "problem": one.homeless or kept.problem,
    }


def _unknown(name: str) -> ApiError:
    return ApiError(Problem(status=404, code="prefix_not_found", message=f"no prefix '{name}' is pinned", param="name"))


def _not_pinned(refused: PinRefused) -> ApiError:
    return ApiError(
        Problem(
            status=400,
            code="prefix_not_pinned",
            message=f"the prefix is not pinned: {refused.reason}",
            limit=refused.limit,
            actual=refused.actual,
            unit=refused.unit,
        )
    )


def _json(value: object, status: int = 200) -> Response:
    return Response(body=orjson.dumps(value), content_type="application/json", status=status)
