"""One gateway per meter directory: the kernel's lock, which dies with its process."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from longproof.errors import UsageError


class MeterLock:
    """Held from construction to `release`. Raises UsageError when another process holds it."""

    def __init__(self, directory: Path) -> None:
        self._fd = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as problem:
            os.close(self._fd)
            raise UsageError(
                f"another gateway writes its usage to {directory}",
                advice="stop it, or give this gateway a directory of its own",
            ) from problem

    def release(self) -> None:
        """Gives the lock back. Safe to call twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
