"""The least an OpenAI-compatible server has: a list of models. No counting, no ids, no metrics, no health."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from longproof.testing.engine_state import EngineState
from longproof.testing.surface import Surface, json_answer


def openai_surface(state: EngineState) -> Surface:
    """Route → endpoint."""

    async def models(_: Request) -> Response:
        card = {"id": state.behaviour.model, "object": "model", "created": 1, "owned_by": "fake"}
        return json_answer(state, {"object": "list", "data": [card]})

    return {"/v1/models": ("GET", models)}
