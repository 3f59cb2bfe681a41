"""The processes of one fleet under test: engines and gateway, started, killed, frozen and started again on the same
ports."""

from __future__ import annotations

import contextlib
import os
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import httpx
import orjson
import psutil

from chaos.engine import KV_TOPIC
from longproof.testing.ports import free_port
from longproof.testing.tokenizer_files import write_tokenizer_files

HERE = Path(__file__).parent
SILENCE_S = 4.0
"""How long an engine may send nothing before the gateway gives it up."""
STALL_S = 2.0
"""How long a client may take nothing."""
_UP_S = 60.0


class Engine:
    """One lying engine."""

    def __init__(
        self,
        name: str,
        directory: Path,
        seed: int,
        *,
        slots: int = 12,
        capacity: int = 8_192,
        token_s: float = 0.01,
    ) -> None:
        self.name, self.truth = name, directory / f"{name}.truth"
        self.port, self.kv_ports = free_port(), (free_port(), free_port())
        self._settings: dict[str, object] = {
            "port": self.port,
            "kv_ports": self.kv_ports,
            "truth": str(self.truth),
            "seed": seed,
            "window": 4096,
            "slots": slots,
            "capacity": capacity,
            "token_s": token_s,
        }
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, **kv: object) -> None:
        """Starts it, and waits until it listens. `kv`: what is wrong with its KV events (fields of `KvEvents`)."""
        command = [sys.executable, "-m", "chaos.engine", orjson.dumps({**self._settings, "kv": kv}).decode()]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=HERE.parent, env=dict(os.environ)
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"up\n", f"{self.name} did not start"

    def tell(self, **orders: object) -> int:
        """Gives orders; how many blocks its cache holds after that."""
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(orjson.dumps(orders, option=orjson.OPT_APPEND_NEWLINE))
        process.stdin.flush()
        return int(process.stdout.readline())

    def signal(self, number: int) -> None:
        """SIGSTOP, SIGCONT."""
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        """kill -9. Safe to call twice."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    pipe.close()
            self._process = None


class WallClock:
    """Moves the wall clock of the gateway, where a C compiler is there."""

    def __init__(self, directory: Path) -> None:
        self._file, library = directory / "wall-clock", directory / "wall_clock.so"
        self.move(0)
        command = ["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(HERE / "wall_clock.c"), "-ldl"]
        try:
            self.there = subprocess.run(command, capture_output=True, check=False).returncode == 0
        except FileNotFoundError:
            self.there = False
        self.environment = {"LD_PRELOAD": str(library), "WALL_CLOCK_FILE": str(self._file)} if self.there else {}

    def move(self, seconds: int) -> None:
        """So much is added to what it says."""
        with self._file.open("r+b" if self._file.exists() else "wb") as target:
            target.write(struct.pack("q", seconds))


class Disk:
    """A small disk for the gateway's state: a tmpfs where we may mount one, else a directory and a limit on how long a
    file may get."""

    def __init__(self, path: Path, mib: int = 48) -> None:
        self.path = path
        path.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={mib}m", "tmpfs", str(path)]
        try:
            self.mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
        except FileNotFoundError:
            self.mounted = False

    @property
    def how(self) -> str:
        """For the report."""
        return "a tmpfs, filled" if self.mounted else "RLIMIT_FSIZE 0"

    def fill(self, pid: int) -> None:
        """Not a byte is left."""
        if not self.mounted:
            _limit(pid, full=True)
            return
        fd = os.open(self.path / "ballast", os.O_WRONLY | os.O_CREAT)
        try:
            for size in (1 << 20, 4096, 1):
                try:
                    while os.write(fd, bytes(size)):
                        pass
                except OSError:
                    continue
        finally:
            os.close(fd)

    def free(self, pid: int) -> None:
        """There is room again. A limit goes with its process."""
        if self.mounted:
            (self.path / "ballast").unlink()
        elif psutil.pid_exists(pid):
            _limit(pid, full=False)

    def leave(self) -> None:
        """Unmounts it; what it held must have been read."""
        if self.mounted:
            subprocess.run(["umount", str(self.path)], check=False)


def _limit(pid: int, *, full: bool) -> None:
    import resource

    most = resource.RLIM_INFINITY
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (0 if full else most, most))


class Gateway:
    """``longproof serve`` in front of some engines. `state` survives its lives."""

    def __init__(
        self,
        engines: list[Engine],
        directory: Path,
        disk: Disk,
        clock: WallClock,
        *,
        embedded: bool = False,
        silence_s: float = SILENCE_S,
    ) -> None:
        self.port, self.state, self.lives = free_port(), disk.path, 0
        self.url = f"http://127.0.0.1:{self.port}"
        self._file, self._log, self._clock = directory / "fleet.toml", directory / "gateway.log", clock
        tokenizer = write_tokenizer_files(directory / "tokenizer", exact=True)
        self._file.write_text(_fleet(engines, self.port, self.state, tokenizer, silence_s, embedded=embedded))
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Of the life that runs."""
        assert self._process is not None
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._process is not None and self._process.poll() is None

    def log(self) -> str:
        """Everything it wrote, in all lives."""
        return self._log.read_text(errors="replace")

    def start(self) -> float:
        """Starts it; seconds until it is ready."""
        began_s = time.monotonic()
        self._run()
        while True:
            try:
                if httpx.get(f"{self.url}/ready", timeout=2.0).status_code == 200:
                    return time.monotonic() - began_s
            except httpx.HTTPError:
                pass
            if not self.alive or time.monotonic() - began_s > _UP_S:
                raise RuntimeError(f"the gateway does not start:\n{self.log()[-4000:]}")
            time.sleep(0.02)

    def start_in_vain(self) -> int:
        """Starts it where it cannot; its exit code."""
        self._run()
        assert self._process is not None
        return self._process.wait(_UP_S)

    def _run(self) -> None:
        self.lives += 1
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "longproof", "serve", str(self._file)],
                stderr=log,
                stdout=subprocess.DEVNULL,
                env={**os.environ, **self._clock.environment},
            )

    def kill(self) -> None:
        """kill -9. Safe to call twice."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def drain(self) -> int:
        """SIGTERM; its exit code."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(_UP_S)

    def embedded(self) -> psutil.Process | None:
        """The engine it started itself."""
        for child in psutil.Process(self.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):  # it may end while it is looked at
                if any("embedded_child" in part for part in child.cmdline()):
                    return child
        return None

    def embedded_model(self) -> str:
        """A name that its own engine alone goes by."""
        names = [str(one["id"]) for one in httpx.get(f"{self.url}/v1/models", timeout=20.0).json()["data"]]
        return next(name for name in names if name != "fake-135m")

    def figures(self) -> dict[str, float]:
        """/metrics, by name with labels."""
        text = httpx.get(f"{self.url}/metrics", timeout=20.0).text
        rows = (line.rpartition(" ") for line in text.splitlines() if line and not line.startswith("#"))
        return {name: float(value) for name, _, value in rows}

    def told_of(self, replica: str, since: int) -> list[str]:
        """What its log says of the index of a replica, from a place in it on: "ok", "degraded: why"."""
        lines = (line.partition("index=")[2] for line in self.log()[since:].splitlines())
        return [line.replace(f" for {replica}", "", 1) for line in lines if f" for {replica}" in line]

    def sockets(self) -> tuple[int, int]:
        """Connections with clients, and those with engines that the engine has closed and we have not."""
        found = [c for c in psutil.Process(self.pid).net_connections("tcp") if c.status != psutil.CONN_LISTEN]
        theirs = sum(c.laddr.port == self.port for c in found)
        return theirs, sum(c.laddr.port != self.port and c.status == psutil.CONN_CLOSE_WAIT for c in found)


def _fleet(engines: list[Engine], port: int, state: Path, tokenizer: Path, silence_s: float, *, embedded: bool) -> str:
    parts = [
        f"""[gateway]
port = {port}
state = "{state}"
decision_log = "{state}/decisions.jsonl"
decision_log_files = 1000
silence = "{silence_s:g}s"
stall = "{STALL_S:g}s"
keepalive = "500ms"

[queue]
longest_wait = "20s"
count_from = 64
"""
    ]
    for engine in engines:
        parts.append(f"""[[replica]]
name = "{engine.name}"
url = "http://127.0.0.1:{engine.port}"
kv_events = "tcp://127.0.0.1:{engine.kv_ports[0]}"
kv_replay = "tcp://127.0.0.1:{engine.kv_ports[1]}"
kv_topic = "{KV_TOPIC}"
tokenizer = "{tokenizer}"
""")
    if embedded:
        parts.append("""[[engine]]
kind = "embedded"
name = "embedded"
context = 1024
slots = 2
threads = 1
aliases = ["fake-135m"]
""")
    return "\n".join(parts)
