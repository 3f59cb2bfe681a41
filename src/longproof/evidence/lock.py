"""One writer per evidence directory.

The lock is the kernel's (flock), so it dies with its process: a file left by kill -9 locks nothing. The file only names
the holder for people.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from longproof.errors import EvidenceError
from longproof.evidence.disk import not_writable

LOCK_NAME = "lock"


class DirectoryLock:
    """Held from construction to `release`. Raises EvidenceError naming the pid when another process writes here."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / LOCK_NAME
        self._fd: int | None = self._take()

    def release(self) -> None:
        """Gives the lock back and removes its file. Safe to call twice."""
        if self._fd is not None:
            self._path.unlink(missing_ok=True)  # before closing: nobody can lock this name while we hold it
            os.close(self._fd)
            self._fd = None

    def _take(self) -> int:
        while True:
            try:
                fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            except OSError as problem:
                raise not_writable(self._path.parent, problem) from problem
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.pread(fd, 32, 0).decode(errors="replace").strip() or "unknown"
                os.close(fd)
                raise EvidenceError(
                    f"{self._path.parent} is being written by process {holder}",
                    advice="wait for it, stop it, or name another directory with --out",
                ) from None
            if self._still_named(fd):
                os.ftruncate(fd, 0)
                os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
                return fd
            os.close(fd)  # the holder removed the file between our open and our lock: take the new one

    def _still_named(self, fd: int) -> bool:
        try:
            return os.path.samestat(os.fstat(fd), self._path.stat())
        except FileNotFoundError:
            return False
