"""An engine, or a pair, in a process of its own: it shares no interpreter with the client that watches it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection

from longproof.testing.behaviour import Behaviour
from longproof.testing.lying_engine import lying_engine
from longproof.testing.pd_pair import PdPair

_START_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """Where it listens, prefill side first, and the command that restarts it; None where nobody can."""

    urls: tuple[str, ...]
    restart_command: str | None


@contextmanager
def served(engine: Behaviour, decode: Behaviour | None) -> Iterator[Served]:
    """Runs until it is left. RuntimeError when it does not start."""
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(engine, decode, theirs))
    process.start()
    try:
        if not ours.poll(_START_S):
            raise RuntimeError("the engine did not start")
        yield ours.recv()
    finally:
        ours.close()  # which ends it
        process.join(5.0)
        process.kill()
        process.join()


def _serve(engine: Behaviour, decode: Behaviour | None, connection: Connection) -> None:
    if decode is not None:
        with PdPair(engine, decode) as urls:
            connection.send(Served(urls=urls, restart_command=None))
            _until_closed(connection)
        return
    alone = lying_engine(engine)
    with alone as url:
        command = f"{sys.executable} -m longproof.testing.restart {alone.control_url}"
        connection.send(Served(urls=(url,), restart_command=command))
        _until_closed(connection)


def _until_closed(connection: Connection) -> None:
    try:
        connection.recv()
    except (EOFError, OSError):
        return
