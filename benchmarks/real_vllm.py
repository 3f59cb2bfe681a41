"""A real vLLM on CPU and a gateway before it, for the benchmarks that need both, and a client that keeps time.

Both are set up by the project's scripts (`setup_vllm_cpu.py`, `export_smollm2.py`). Each vLLM computes on one core, the
last ones there are; everything else (its own server and scheduler, gateway, client) runs wherever the system puts it.
With two cores and two vLLMs all of that shares the cores with them.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import orjson

from longproof.engines.process import Launch, OwnedProcess
from longproof.testing.made import made_by
from longproof.testing.ports import free_port

SCRIPTS = Path(__file__).parents[1] / "scripts"
MODEL = "smollm2"
START_WITHIN_S = 400.0
BLOCK_TOKENS = 32
"""The smallest that vLLM's attention on CPU takes (0.32: multiples of 32)."""
TEXT = (
    "the old harbour lay quiet while ships came home with salt and letters from far away some men sat near the door"
    " and told of storms that took a mast or a friend but most of them said little and looked at the water until night"
)
WORDS = TEXT.split()


def model_dir() -> Path:
    """SmolLM2 as vLLM loads it."""
    return made_by(SCRIPTS / "export_smollm2.py")


def own_core(number: int) -> str:
    """The core that so many-th vLLM computes on: the last is the first's."""
    cores = sorted(os.sched_getaffinity(0), reverse=True)
    return str(cores[number % len(cores)])


@asynccontextmanager
async def vllm(
    log: Path,
    *,
    blocks: int,
    arguments: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    number: int = 0,
) -> AsyncIterator[OwnedProcess]:
    """vLLM with so many KV blocks, of which one is its null block, on the core of its number; stopped at the end."""
    program, model = made_by(SCRIPTS / "setup_vllm_cpu.py") / "bin" / "vllm", model_dir()
    port = free_port()
    argv = (
        *(str(program), "serve", str(model), "--served-model-name", MODEL, "--host", "127.0.0.1", "--port", str(port)),
        *("--max-model-len", "8192", "--dtype", "bfloat16", "--enforce-eager", "--enable-prompt-tokens-details"),
        *("--block-size", str(BLOCK_TOKENS), "--num-gpu-blocks-override", str(blocks), *arguments),
    )
    env = {
        "HF_HUB_OFFLINE": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": own_core(number),
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_SERVER_DEV_MODE": "1",  # it tells its scheduler's settings
        **(environment or {}),
    }
    async with _running(Launch(name="vllm", argv=argv, log_path=log, url=f"http://127.0.0.1:{port}", env=env)) as found:
        yield found


@asynccontextmanager
async def gateway(log: Path, fleet: str) -> AsyncIterator[OwnedProcess]:
    """`longproof serve` with this fleet.toml."""
    port, file = free_port(), log.with_suffix(".toml")
    file.write_text(fleet, encoding="utf-8")
    argv = (sys.executable, "-m", "longproof", "serve", str(file), "--port", str(port), "--state", str(log.parent))
    launch = Launch(name="gateway", argv=argv, log_path=log, url=f"http://127.0.0.1:{port}", health_path="/ready")
    async with _running(launch) as found:
        yield found


@asynccontextmanager
async def _running(launch: Launch) -> AsyncIterator[OwnedProcess]:
    process = OwnedProcess(launch)
    await process.start(deadline_s=START_WITHIN_S)
    try:
        yield process
    finally:
        await process.stop()


# ── the client ────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A request that is to leave `at_s` seconds after the start, whatever the others do. `leave_after`: the client goes
    away after so many tokens, or `leave_s` seconds after it has sent. `plain`: without a stream."""

    kind: str
    at_s: float
    messages: tuple[Mapping[str, str], ...]
    output_tokens: int
    leave_after: int | None = None
    allowance_tokens: int | None = None
    leave_s: float | None = None
    plain: bool = False


@dataclass(slots=True)
class Seen:
    """How it went: times in seconds since the start of the run, `at` of every piece of content."""

    kind: str
    planned_s: float
    sent_s: float = 0.0
    ended_s: float = 0.0
    at: list[float] = field(default_factory=list[float])
    status: int = 0
    error: str = ""
    prompt_tokens: int = 0
    text: str = ""
    left: bool = False

    @property
    def done(self) -> bool:
        """Whether it got its whole answer."""
        return self.status == 200 and not self.error and not self.left and bool(self.at)

    @property
    def ttft_s(self) -> float:
        """From sending to the first piece."""
        return self.at[0] - self.sent_s

    @property
    def tpot_s(self) -> float:
        """Mean time between its tokens."""
        return (self.at[-1] - self.at[0]) / (len(self.at) - 1)


def prose(draw: random.Random, words: int) -> str:
    """So many words, in an order of their own: nobody else's prompt begins like it."""
    return " ".join(draw.choice(WORDS) for _ in range(words))


async def ask(session: aiohttp.ClientSession, url: str, planned: Planned, start_s: float) -> Seen:
    """Sends one chat and reads its stream to the end."""
    seen = Seen(planned.kind, planned.at_s)
    body: dict[str, Any] = {
        "model": MODEL,
        "messages": planned.messages,
        "max_tokens": planned.allowance_tokens or planned.output_tokens,
        "temperature": 0.0,
        "ignore_eos": True,
        "stream": not planned.plain,
    }
    if not planned.plain:
        body["stream_options"] = {"include_usage": True}
    seen.sent_s = time.monotonic() - start_s
    try:
        async with asyncio.timeout(planned.leave_s), session.post(f"{url}/v1/chat/completions", json=body) as answer:
            seen.status = answer.status
            if answer.status != 200:
                seen.error = (await answer.text())[:200]
            elif planned.plain:
                whole = orjson.loads(await answer.read())
                seen.at.append(time.monotonic() - start_s)
                seen.prompt_tokens = whole["usage"]["prompt_tokens"]
                seen.text = whole["choices"][0]["message"]["content"]
            else:
                await _read(answer, seen, planned, start_s)
    except TimeoutError:
        seen.left = True
    except aiohttp.ClientError as problem:
        seen.error = str(problem) or type(problem).__name__
    seen.ended_s = time.monotonic() - start_s
    return seen


async def _read(answer: aiohttp.ClientResponse, seen: Seen, planned: Planned, start_s: float) -> None:
    async for line in answer.content:
        if not line.startswith(b"data: {"):
            continue
        event = orjson.loads(line[6:])
        if "error" in event:
            seen.error = str(event["error"].get("message", event["error"]))[:200]
        if event.get("usage"):
            seen.prompt_tokens = event["usage"]["prompt_tokens"]
        text = event["choices"][0]["delta"].get("content") if event.get("choices") else None
        if text is not None and text != "":
            seen.at.append(time.monotonic() - start_s)
            seen.text += text
            if planned.leave_after and len(seen.at) >= planned.leave_after:
                seen.left = True
                return


@asynccontextmanager
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    """As many connections as asked for, and no time-out."""
    timeout, connector = aiohttp.ClientTimeout(total=None), aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        yield session


async def scrape(session: aiohttp.ClientSession, url: str, keep: Callable[[str], bool]) -> dict[str, float]:
    """Samples of /metrics whose name, without labels, is wanted; the whole line's name is the key."""
    async with session.get(f"{url}/metrics") as answer:
        text = await answer.text()
    found: dict[str, float] = {}
    for line in text.splitlines():
        name, _, value = line.rpartition(" ")
        if name and not line.startswith("#") and keep(name.split("{")[0]):
            found[name] = float(value)
    return found


def total(samples: Mapping[str, float], name: str) -> float:
    """A metric summed over its labels."""
    return sum(value for key, value in samples.items() if key.split("{")[0] == name)
