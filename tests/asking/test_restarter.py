"""Restarting by a command: what is refused before anything runs, and what is kept of a run that fails."""

from __future__ import annotations

import asyncio
from pathlib import Path

import psutil
import pytest

from longproof.asking.restarter import CommandRestarter, OwnedRestarter, RestartFailed, restarter_for
from longproof.engines.registry import connect
from longproof.errors import UsageError
from longproof.testing.lying_engine import lying_engine


@pytest.mark.parametrize(
    "command",
    ["true", "sleep 0", "FOO=1 true", "cd / && true", "/bin/true", "if true; then true; fi", "$PROGRAM -c true"],
)
async def test_the_command_is_run_when_the_shell_knows_it(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROGRAM", "/bin/sh")
    done = await CommandRestarter(command).restart()
    assert done.exit_code == 0
    assert done.took_ns > 0


@pytest.mark.parametrize("command", ["no-such-program-anywhere --now", "", "FOO=1", "/no/such/file", "echo 'open"])
def test_the_user_is_told_at_once_when_it_cannot_be_run(command: str) -> None:
    with pytest.raises(UsageError, match="--restart-cmd"):
        CommandRestarter(command)


async def test_exit_code_and_last_words_are_kept_when_the_command_fails() -> None:
    with pytest.raises(RestartFailed) as caught:
        await CommandRestarter("echo begun; echo no permission >&2; exit 3").restart()
    assert caught.value.exit_code == 3
    assert caught.value.output_tail == "begun\nno permission"


async def test_it_is_over_when_the_command_leaves_a_server_behind(tmp_path: Path) -> None:
    """The process behind keeps stdout open; only the command itself is waited for."""
    pid = tmp_path / "pid"
    done = await CommandRestarter(f"sleep 60 & echo $! > {pid}").restart()
    assert done.took_ns < 30_000_000_000
    await (await asyncio.create_subprocess_exec("kill", pid.read_text().strip())).wait()


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def test_a_command_that_does_not_end_is_ended_when_its_time_is_over(tmp_path: Path) -> None:
    pid, mark = tmp_path / "pid", tmp_path / "alive"
    with pytest.raises(RestartFailed, match=r"did not end within 1 s"):
        await CommandRestarter(f"sleep 600 & echo $! > {pid}; wait; touch {mark}", timeout_s=1.0).restart()
    async with asyncio.timeout(60):
        while _runs(int(pid.read_text())):  # noqa: ASYNC110 - another process, so no event
            await asyncio.sleep(0.01)
    assert not mark.exists()


async def test_the_command_wins_and_nobody_restarts_when_nothing_can() -> None:
    with lying_engine() as url:
        engine = await connect(url)
        assert restarter_for(engine, None) is None
        assert isinstance(restarter_for(engine, "true"), CommandRestarter)
        await engine.aclose()


class _Owned:
    """As much of an engine as its restarter needs."""

    restarted = 0

    async def restart(self) -> None:
        self.restarted += 1


async def test_our_own_engine_is_restarted_when_there_is_no_command() -> None:
    engine = _Owned()
    done = await OwnedRestarter(engine).restart()  # type: ignore[arg-type] - a part of the port
    assert engine.restarted == 1
    assert done.exit_code is None
