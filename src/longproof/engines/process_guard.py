"""Runs a program that must not outlive longproof: ``python -m longproof.engines.process_guard GRACE_S PROGRAM ARG...``.

Standard input is the lifeline. When it ends, or on SIGTERM, the program gets SIGTERM and has GRACE_S seconds; then all
that it left behind gets SIGKILL, also processes that made themselves daemons (on Linux the guard is their subreaper).
When the program ends by itself, what it left behind is killed too, and the guard ends the same way: same exit code, or
same signal.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import select
import signal
import subprocess
import sys
from collections.abc import Callable

import psutil

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_EXIT_NOT_STARTED = 127


def main(arguments: list[str]) -> int:
    grace_s, program = float(arguments[0]), arguments[1:]
    wake_read, wake_write = os.pipe()
    for fd in (wake_read, wake_write):
        os.set_blocking(fd, False)
    signal.set_wakeup_fd(wake_write)
    wanted: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: wanted.append(number))
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    prctl = _prctl()
    prctl(_PR_SET_CHILD_SUBREAPER, 1)
    try:
        child = subprocess.Popen(
            program,
            stdin=subprocess.DEVNULL,
            close_fds=False,  # the announcement descriptor is for the program
            preexec_fn=lambda: prctl(_PR_SET_PDEATHSIG, signal.SIGKILL),  # noqa: PLW1509 - the guard has one thread
        )
    except OSError as problem:
        sys.stderr.write(f"process_guard: {program[0]} cannot be started: {problem.strerror}\n")
        return _EXIT_NOT_STARTED

    while child.poll() is None and not wanted:
        ready, _, _ = select.select([0, wake_read], [], [])
        if 0 in ready:
            break  # nobody writes to the lifeline: readable means that it ended
        with contextlib.suppress(BlockingIOError):
            os.read(wake_read, 4096)

    if child.poll() is None:
        child.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(timeout=grace_s)
    _kill_descendants()
    return _end_like(child.wait())


def _prctl() -> Callable[[int, int], int]:
    """libc's prctl on Linux; elsewhere a stand-in that does nothing."""
    if sys.platform != "linux":
        return lambda _option, _value: 0
    libc = ctypes.CDLL(None)
    return lambda option, value: int(libc.prctl(option, value))


def _kill_descendants() -> None:
    me = psutil.Process()
    while members := [m for m in me.children(recursive=True) if m.status() != psutil.STATUS_ZOMBIE]:
        for member in members:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.kill()
        psutil.wait_procs(members, timeout=1)


def _end_like(returncode: int) -> int:
    if returncode < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the core dump of interest is the engine's
        with contextlib.suppress(OSError, ValueError):
            signal.signal(-returncode, signal.SIG_DFL)
        os.kill(os.getpid(), -returncode)
    return returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
