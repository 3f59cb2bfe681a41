"""Engines of ours that end are started again."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from longproof.engines.process import Launch, OwnedProcess
from longproof.errors import EngineUnreachable
from longproof.gateway.config import EngineSection
from longproof.gateway.launched import Standing
from longproof.gateway.supervise import Supervision

# announces an address and answers every request with 200, like an engine that is well
ENGINE = """
import http.server, os, sys
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
    def log_message(self, *_):
        pass
server = http.server.HTTPServer(("127.0.0.1", 0), Answer)
with os.fdopen(int(os.environ["LONGPROOF_ANNOUNCE_FD"]), "w") as announce:
    announce.write(f"http://127.0.0.1:{server.server_port}\\n")
server.serve_forever()
"""


async def test_an_engine_is_started_again_when_it_was_killed_and_not_when_we_stop_it(tmp_path: Path) -> None:
    process = OwnedProcess(
        Launch(name="fake", argv=(sys.executable, "-c", ENGINE), log_path=tmp_path / "log", stop_grace_s=1)
    )
    await process.start()
    standing = Standing(name="fake", url=process.url, section=EngineSection(), process=process)
    supervision = Supervision([standing], first_wait_s=0.01)
    supervision.start()
    first = process.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    async with asyncio.timeout(60):
        while process.starts < 2 or not process.running:  # noqa: ASYNC110 - another process, so no event
            await asyncio.sleep(0.02)
    assert process.pid != first
    await supervision.close()
    await process.stop()
    assert process.starts == 2


class Late(OwnedProcess):
    """At its second start it does not serve in time, as a model that loads from a slow disk."""

    async def start(self, *, deadline_s: float = 600.0) -> None:
        await super().start(deadline_s=deadline_s)
        if self.starts == 2:
            await self.stop()
            raise EngineUnreachable("fake did not serve in time", url=self.url)


async def test_an_engine_is_started_once_more_when_it_was_late_at_the_start_after_its_end(tmp_path: Path) -> None:
    launch = Launch(name="fake", argv=(sys.executable, "-c", ENGINE), log_path=tmp_path / "log", stop_grace_s=1)
    process = Late(launch)
    await process.start()
    standing = Standing(name="fake", url=process.url, section=EngineSection(), process=process)
    supervision = Supervision([standing], first_wait_s=0.01)
    supervision.start()
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    async with asyncio.timeout(60):
        while process.starts < 3 or not process.running:  # noqa: ASYNC110 - another process, so no event
            await asyncio.sleep(0.02)
    await supervision.close()
    await process.stop()
    assert process.starts == 3
