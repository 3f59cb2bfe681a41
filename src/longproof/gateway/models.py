"""GET /v1/models: what is served here, under every name it answers to."""

from __future__ import annotations

import orjson
from aiohttp.web import BaseRequest, Response, StreamResponse

from longproof.gateway.errors import ApiError, Problem
from longproof.gateway.fleet import Fleet
from longproof.gateway.keys import KeyRing, KeyRule


class ModelList:
    """The list, and one entry of it. A key sees what it may use."""

    def __init__(self, fleet: Fleet, keys: KeyRing) -> None:
        self._fleet = fleet
        self._keys = keys

    async def all(self, request: BaseRequest) -> StreamResponse:
        """GET /v1/models."""
        rule = self._keys.rule_of(request.headers.getall("Authorization", ()))
        return _json({"object": "list", "data": [self._entry(name) for name in self._shown_to(rule)]})

    async def one(self, request: BaseRequest) -> StreamResponse:
        """GET /v1/models/NAME."""
        rule = self._keys.rule_of(request.headers.getall("Authorization", ()))
        name = request.path.removeprefix("/v1/models/")
        shown = self._shown_to(rule)
        if name not in shown:
            message = f"the model '{name[:80]}' is not served here; served are: {', '.join(shown[:12]) or 'none'}"
            raise ApiError(Problem(status=404, code="model_not_found", message=message, param="model"))
        return _json(self._entry(name))

    def _shown_to(self, rule: KeyRule) -> list[str]:
        return [name for name in self._fleet.model_names() if rule.models is None or name in rule.models]

    def _entry(self, name: str) -> dict[str, object]:
        limit = self._fleet.limit_tokens(name)
        entry: dict[str, object] = {
            "id": name,
            "object": "model",
            "created": self._fleet.created_s,
            "owned_by": "longproof",
        }
        if limit is not None:
            entry["max_model_len"] = limit
        return entry


def _json(value: object) -> Response:
    return Response(body=orjson.dumps(value), content_type="application/json")
