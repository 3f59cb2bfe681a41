"""How a server is restarted: the process we own by its engine, anybody else's by a command that the user gave."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import signal
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol as Port

from longproof.clock import Clock, SystemClock
from longproof.engines.base import Engine
from longproof.errors import EngineMisbehaved, UsageError

_TAIL_CHARS = 2_000
_COMMAND_TIMEOUT_S = 1_800.0
_GRACE_S = 5.0
_SHELL_SIGNS = "$`({!"


@dataclass(frozen=True, slots=True, kw_only=True)
class Restarted:
    """How a restart went, before anybody asked whether the server answers. `exit_code` and `output_tail` (stdout and
    stderr together) are the command's; None and empty where the engine is ours."""

    took_ns: int
    exit_code: int | None = None
    output_tail: str = ""


class RestartFailed(Exception):  # noqa: N818 - a finding about the deployment, not an error of ours
    """The restart did not end well: the command said no or did not end, or our engine did not come up."""

    def __init__(self, what: str, *, exit_code: int | None = None, output_tail: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.exit_code = exit_code
        self.output_tail = output_tail


class Restarter(Port):
    """Restarts one server."""

    @property
    def how(self) -> str:
        """What is done, for the record: the command as it was given, or that the engine is ours."""
        ...

    async def restart(self) -> Restarted:
        """Stops the server and starts it again. Raises RestartFailed."""
        ...


class OwnedRestarter:
    """The engine whose process is ours."""

    how = "our own process"

    def __init__(self, engine: Engine, clock: Clock | None = None) -> None:
        self._engine = engine
        self._clock = clock or SystemClock()

    async def restart(self) -> Restarted:
        """Returns when its health page says that it serves."""
        begun_ns = self._clock.now_ns()
        try:
            await self._engine.restart()
        except EngineMisbehaved as problem:
            raise RestartFailed(str(problem)) from problem
        return Restarted(took_ns=self._clock.now_ns() - begun_ns)


class CommandRestarter:
    """A command run by the shell, as the user wishes. UsageError at once for a program that is not there."""

    def __init__(self, command: str, *, timeout_s: float = _COMMAND_TIMEOUT_S, clock: Clock | None = None) -> None:
        _check(command)
        self.how = command
        self._timeout_s = timeout_s
        self._clock = clock or SystemClock()

    async def restart(self) -> Restarted:
        """Returns when the command has ended with 0. What it writes goes to a file: a server that it leaves behind may
        keep a pipe open for ever."""
        begun_ns = self._clock.now_ns()
        with tempfile.TemporaryDirectory(prefix="longproof-restart-") as directory:
            output = Path(directory) / "output"
            with output.open("wb") as sink:
                child = await asyncio.create_subprocess_shell(
                    self.how,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=sink,
                    stderr=asyncio.subprocess.STDOUT,
                    start_new_session=True,
                )
            try:
                async with asyncio.timeout(self._timeout_s):
                    code = await child.wait()
            except TimeoutError:
                await _end(child)
                raise RestartFailed(
                    f"the command did not end within {self._timeout_s:g} s", output_tail=_tail(output)
                ) from None
            except BaseException:
                await _end(child)
                raise
            tail = _tail(output)
        if code != 0:
            raise RestartFailed(f"the command ended with exit code {code}", exit_code=code, output_tail=tail)
        return Restarted(took_ns=self._clock.now_ns() - begun_ns, exit_code=code, output_tail=tail)


def restarter_for(engine: Engine, command: str | None) -> Restarter | None:
    """The user's command where there is one, else our own process, else None. UsageError for a command that cannot
    be run."""
    if command is not None:
        return CommandRestarter(command)
    return OwnedRestarter(engine) if engine.capabilities.restarts else None


def _check(command: str) -> None:
    """Looks for the program before anything is sent to the server. What only the shell can tell is left to it."""
    advice = "check --restart-cmd; it is run by the shell, and should end when the server is being started"
    try:
        words = shlex.split(command)
    except ValueError as problem:
        raise UsageError(f"--restart-cmd '{command}' is no shell command: {problem}", advice=advice) from None
    program = next((word for word in words if "=" not in word.partition("/")[0]), None)
    if program is None:
        raise UsageError(f"--restart-cmd '{command}' runs nothing", advice=advice)
    if program[0] in _SHELL_SIGNS:
        return
    look = ["/bin/sh", "-c", 'command -v -- "$0" >/dev/null', str(Path(program).expanduser())]
    if subprocess.run(look, check=False).returncode != 0:
        raise UsageError(f"--restart-cmd: there is no program '{program}'", advice=advice)


async def _end(child: asyncio.subprocess.Process) -> None:
    """SIGTERM, then SIGKILL, to the command and whatever it started in its session."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, sign)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_GRACE_S):
                await child.wait()
                return


def _tail(path: Path) -> str:
    return path.read_bytes()[-4 * _TAIL_CHARS :].decode(errors="replace")[-_TAIL_CHARS:].strip()
