"""vLLM's routes around generation, as 0.32.0 answers them (entrypoints/serve, v1/metrics/loggers.py)."""

from __future__ import annotations

from typing import Any, cast

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from longproof.testing.ask import chat_ids, read_json, token_ids
from longproof.testing.dialects import Json
from longproof.testing.engine_state import EngineState
from longproof.testing.fake_tokenizer import BOS, tokenizer
from longproof.testing.lie import find
from longproof.testing.lies import ClaimWindow, WrongCount
from longproof.testing.surface import Surface, json_answer
from longproof.testing.surface_vllm_metrics import vllm_metrics


def vllm_surface(state: EngineState) -> Surface:
    """Route → endpoint."""

    async def health(_: Request) -> Response:
        return Response(headers=dict(state.behaviour.dialect.headers))

    async def version(_: Request) -> Response:
        return json_answer(state, {"version": "0.32.0"})

    async def models(_: Request) -> Response:
        return json_answer(state, _models(state))

    async def metrics(_: Request) -> Response:
        kind = "text/plain; version=0.0.4; charset=utf-8"
        return PlainTextResponse(vllm_metrics(state), headers=dict(state.behaviour.dialect.headers), media_type=kind)

    async def tokenize(request: Request) -> Response:
        return json_answer(state, _tokenize(read_json(await request.body(), state.behaviour), state))

    async def detokenize(request: Request) -> Response:
        ids = token_ids(read_json(await request.body(), state.behaviour), "tokens", state.behaviour)
        return json_answer(state, {"prompt": tokenizer().decode(ids)})

    async def abort(request: Request) -> Response:
        asked: Any = read_json(await request.body(), state.behaviour).get("request_ids")
        ids = [str(item) for item in cast("list[Any]", asked)] if isinstance(asked, list) else []
        return json_answer(state, {"status": "aborted", "aborted": state.open.abort(ids)})

    async def openapi(_: Request) -> Response:
        served: Json = {path: {method.lower(): {}} for path, (method, _) in surface.items()}
        return json_answer(state, {"openapi": "3.1.0", "info": {"title": "FastAPI"}, "paths": served})

    surface: Surface = {
        "/health": ("GET", health),
        "/ping": ("GET", health),
        "/version": ("GET", version),
        "/v1/models": ("GET", models),
        "/metrics": ("GET", metrics),
        "/tokenize": ("POST", tokenize),
        "/detokenize": ("POST", detokenize),
        "/openapi.json": ("GET", openapi),
    }
    if state.behaviour.dev_mode:
        surface["/abort_requests"] = ("POST", abort)
    return surface


def _window(state: EngineState) -> int:
    claim = find(state.behaviour.lies, ClaimWindow)
    return state.behaviour.window_tokens if claim is None else claim.tokens


def _models(state: EngineState) -> Json:
    name = state.behaviour.model
    card: Json = {
        "id": name,
        "object": "model",
        "created": 1,
        "owned_by": "vllm",
        "root": f"/models/{name}",
        "parent": None,
        "max_model_len": _window(state),
        "permission": [],
    }
    return {"object": "list", "data": [card]}


def _tokenize(body: Json, state: EngineState) -> Json:
    if "messages" in body:
        ids = chat_ids(body, state.behaviour)
    else:
        ids = tokenizer().encode(str(body.get("prompt", "")))
        if state.behaviour.adds_bos and body.get("add_special_tokens") is not False:
            ids = [BOS, *ids]
    off = find(state.behaviour.lies, WrongCount)
    count = len(ids) + (0 if off is None else off.offset)
    return {"count": count, "max_model_len": _window(state), "tokens": ids, "token_strs": None}
