"""What a plain HTTP client sees of an engine: nothing of longproof's own wire code is used here."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest


@dataclass(kw_only=True)
class Seen:
    """One response as it came over the wire. `broken`: the connection ended in the middle of the body."""

    status: int
    headers: httpx.Headers
    raw: bytes = b""
    broken: bool = False
    parts: list[bytes] = field(default_factory=list)

    @property
    def events(self) -> list[dict[str, Any]]:
        """The JSON events of a stream, in order; what is no whole event is left out."""
        found: list[dict[str, Any]] = []
        for block in self.raw.replace(b"\r\n", b"\n").split(b"\n\n")[:-1]:
            for line in block.split(b"\n"):
                if line.startswith(b"data: ") and line != b"data: [DONE]":
                    found.append(json.loads(line[6:]))
        return found

    @property
    def done(self) -> bool:
        return b"data: [DONE]" in self.raw

    @property
    def choices(self) -> list[dict[str, Any]]:
        return [choice for event in self.events for choice in event.get("choices", [])]

    @property
    def deltas(self) -> list[str]:
        """The content of every chunk that has some."""
        texts = [choice.get("delta", choice).get("content" if "delta" in choice else "text") for choice in self.choices]
        return [text for text in texts if text]

    @property
    def text(self) -> str:
        return "".join(self.deltas)

    @property
    def finish(self) -> str | None:
        return next((c["finish_reason"] for c in reversed(self.choices) if c["finish_reason"] is not None), None)

    @property
    def usage(self) -> dict[str, Any] | None:
        return next((event["usage"] for event in reversed(self.events) if event.get("usage")), None)

    @property
    def cached(self) -> int:
        assert self.usage is not None
        return self.usage["prompt_tokens_details"]["cached_tokens"]

    @property
    def json(self) -> dict[str, Any]:
        return json.loads(self.raw)


def _post(url: str, path: str, body: dict[str, Any], headers: dict[str, str]) -> Seen:
    with httpx.Client(timeout=60) as client, client.stream("POST", url + path, json=body, headers=headers) as response:
        seen = Seen(status=response.status_code, headers=response.headers)
        try:
            for part in response.iter_raw():
                seen.parts.append(part)
        except httpx.TransportError:
            seen.broken = True
        seen.raw = b"".join(seen.parts)
        return seen


@pytest.fixture
def chat() -> Callable[..., Seen]:
    """chat(url, "Hi", max_tokens=4, …): a streamed chat with usage; keywords go into the body."""

    def ask(url: str, content: str = "Hi", *, headers: dict[str, str] | None = None, **body: Any) -> Seen:
        asked: dict[str, Any] = {"messages": [{"role": "user", "content": content}], "max_tokens": 8, "stream": True}
        asked |= {"stream_options": {"include_usage": True}} | body
        return _post(url, "/v1/chat/completions", asked, headers or {})

    return ask


@pytest.fixture
def complete() -> Callable[..., Seen]:
    """complete(url, prompt, …): a streamed completion; the prompt is text or ids."""

    def ask(url: str, prompt: str | list[int], *, headers: dict[str, str] | None = None, **body: Any) -> Seen:
        asked: dict[str, Any] = {"prompt": prompt, "max_tokens": 8, "stream": True}
        return _post(url, "/v1/completions", asked | body, headers or {})

    return ask


@pytest.fixture
def together() -> Callable[..., list[Seen]]:
    """together(url, [body, …]): streamed completions, all sent at once; what each saw, in the order of the bodies."""

    def ask(url: str, bodies: list[dict[str, Any]]) -> list[Seen]:
        with ThreadPoolExecutor(len(bodies)) as pool:
            waiting = [pool.submit(_post, url, "/v1/completions", {"stream": True, **body}, {}) for body in bodies]
            return [future.result() for future in waiting]

    return ask


@pytest.fixture
def metric() -> Callable[..., float]:
    """metric(url, "vllm:num_requests_running", reason="capacity"): one value of /metrics, by name and some labels."""

    def read(url: str, name: str, **labels: str) -> float:
        wanted = [f'{label}="{value}"' for label, value in labels.items()]
        lines = httpx.get(f"{url}/metrics", timeout=60).text.splitlines()
        found = [
            line for line in lines if line.startswith((f"{name}{{", f"{name} ")) and all(w in line for w in wanted)
        ]
        assert len(found) == 1, found
        return float(found[0].split()[-1])

    return read


@pytest.fixture
def eventually() -> Callable[..., None]:
    """eventually(condition): waits until it holds, for what the engine does a little later."""

    def wait(condition: Callable[[], bool], *, timeout_s: float = 60.0) -> None:
        end = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < end, "it did not come to that"
            time.sleep(0.005)

    return wait


@dataclass(frozen=True, kw_only=True)
class Held:
    """A stream that is open. `lines` are those not read yet; a response whose iterator is dropped would close."""

    response: httpx.Response
    lines: Iterator[str]

    def first(self) -> str:
        """Waits for the first line."""
        return next(self.lines)

    def tokens(self) -> int:
        """Reads to the end; how many chunks with text that were."""
        return len([line for line in self.lines if '"text"' in line])

    def close(self) -> None:
        self.response.close()


@pytest.fixture
def hold() -> Iterator[Callable[..., Held]]:
    """hold(url, body): a streamed completion that stays open until it is closed, at the latest when the test ends."""
    with contextlib.ExitStack() as stack:

        def ask(url: str, body: dict[str, Any]) -> Held:
            client = stack.enter_context(httpx.Client(timeout=60))
            request = client.build_request("POST", f"{url}/v1/completions", json={"stream": True, **body})
            response = client.send(request, stream=True)
            stack.callback(response.close)
            return Held(response=response, lines=response.iter_lines())

        yield ask
