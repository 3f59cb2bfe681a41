"""The ASGI application of one life of the engine: log, key check, surface, and the two routes that generate."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from longproof.testing.ask import Refusal
from longproof.testing.dialects import LLAMACPP, VLLM, Json
from longproof.testing.engine_log import Call, Served
from longproof.testing.engine_state import EngineState
from longproof.testing.exchange import Exchange
from longproof.testing.surface import json_answer
from longproof.testing.surface_llamacpp import llamacpp_surface
from longproof.testing.surface_openai import openai_surface
from longproof.testing.surface_vllm import vllm_surface

_SURFACES = {"llama.cpp": llamacpp_surface, "vllm": vllm_surface, "openai": openai_surface}
_GENERATES = {"/v1/chat/completions": True, "/v1/completions": False}


def engine_app(state: EngineState) -> ASGIApp:
    """The application; everything it does depends on `state.behaviour` at the time of a request, but for its routes."""
    surface = _SURFACES[state.behaviour.dialect.name](state)
    routes = [Route(path, endpoint, methods=[method]) for path, (method, endpoint) in surface.items()]
    routes += [Route(path, _Generate(state, chat=chat), methods=["POST"]) for path, chat in _GENERATES.items()]

    async def refused(_: Request, problem: Exception) -> Response:
        assert isinstance(problem, Refusal)
        return json_answer(state, problem.body, problem.status)

    async def not_found(request: Request, _: Exception) -> Response:
        return json_answer(state, _not_found(state, request), 404)

    handlers = {Refusal: refused, 404: not_found, 405: not_found}
    return _Door(Starlette(routes=routes, exception_handlers=handlers), state)


class _Generate:
    """Endpoint of a generation route: one Exchange per request."""

    def __init__(self, state: EngineState, *, chat: bool) -> None:
        self._state = state
        self._chat = chat

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        log = self._state.log
        served = Served(
            index=len(log.requests),
            path=scope["path"],
            received_ns=self._state.clock.now_ns(),
            headers=dict(Request(scope).headers),
        )
        log.began(served)
        try:
            await Exchange(self._state, served, receive, send, chat=self._chat).run()
        finally:
            log.ended(served)


class _Door:
    """Logs every call and asks for the key where the dialect does."""

    def __init__(self, app: ASGIApp, state: EngineState) -> None:
        self._app = app
        self._state = state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        now = self._state.clock.now_ns()
        self._state.log.calls.append(Call(method=request.method, path=request.url.path, at_ns=now))
        refusal = self._wrong_key(request)
        if refusal is None:
            await self._app(scope, receive, send)
        else:
            await json_answer(self._state, refusal, 401)(scope, receive, send)

    def _wrong_key(self, request: Request) -> Json | None:
        key, dialect, path = self._state.behaviour.api_key, self._state.behaviour.dialect, request.url.path
        given = request.headers.get("authorization", "")
        if key is None or given == f"Bearer {key}":
            return None
        if dialect is LLAMACPP:
            open_to_all = path in ("/health", "/v1/health")
            return None if open_to_all else dialect.error(401, "Invalid API Key", type_="authentication_error")
        if dialect is VLLM:
            return {"error": "Unauthorized"} if path.startswith("/v1") else None
        message = "Incorrect API key provided."
        return dialect.error(401, message, type_="invalid_request_error", code="invalid_api_key")


def _not_found(state: EngineState, request: Request) -> Json:
    dialect = state.behaviour.dialect
    if dialect is LLAMACPP:
        return dialect.error(404, "File Not Found", type_="not_found_error")
    if dialect is VLLM:
        return {"detail": "Not Found"}
    message = f"Invalid URL ({request.method} {request.url.path})"
    return dialect.error(404, message, type_="invalid_request_error")
