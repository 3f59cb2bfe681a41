"""An engine process that we own: start, wait until it serves, watch, stop, restart. Its crash is a finding, never ours.

                 lifeline (a pipe; only we hold its write end)
    longproof ──────────────────────────────▶ engine              a program that watches its own stdin
    longproof ──────────────────────────────▶ guard ──▶ engine    any other: `process_guard` watches for it

When longproof ends, however it ends (kill -9 included), the kernel closes the lifeline, and the engine ends:

- a program that watches the lifeline ends itself;
- behind the guard, the engine gets SIGTERM and, after the grace time, it and all its descendants get SIGKILL. Should
  the guard itself be killed, Linux kills the engine's first process with it (PR_SET_PDEATHSIG); what that process had
  started is then left to itself.

Everything here works from any event loop, and a process started in one may be stopped in another.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil

from longproof.clock import SystemClock
from longproof.domain.measure import Measured, Provenance, Reading, Unknown
from longproof.errors import EngineDied, EngineUnreachable, UsageError

ANNOUNCE_FD = "LONGPROOF_ANNOUNCE_FD"
"""Environment variable naming the descriptor on which an engine writes its base URL and a newline, once it listens."""

_POLL_S = 0.02
_TAIL_BYTES = 16_384


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """How to start an engine.

    `url`: base URL it will serve on; None = it writes the URL to the descriptor named by `ANNOUNCE_FD`. `health_path`
    answers 200 when it serves. `env` is added to our own environment. `log_path` takes its stdout and stderr, appended
    across starts. `watches_lifeline`: it ends by itself when its stdin ends; other programs run behind the guard.
    `stop_grace_s`: how long it may take to end after SIGTERM.
    """

    name: str
    argv: tuple[str, ...]
    log_path: Path
    url: str | None = None
    health_path: str = "/health"
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    watches_lifeline: bool = False
    stop_grace_s: float = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessMemory:
    """Resident memory of an engine: the sum over its processes, the guard left out.

    `peak_rss_bytes` sums the kernel's own high-water marks (VmHWM), so for several processes it is an upper bound.
    """

    rss_bytes: int
    peak_rss_bytes: Reading[int]


class OwnedProcess:
    """One engine process. `launch` is what the next start uses; `log_path` stays the same over all starts."""

    def __init__(self, launch: Launch) -> None:
        self.launch = launch
        self.starts = 0
        self._url = launch.url
        self._child: subprocess.Popen[bytes] | None = None
        self._announce_fd: int | None = None
        self._announced = b""
        self._log_start_bytes = 0
        self._stopped_by_us = False

    @property
    def url(self) -> str:
        """Base URL, without a trailing slash. Known after the first start (or from the launch)."""
        if self._url is None:
            raise RuntimeError("the engine has not announced its address: start it first")
        return self._url

    @property
    def pid(self) -> int | None:
        """Process id of what we started (the guard, where there is one); None before the first start."""
        return None if self._child is None else self._child.pid

    @property
    def returncode(self) -> int | None:
        """None while it runs or before the first start; negative = ended by that signal."""
        return None if self._child is None else self._child.poll()

    @property
    def running(self) -> bool:
        return self._child is not None and self._child.poll() is None

    async def start(self, *, deadline_s: float = 600.0) -> None:
        """Starts the engine and returns when its health URL answers 200.

        Raises UsageError when the program does not exist, EngineDied when it ends first, EngineUnreachable at the
        deadline. In each case, and when cancelled, nothing is left running.
        """
        if self.running:
            raise RuntimeError(f"{self.launch.name} is already running as process {self.pid}")
        self._spawn()
        try:
            async with asyncio.timeout(deadline_s):
                await self._until_healthy()
        except TimeoutError:
            await self.stop()
            raise EngineUnreachable(
                f"{self.launch.name} did not serve within {deadline_s:g} s; its last words:\n{self.log_tail()}",
                url=self._url or "",
            ) from None
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """SIGTERM, then SIGKILL after the grace time. Safe to call twice, also when the process has ended by itself."""
        child = self._child
        if child is None:
            return
        if child.poll() is None:
            self._stopped_by_us = True
            child.terminate()
            # the guard needs its own moment after the engine's grace time
            waiting_s = self.launch.stop_grace_s + (0 if self.launch.watches_lifeline else 2)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(waiting_s):
                    await _ended(child)
        self.kill()

    def kill(self) -> None:
        """SIGKILL to the whole process group, without waiting for anybody's grace. Safe to call twice."""
        child = self._child
        if child is None:
            return
        if child.poll() is None:
            self._stopped_by_us = True
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        if child.stdin is not None:
            child.stdin.close()
        self._close_announcement()

    async def restart(self, *, deadline_s: float = 600.0) -> None:
        """Stops it if it runs, and starts it again. Raises as `start` does."""
        await self.stop()
        await self.start(deadline_s=deadline_s)

    async def ended(self) -> EngineDied | None:
        """Waits until the process ends; None when it was we who stopped it."""
        if self._child is None:
            raise RuntimeError(f"{self.launch.name} was never started")
        await _ended(self._child)
        return self.death()

    def death(self) -> EngineDied | None:
        """How the process ended by itself, with the end of its log; None while it runs or when we stopped it."""
        code = self.returncode
        if code is None or self._stopped_by_us:
            return None
        return EngineDied(
            f"{self.launch.name} ended {_describe(code)}",
            url=self._url or "",
            returncode=code,
            log_tail=self.log_tail(),
        )

    def log_tail(self, lines: int = 25) -> str:
        """The last lines of the log, of this start only."""
        with contextlib.suppress(OSError), self.launch.log_path.open("rb") as log:
            end = log.seek(0, os.SEEK_END)
            log.seek(max(self._log_start_bytes, end - _TAIL_BYTES))
            return "\n".join(log.read().decode(errors="replace").splitlines()[-lines:])
        return ""

    def log_text(self, *, limit_bytes: int = 1 << 20) -> str:
        """The log from the beginning of this start, at most `limit_bytes` of it: start-up messages come first."""
        with contextlib.suppress(OSError), self.launch.log_path.open("rb") as log:
            log.seek(self._log_start_bytes)
            return log.read(limit_bytes).decode(errors="replace")
        return ""

    def memory(self) -> ProcessMemory:
        """Resident memory now and at its peak. Raises EngineDied when the process has ended."""
        if self._child is None or self._child.poll() is not None:
            raise self.death() or EngineDied(f"{self.launch.name} is not running", url=self._url or "")
        root = psutil.Process(self._child.pid)
        members = root.children(recursive=True)
        if self.launch.watches_lifeline:
            members.append(root)
        rss_bytes = 0
        peaks: list[int | None] = []
        for member in members:
            with contextlib.suppress(psutil.NoSuchProcess):
                rss_bytes += member.memory_info().rss
                peaks.append(_high_water_bytes(member.pid))
        return ProcessMemory(rss_bytes=rss_bytes, peak_rss_bytes=_sum_of_peaks(peaks))

    def memory_bytes(self) -> int | None:
        """Resident memory now, all processes together; None when it has ended."""
        try:
            return self.memory().rss_bytes
        except (EngineDied, psutil.NoSuchProcess):
            return None

    def _spawn(self) -> None:
        launch = self.launch
        if shutil.which(launch.argv[0]) is None:
            raise UsageError(
                f"{launch.name}: there is no program '{launch.argv[0]}'",
                advice="install it, or name it by its full path",
            )
        self.kill()  # closes what is left of an earlier start
        argv = launch.argv
        if not launch.watches_lifeline:
            guard = (sys.executable, "-P", "-m", "longproof.engines.process_guard", f"{launch.stop_grace_s:g}")
            argv = (*guard, *launch.argv)
        read_fd, write_fd = os.pipe()
        os.set_blocking(read_fd, False)
        self._announce_fd, self._announced = read_fd, b""
        self._stopped_by_us = False
        self.starts += 1
        try:
            with self._open_log() as log_fd:
                self._child = subprocess.Popen(
                    argv,
                    stdin=subprocess.PIPE,
                    stdout=log_fd,
                    stderr=subprocess.STDOUT,
                    bufsize=0,
                    pass_fds=(write_fd,),
                    env={**os.environ, **launch.env, ANNOUNCE_FD: str(write_fd)},
                    start_new_session=True,  # Ctrl-C in the terminal is for us alone: we then stop the engine in order
                )
        finally:
            os.close(write_fd)

    @contextlib.contextmanager
    def _open_log(self) -> Generator[int]:
        path = self.launch.log_path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            log_fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        except OSError as problem:
            raise UsageError(
                f"the engine's log {path} cannot be written: {problem.strerror}", advice="choose another directory"
            ) from problem
        try:
            stamp = SystemClock().wall().isoformat(timespec="seconds")
            os.write(log_fd, f"==== {self.launch.name}: start {self.starts} at {stamp} ====\n".encode())
            self._log_start_bytes = os.fstat(log_fd).st_size
            yield log_fd
        finally:
            os.close(log_fd)

    async def _until_healthy(self) -> None:
        # loopback must not go through a proxy from the environment
        async with httpx.AsyncClient(timeout=5.0, trust_env=False) as client:
            while True:
                death = self.death()
                if death is not None:
                    raise death
                address = self.launch.url or self._read_announcement()
                if address is not None:
                    self._url = address
                    with contextlib.suppress(httpx.HTTPError):
                        if (await client.get(address + self.launch.health_path)).is_success:
                            return
                await asyncio.sleep(_POLL_S)

    def _read_announcement(self) -> str | None:
        if self._announce_fd is not None:
            with contextlib.suppress(BlockingIOError):
                self._announced += os.read(self._announce_fd, 4096)
        line, newline, _ = self._announced.partition(b"\n")
        return line.decode() if newline else None

    def _close_announcement(self) -> None:
        if self._announce_fd is not None:
            os.close(self._announce_fd)
            self._announce_fd = None


async def _ended(child: subprocess.Popen[bytes]) -> None:
    while child.poll() is None:  # noqa: ASYNC110 - another process, so no event; and polling is tied to no event loop
        await asyncio.sleep(_POLL_S)


def _describe(returncode: int) -> str:
    if returncode >= 0:
        return f"with exit code {returncode}"
    try:
        return f"by signal {-returncode} ({signal.Signals(-returncode).name})"
    except ValueError:
        return f"by signal {-returncode}"


def _high_water_bytes(pid: int) -> int | None:
    """VmHWM of /proc/PID/status, in bytes; None where the system has no such file."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return None


def _sum_of_peaks(peaks: list[int | None]) -> Reading[int]:
    known = [peak for peak in peaks if peak is not None]
    if not known or len(known) < len(peaks):
        return Unknown(reason="this system does not report a process's peak memory")
    return Measured(value=sum(known), provenance=Provenance.MEASURED, source="/proc/PID/status VmHWM")
