"""A session: one process that writes evidence, with the salt of its nonces and what ran the client."""

from __future__ import annotations

import os
import platform
import secrets
from pathlib import Path

import psutil

from longproof import __version__
from longproof.clock import Clock
from longproof.domain.units import format_bytes
from longproof.evidence.records import SessionBody

_SALT_BYTES = 16


def new_session(clock: Clock) -> SessionBody:
    """A session that begins now. Its salt is fresh, so a prompt sent again after a resume is not warm by accident."""
    return SessionBody(
        started_wall=clock.wall().isoformat(timespec="seconds"),
        started_ns=clock.now_ns(),
        salt=secrets.token_hex(_SALT_BYTES),
        longproof_version=__version__,
        host=host_facts(),
    )


def host_facts() -> dict[str, str]:
    """What ran the client, as far as it can matter to a measurement. No host name, no user, no path."""
    return {
        "cpu": _cpu_model(),
        "cpus": str(os.cpu_count() or "unknown"),
        "memory": format_bytes(psutil.virtual_memory().total),
        "os": f"{platform.system()} {platform.release()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
    }


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() == "model name" and value.strip():
            return value.strip()
    return platform.processor() or platform.machine() or "unknown"
