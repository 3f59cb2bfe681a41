"""A call has one time limit, however slowly its answer drips."""

from __future__ import annotations

import pytest

from longproof.engines.link import Link
from longproof.errors import EngineUnreachable
from longproof.testing.scripted_http import Reply, ScriptedHttp


async def test_a_call_ends_at_its_limit_when_its_answer_drips_without_end() -> None:
    drips = tuple(piece for _ in range(2_000) for piece in (b" ", 0.05))
    async with ScriptedHttp({"GET /v1/models": Reply(pieces=drips)}) as server, Link(server.url) as link:
        with pytest.raises(EngineUnreachable):
            await link.get("/v1/models", timeout_s=0.3)
