"""The embedded engine's own process: ``python -m longproof.engines.embedded_child SETTINGS_JSON``.

Runs llama.cpp's HTTP server through xllamacpp until SIGTERM, or until standard input (the lifeline) ends. llama.cpp
logs to stderr.
"""

from __future__ import annotations

import fcntl
import importlib
import json
import os
import select
import signal
import sys
import time
from dataclasses import asdict, dataclass
from typing import NoReturn

EXIT_REFUSED = 78
"""llama.cpp would not start with these settings; its log says why."""

_VERBOSITY = 4  # the lowest level that logs the sizes of the KV caches; prompts are not logged at it


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildSettings:
    """What crosses into the child, in llama.cpp's own terms. None = llama.cpp's default."""

    model_path: str
    n_ctx: int
    n_parallel: int
    kv_unified: bool
    k_type: str
    v_type: str
    n_threads: int | None
    n_batch: int | None
    n_ubatch: int | None
    cache_ram_mib: int | None
    alias: str
    host: str
    port: int

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def main(arguments: list[str]) -> NoReturn:
    die_with_lifeline()
    settings = ChildSettings(**json.loads(arguments[0]))
    # loaded here, not at the top: the parent needs this module's settings without the 100 MB library
    xllamacpp = importlib.import_module("xllamacpp")
    params = xllamacpp.CommonParams()
    params.model.path = settings.model_path
    params.n_ctx = settings.n_ctx
    params.n_parallel = settings.n_parallel
    params.kv_unified = settings.kv_unified
    params.cache_type_k = getattr(xllamacpp.ggml_type, "GGML_TYPE_" + settings.k_type.upper())
    params.cache_type_v = getattr(xllamacpp.ggml_type, "GGML_TYPE_" + settings.v_type.upper())
    params.model_alias = {settings.alias}
    params.hostnames = [settings.host]
    params.port = settings.port
    params.endpoint_metrics = params.endpoint_slots = params.endpoint_props = True
    params.fit_params = False  # what was asked is what runs, or nothing: llama.cpp must not shrink it to fit
    params.ui = False
    params.verbosity = _VERBOSITY
    if settings.n_threads is not None:
        params.cpuparams.n_threads = settings.n_threads
        params.cpuparams_batch.n_threads = settings.n_threads
    if settings.n_batch is not None:
        params.n_batch = settings.n_batch
    if settings.n_ubatch is not None:
        params.n_ubatch = settings.n_ubatch
    if settings.cache_ram_mib is not None:
        params.cache_ram_mib = settings.cache_ram_mib
    try:
        server = xllamacpp.Server(params)  # returns when the model is loaded and the port is open
    except RuntimeError as refusal:
        sys.stderr.write(f"embedded engine: {refusal}\n")
        _leave(EXIT_REFUSED)
    announce(server.listening_address)
    while True:
        signal.pause()  # SIGTERM ends the process at once: there is nothing to save


def die_with_lifeline() -> None:
    """Lets the kernel end this process when standard input, a pipe, loses its last writer.

    By a signal and not by a thread: xllamacpp holds the interpreter lock while it loads a model, so no thread of ours
    would run.
    """
    signal.signal(signal.SIGIO, signal.SIG_DFL)  # the default action of SIGIO is to end the process
    fcntl.fcntl(0, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(0, fcntl.F_SETFL, fcntl.fcntl(0, fcntl.F_GETFL) | os.O_ASYNC)
    already_ended, _, _ = select.select([0], [], [], 0)
    if already_ended:
        os._exit(1)


def announce(url: str) -> None:
    """Writes the address to the descriptor that the parent named (`process.ANNOUNCE_FD`)."""
    fd = int(os.environ["LONGPROOF_ANNOUNCE_FD"])
    os.write(fd, f"{url}\n".encode())
    os.close(fd)


def _leave(code: int) -> NoReturn:
    # llama.cpp writes its log from a thread of its own, and an orderly exit can hang in its destructors
    # (seen with xllamacpp 2026.10.11549): give the log a moment, then go
    time.sleep(0.2)
    os._exit(code)


if __name__ == "__main__":
    main(sys.argv[1:])
