"""A lying engine in a process of its own, which can be killed and frozen: ``python -m chaos.engine SETTINGS_JSON``.

Writes what it really did into a file (`truth`), takes other lies as lines of JSON on standard input, and ends with it.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from typing import Any

import orjson

from chaos.truth import NUMBER_HEADER
from longproof.testing.behaviour import Behaviour, parse_lies
from longproof.testing.dialects import VLLM
from longproof.testing.engine_log import EngineLog, Served
from longproof.testing.kv_publisher import KvEvents
from longproof.testing.lying_engine import LyingEngine

KV_TOPIC = "kv@chaos"


class WrittenLog(EngineLog):
    """A log whose lines outlive a kill."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def began(self, served: Served) -> None:
        super().began(served)
        told = {
            "what": "began",
            "trace": served.headers.get(NUMBER_HEADER, ""),
            "id": served.headers.get("x-request-id", ""),
            "at_ns": served.received_ns,
        }
        self._write(served, told)

    def ended(self, served: Served) -> None:
        told = {
            "what": "ended",
            "at_ns": served.finished_ns,
            "ending": served.ending,
            "status": served.status,
            "prompt": served.prompt_tokens,
            "cached": served.cached_tokens,
            "output": served.output_tokens,
            "claimed": (served.claimed_usage or {}).get("completion_tokens"),
        }
        self._write(served, told)

    def _write(self, served: Served, told: dict[str, Any]) -> None:
        told.update(life=os.getpid(), index=served.index)
        os.write(self._fd, orjson.dumps(told, option=orjson.OPT_APPEND_NEWLINE))


def main(settings: dict[str, Any]) -> None:
    """Runs until standard input ends."""
    events = {"topic": KV_TOPIC, "replay": True, "ports": tuple(settings["kv_ports"])}
    honest = Behaviour(
        dialect=VLLM,
        window_tokens=settings["window"],
        slots=settings["slots"],
        kv_capacity_tokens=settings["capacity"],
        token_s=settings["token_s"],
        prefill_tokens_per_s=50_000.0,
        cache_entries=24,
        jitter=0.2,
        seed=settings["seed"],
        kv_events=KvEvents(**(events | settings["kv"])),
    )
    engine = LyingEngine(honest, port=settings["port"])
    engine.log = WrittenLog(settings["truth"])
    with engine:
        sys.stdout.write("up\n")
        sys.stdout.flush()
        for line in sys.stdin:
            told = orjson.loads(line)
            if "lies" in told:
                engine.behave(honest.but(lies=parse_lies(told["lies"]), token_s=told.get("token_s", honest.token_s)))
            publisher = engine.kv_publisher
            if "kv" in told:  # numbers are counted from the next message
                wrong = {name: tuple(publisher.next_number + i for i in places) for name, places in told["kv"].items()}
                publisher.events = dataclasses.replace(publisher.events, **wrong)
            if "deaf" in told:
                publisher.events = dataclasses.replace(publisher.events, deaf=told["deaf"])
            if "publish_anew" in told:  # numbers begin again, and everything that is cached is told again
                publisher.open()
            if "start" in told and not engine.alive:
                engine.start()
            sys.stdout.write(f"{publisher.held_blocks}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(orjson.loads(sys.argv[1]))
