"""Generated requests against a real gateway in front of a lying engine, made from its own OpenAPI description."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings
from schemathesis import GenerationMode
from schemathesis.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from longproof.gateway.pass_through import SAFE_ROUTES
from longproof.testing.dialects import VLLM
from longproof.testing.lying_engine import HONEST, LyingEngine, lying_engine

MODEL = "fake-135m"
ADMIN, ENGINE_KEY = "sk-fuzz-admin", "sk-fuzz-engine"
ENDLESS = ("/dashboard/events",)
CHECKS = [
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    response_headers_conformance,
]
_MESSAGE = {
    "type": "object",
    "required": ["role", "content"],
    "properties": {"role": {"enum": ["user", "system"]}, "content": {"type": "string", "maxLength": 40}},
}
_OWN_FAULTS = ("internal_error",)


class Running:
    """A gateway as a process, with keys, one tenant apart, and an engine that has a key of its own."""

    def __init__(self, directory: Path, engine_url: str) -> None:
        digest = hashlib.sha256(ADMIN.encode()).hexdigest()
        fleet = directory / "fleet.toml"
        fleet.write_text(
            f'[gateway]\nport = 0\nstate = "{directory}/state"\ndecision_log = "{directory}/decisions.jsonl"\n'
            f'body_timeout = "5s"\nsilence = "20s"\n[[replica]]\nname = "one"\nurl = "{engine_url}"\n'
            'api_key_env = "FUZZ_ENGINE_KEY"\n[[tenant]]\nname = "a"\nseparate_prefixes = true\n'
            f'[[key]]\nname = "boss"\ntenant = "a"\nsha256 = "{digest}"\nadmin = true\n'
        )
        self.lines: list[str] = []
        self.port = 0
        self._up = threading.Event()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "longproof", "serve", str(fleet)],
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "FUZZ_ENGINE_KEY": ENGINE_KEY},
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        assert self._up.wait(300), "\n".join(self.lines)
        assert self.port, "\n".join(self.lines)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def rss_bytes(self) -> int:
        return int(psutil.Process(self.process.pid).memory_info().rss)

    def require_well(self) -> None:
        """It lives, it answers, and its log tells of no bug of ours."""
        assert self.process.poll() is None, "\n".join(self.lines)
        assert requests.get(f"{self.url}/health", timeout=30).json() == {"status": "ok"}
        bugs = [line for line in self.lines if "our bug" in line or "Traceback" in line]
        assert bugs == [], "\n".join(self.lines)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(20)
        self._reader.join(5)
        assert self.process.stderr is not None
        self.process.stderr.close()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.rstrip())
            if found := re.search(r"serving at http://[^:]+:(\d+)", line):
                self.port = int(found[1])
                self._up.set()
        self._up.set()


@contextmanager
def running(directory: Path) -> Iterator[tuple[Running, LyingEngine]]:
    """A gateway and its engine."""
    engine = lying_engine(HONEST.but(dialect=VLLM, token_s=0.0, prefill_tokens_per_s=1e7))
    with engine as url:
        one = Running(directory, url)
        try:
            yield one, engine
        finally:
            one.close()


def described(one: Running, routes: Collection[str] = SAFE_ROUTES) -> Any:
    """Its own description, with the names that make requests reach the engine now and then."""
    found = requests.get(f"{one.url}/openapi.json", timeout=30).json()
    found.pop("security")  # the session sends the key; generated ones are no news
    for path in [path for path in found["paths"] if path in SAFE_ROUTES and path not in routes]:
        del found["paths"][path]  # one code for all of them
    for schema in found["components"]["schemas"].values():
        properties = schema.get("properties", {})
        if "model" in properties and "object" not in properties:
            properties["model"] = {"const": MODEL}
        if "messages" in properties:
            properties["messages"] = {"type": "array", "minItems": 1, "maxItems": 3, "items": _MESSAGE}
        for name in ("max_tokens", "max_completion_tokens", "n_predict"):
            if name in properties:
                properties[name] = {"anyOf": [{"type": "integer", "maximum": 4, "minimum": 0}, properties[name]]}
    for path, operations in found["paths"].items():
        for parameter in [p for operation in operations.values() for p in operation.get("parameters", ())]:
            if path.startswith("/v1/models"):
                parameter["schema"] = {"enum": [MODEL, "other"]}
    return schemathesis.openapi.from_dict(found)


def require_ours(response: Any) -> None:
    """What every answer must be, whatever was sent."""
    if response.status_code >= 400:
        error = response.json()["error"]
        assert isinstance(error, str) or error["message"], response.text
        if not isinstance(error, str):
            assert error.get("code") not in _OWN_FAULTS, response.text
    retriable = response.status_code in (429, 503)
    if not retriable:
        assert "Retry-After" not in response.headers
    assert ENGINE_KEY not in response.text
    assert ADMIN not in response.text


def fuzz(
    one: Running, *, examples: int, base: int, within_s: float | None = None, routes: Collection[str] = SAFE_ROUTES
) -> Counter[str]:
    """Every operation with so many generated requests, half of them against the description; how often each status
    came. `within_s`: again and again with other seeds until then."""
    schema = described(one, routes)
    seen: Counter[str] = Counter()
    session = requests.Session()
    session.headers["Authorization"] = f"Bearer {ADMIN}"
    until_s = None if within_s is None else time.monotonic() + within_s
    turn = 0
    while True:
        for found in schema.get_all_operations():
            operation = found.ok()
            if operation.path in ENDLESS:
                continue
            for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
                if mode is GenerationMode.NEGATIVE and not (operation.body or operation.path_parameters):
                    continue
                _fuzz_one(operation, mode, one, session, examples, base + turn, seen)
        turn += 1
        if until_s is None or time.monotonic() >= until_s:
            return seen


def _fuzz_one(
    operation: Any,
    mode: GenerationMode,
    one: Running,
    session: requests.Session,
    examples: int,
    number: int,
    seen: Counter[str],
) -> None:
    @seed(number)
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate,),
        verbosity=Verbosity.quiet,
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def attempt(case: Any) -> None:
        response = case.call(base_url=one.url, session=session, timeout=60)
        seen[str(response.status_code)] += 1
        require_ours(response)
        checks = CHECKS if mode is GenerationMode.POSITIVE else [content_type_conformance]
        if response.headers.get("Content-Type", [""])[0].startswith("text/event-stream"):
            checks = [status_code_conformance]
        case.validate_response(response, checks=checks)

    try:
        attempt()
    except Exception as problem:
        if "Unsatisfiable" not in type(problem).__name__:
            raise


def shown(seen: Counter[str]) -> str:
    """One line."""
    return json.dumps(dict(sorted(seen.items())))
