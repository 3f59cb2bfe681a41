"""What every surface is made of."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from starlette.requests import Request
from starlette.responses import Response

from longproof.testing.dialects import Json
from longproof.testing.engine_state import EngineState

Endpoint: TypeAlias = Callable[[Request], Awaitable[Response]]
Surface: TypeAlias = dict[str, tuple[str, Endpoint]]
"""Path → (method, endpoint): all of an engine's routes but the two that generate."""


def json_answer(state: EngineState, body: Json | list[Json], status: int = 200) -> Response:
    """A JSON response with the dialect's headers."""
    dialect = state.behaviour.dialect
    headers = {**dict(dialect.headers), "content-type": dialect.json_type}
    return Response(json.dumps(body, ensure_ascii=False).encode(), status_code=status, headers=headers)
