"""A real HTTP server that behaves like an honest, fast engine, and lies on command.

    engine = lying_engine(HONEST.lying(TruncateInput(keep_tokens=512)))
    with engine as url:                      # or: async with engine as url
        …                                    # any client
    engine.log.last.read_tokens              # what it really read

By hand: ``python -m longproof.testing.lying_engine --lie truncate_input:keep_tokens=512``. The lies are listed in
`longproof.testing.lies`, all other settings in `longproof.testing.behaviour.Behaviour`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import socket
import sys
import threading
import time

import uvicorn

from longproof.errors import EXIT_USER_ERROR, UserError
from longproof.testing.behaviour import Behaviour, parse_lies
from longproof.testing.dialects import DIALECTS
from longproof.testing.engine_app import engine_app
from longproof.testing.engine_control import EngineControl
from longproof.testing.engine_log import EngineLog
from longproof.testing.engine_state import EngineState
from longproof.testing.fake_pool import OverCapacity
from longproof.testing.kv_publisher import KvEvents, KvPublisher
from longproof.testing.lies import LIES
from longproof.testing.restart_changes import after_restart
from longproof.testing.side_channel import SideChannel

HONEST = Behaviour()
"""An honest llama.cpp with a window of 8,192 tokens."""
_START_S = 60.0


class LyingEngine:
    """The server, in a thread of this process. A context manager, sync and async, that gives its URL; can be entered
    again.

    `log` keeps what it really did, across restarts; `lives` counts its starts. All methods may be called from any
    thread.
    """

    def __init__(
        self, behaviour: Behaviour = HONEST, *, port: int = 0, side_channel: SideChannel | None = None
    ) -> None:
        self.behaviour = behaviour
        self.log = EngineLog()
        self.lives = 0
        self._port = port
        self._side_channel = side_channel
        self._life: _Life | None = None
        self._control: EngineControl | None = None
        self._kv: KvPublisher | None = None

    @property
    def url(self) -> str:
        """Base URL; stays the same after a restart. RuntimeError before the first start."""
        if not self._port:
            raise RuntimeError("the engine was never started")
        return f"http://127.0.0.1:{self._port}"

    @property
    def kv_publisher(self) -> KvPublisher:
        """What publishes its cache: `endpoint`, `replay`. RuntimeError where it was told to publish nothing, or never
        started."""
        if self._kv is None:
            raise RuntimeError("the engine publishes nothing: give its behaviour kv_events")
        return self._kv

    @property
    def alive(self) -> bool:
        """Whether it listens."""
        return self._life is not None and self._life.alive

    def start(self) -> str:
        """Starts it and waits until it listens; returns the URL."""
        if self._life is not None:
            self._life.stop()
        time.sleep(self.behaviour.start_s)
        listener = _listen(self._port)
        self._port = listener.getsockname()[1]
        self.lives += 1
        if self.behaviour.kv_events is not None:
            if self._kv is None:
                self._kv = KvPublisher(self.behaviour.kv_events, block_tokens=self.behaviour.dialect.cache_block_tokens)
            self._kv.open()
        self._life = _Life(self._as_lived(self.behaviour), self.log, listener, self._side_channel, self._kv)
        return self.url

    def restart(self) -> str:
        """Stops it as a crash would, and starts a new life on the same port: empty, and with what `restart_changes`
        says."""
        self.stop()
        return self.start()

    @property
    def control_url(self) -> str:
        """Where it takes orders while it is down: ``POST /restart`` answers when it listens again. What
        ``python -m longproof.testing.restart URL`` speaks to. Listens from the first use until the engine is left."""
        if self._control is None:
            self._control = EngineControl(self.restart)
        return self._control.url

    def stop(self) -> None:
        """Stops it; open requests are dropped. Safe to call twice."""
        if self._life is not None:
            self._life.stop()
            self._life = None
        if self._kv is not None:
            self._kv.close()

    def crash(self) -> None:
        """Drops every connection and stops listening; `start` begins a new life on the same port, with an empty
        cache."""
        if self._life is not None:
            self._life.go_down()
        if self._kv is not None:
            self._kv.close()

    def behave(self, behaviour: Behaviour) -> None:
        """Other lies from the next request on. ValueError for what only a new start can change: dialect, slots, pool,
        cache."""
        fixed = (
            "dialect",
            "slots",
            "kv_capacity_tokens",
            "over_capacity",
            "cache_entries",
            "window_tokens",
            "in_steps",
            "kv_events",
        )
        changed = [name for name in fixed if getattr(behaviour, name) != getattr(self.behaviour, name)]
        if changed and self.alive:
            raise ValueError(f"{', '.join(changed)} can only change with a new start")
        self.behaviour = behaviour
        if self._life is not None:
            self._life.state.behave(self._as_lived(behaviour))

    def __enter__(self) -> str:
        return self.start()

    def __exit__(self, *_: object) -> None:
        if self._control is not None:
            self._control.close()
            self._control = None
        self.stop()

    async def __aenter__(self) -> str:
        return await asyncio.to_thread(self.start)

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.__exit__)

    def _as_lived(self, behaviour: Behaviour) -> Behaviour:
        return behaviour if self.lives < 2 else after_restart(behaviour)


def lying_engine(behaviour: Behaviour = HONEST, *, port: int = 0) -> LyingEngine:
    """An engine that is not started yet: enter it. `port` 0: any free one."""
    return LyingEngine(behaviour, port=port)


_LAST_TURNS = 4
"""Of an event loop that is to end: for a connection to be made, and for it to be gone."""


class _Server(uvicorn.Server):
    """uvicorn without its two pauses of 100 ms at the end, since tests start and stop hundreds of engines.

    Relies on `main_loop` and `shutdown` being what `serve` runs between start-up and end (read in uvicorn 0.54).
    """

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.leave = asyncio.Event()

    async def main_loop(self) -> None:
        await self.leave.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        for listener in sockets or []:
            listener.close()


class _Life:
    """One run of the server, from listening to its end: a thread with an event loop of its own."""

    def __init__(
        self,
        behaviour: Behaviour,
        log: EngineLog,
        listener: socket.socket,
        side_channel: SideChannel | None,
        kv: KvPublisher | None,
    ) -> None:
        self.state = EngineState(behaviour, log, self.go_down, side_channel, kv)
        self._listener = listener
        self._down = False
        config = uvicorn.Config(
            engine_app(self.state),
            loop="asyncio",
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="critical",
            access_log=False,
            server_header=False,
            date_header=False,
            timeout_graceful_shutdown=0,
        )
        self._server = _Server(config)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="lying-engine", daemon=True)
        self._thread.start()
        end = time.monotonic() + _START_S
        while not self._server.started:
            if time.monotonic() > end or not self._thread.is_alive():
                raise RuntimeError("the lying engine did not start")
            time.sleep(0.002)

    @property
    def alive(self) -> bool:
        return self._thread.is_alive() and not self._down

    def go_down(self) -> None:
        """As a crash: connections are reset, nothing listens any more. From any thread."""
        loop = self._loop
        if loop is None or loop.is_closed():
            return
        if threading.current_thread() is self._thread:
            self._drop_everything()
        else:
            done = threading.Event()
            with contextlib.suppress(RuntimeError):  # the loop closed meanwhile: it is down
                loop.call_soon_threadsafe(lambda: (self._drop_everything(), done.set()))
                done.wait(_START_S)

    def stop(self) -> None:
        self.go_down()
        self._thread.join(_START_S)

    def _run(self) -> None:
        async def serve() -> None:
            self._loop = asyncio.get_running_loop()
            await self._server.serve(sockets=[self._listener])
            for _ in range(_LAST_TURNS):  # who was being accepted when it went down is connected only now
                self._drop_connections()
                await asyncio.sleep(0)

        try:
            asyncio.run(serve())
        finally:
            self._listener.close()

    def _drop_everything(self) -> None:
        self._down = True
        self.state.side_channel.withdraw_all(self.state.engine_id)
        self._server.leave.set()
        for server in self._server.servers:
            server.close()
        self._listener.close()
        self._drop_connections()

    def _drop_connections(self) -> None:
        for connection in list(self._server.server_state.connections):
            transport = getattr(connection, "transport", None)
            if isinstance(transport, asyncio.WriteTransport):
                transport.abort()


def _listen(port: int) -> socket.socket:
    # asyncio switches Nagle's algorithm off only where the protocol is named; with it every answer would wait 40 ms
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
        listener.listen(128)
    except OSError:
        listener.close()
        raise
    return listener


def _main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m longproof.testing.lying_engine", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "--lie", action="append", default=[], metavar="NAME[:key=value,…]", help=", ".join(sorted(LIES))
    )
    parser.add_argument("--dialect", choices=sorted(DIALECTS), default="llama.cpp")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--model", default=HONEST.model)
    parser.add_argument("--window", type=int, default=HONEST.window_tokens, metavar="TOKENS")
    parser.add_argument("--slots", type=int, default=HONEST.slots)
    parser.add_argument("--kv-capacity", type=int, default=None, metavar="TOKENS")
    parser.add_argument("--over-capacity", choices=[policy.value for policy in OverCapacity], default="queue")
    parser.add_argument("--prefill-rate", type=float, default=HONEST.prefill_tokens_per_s, metavar="TOKENS_PER_S")
    parser.add_argument("--token-time", type=float, default=HONEST.token_s, metavar="SECONDS")
    parser.add_argument("--compute", choices=("apart", "shared"), default="apart")
    parser.add_argument("--jitter", type=float, default=0.0, metavar="SIGMA")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dev-mode", action="store_true", help="vLLM's /abort_requests is there")
    parser.add_argument("--kv-events", action="store_true", help="further lines name the endpoints of KV events")
    parser.add_argument("--kv-topic", default="", help="the topic of KV events")
    parser.add_argument("--control", action="store_true", help="a second line names the URL that takes POST /restart")
    parser.add_argument("--api-key", default=None)
    options = parser.parse_args(arguments)
    try:
        lies = parse_lies(options.lie)
    except UserError as problem:
        sys.stderr.write(f"{problem.problem}: {problem.advice}\n")
        return EXIT_USER_ERROR
    behaviour = Behaviour(
        dialect=DIALECTS[options.dialect],
        model=options.model,
        window_tokens=options.window,
        slots=options.slots,
        kv_capacity_tokens=options.kv_capacity,
        over_capacity=OverCapacity(options.over_capacity),
        prefill_tokens_per_s=options.prefill_rate,
        token_s=options.token_time,
        compute=options.compute,
        jitter=options.jitter,
        seed=options.seed,
        dev_mode=options.dev_mode,
        api_key=options.api_key,
        kv_events=KvEvents(topic=options.kv_topic, replay=True) if options.kv_events else None,
        lies=lies,
    )
    engine = lying_engine(behaviour, port=options.port)
    with engine as url, contextlib.suppress(KeyboardInterrupt):
        sys.stdout.write(f"{url}\n")
        if options.control:
            sys.stdout.write(f"{engine.control_url}\n")
        if options.kv_events:
            sys.stdout.write(f"{engine.kv_publisher.endpoint}\n{engine.kv_publisher.replay}\n")
        sys.stdout.flush()
        while engine.alive or options.control:
            time.sleep(0.1)
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
