"""A server that hangs is given up on in the run's own time."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from longproof.asking import recovery
from longproof.asking.context import ProbeContext
from longproof.clock import SystemClock
from longproof.engines.link import Link
from longproof.engines.openai import OpenAIEngine
from longproof.evidence.store import Journal
from longproof.testing.builders import build_hang, build_header
from longproof.testing.scripted_http import HANG, Reply, ScriptedHttp


async def test_a_server_that_hangs_is_gone_without_waiting_for_its_longest_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "_LEAST_WAIT_S", 0.05)
    monkeypatch.setattr(recovery, "_PAUSE_S", 0.0)
    header = build_header()
    header = replace(header, protocol=replace(header.protocol, request_timeout_s=0.05))
    async with ScriptedHttp({"POST /v1/chat/completions": Reply(pieces=(HANG,))}) as server:
        engine = OpenAIEngine(Link(server.url), model="m")
        with Journal.create(tmp_path, header) as journal:
            journal.start_session(SystemClock())
            ctx = ProbeContext(
                engine=engine,
                deployment=header.deployment,
                protocol=header.protocol,
                journal=journal,
                prompts=None,  # type: ignore[arg-type] - recovery builds no prompts
                budget=None,  # type: ignore[arg-type] - nor does it ask the budget
                progress=None,  # type: ignore[arg-type] - nor draw
            )
            # six tries of 0.05 s each; without the run's own limit, each would take the two minutes of `alive`
            async with asyncio.timeout(20):
                with pytest.raises(recovery.EngineGone):
                    await recovery.check_alive(ctx, "k", probe="speed", after=build_hang())
            assert journal.get("k/alive") is not None
        await engine.aclose()
