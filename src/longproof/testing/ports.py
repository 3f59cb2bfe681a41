"""Ports for servers that cannot be asked to choose one themselves."""

from __future__ import annotations

import socket
from contextlib import ExitStack


def free_ports(count: int) -> list[int]:
    """So many different ports of 127.0.0.1 that nobody listens on now. Somebody else may take one before it is used."""
    with ExitStack() as held:
        taken = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in taken:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in taken]


def free_port() -> int:
    """One of them."""
    return free_ports(1)[0]
