"""What is proved: something that can be opened into an Engine. A URL, or a model that we serve ourselves."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from longproof.engines.address import base_url
from longproof.engines.base import Engine
from longproof.engines.embedded import EmbeddedOptions, start_embedded
from longproof.engines.model_files import resolve_model
from longproof.engines.openai import Known
from longproof.engines.pd_connect import connect_pair
from longproof.engines.registry import connect
from longproof.engines.vllm_facts import deployment_of_log
from longproof.errors import UsageError


class Target(Protocol):
    """Opens an engine. `label` says the same for the same command line: it names the evidence and is stored in it."""

    @property
    def label(self) -> str: ...

    async def open(self, log_path: Path) -> Engine:
        """Connects, or starts the engine with its log appended to `log_path`. Raises UserError when that cannot be
        done."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class UrlTarget:
    """A server that somebody else runs. `tokenizer` is a tokenizer.json for servers that do not count; `engine_log` the
    start-up log of a vLLM, which says more than its API."""

    url: str
    model: str | None = None
    api_key: str | None = None
    tokenizer: str | None = None
    engine_log: str | None = None

    @property
    def label(self) -> str:
        """The base URL, and the model where one was named."""
        url = base_url(self.url)
        return url if self.model is None else f"{url} {self.model}"

    async def open(self, log_path: Path) -> Engine:  # noqa: ARG002 - its log is its owner's
        """Connects and finds out which dialect the server speaks."""
        tokenizer = None if self.tokenizer is None else Path(self.tokenizer)
        known = None if self.engine_log is None else _known_from(Path(self.engine_log))
        return await connect(self.url, model=self.model, api_key=self.api_key, tokenizer=tokenizer, known=known)


def _known_from(log_path: Path) -> Known:
    try:
        text = log_path.read_text(errors="replace")
    except OSError as problem:
        raise UsageError(
            f"the engine log {log_path} cannot be read: {problem.strerror}", advice="check --engine-log"
        ) from None
    return lambda: deployment_of_log(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedTarget:
    """A model that the embedded llama.cpp serves for the length of the proof. `model` None = the default model."""

    model: str | None = None
    window_tokens: int | None = None
    slots: int = 1
    kv_type: str = "f16"
    kv_unified: bool = False
    threads: int | None = None

    @property
    def label(self) -> str:
        """``embedded`` and the model as it was named."""
        return f"embedded {self.model or 'SmolLM2-135M-Instruct'}"

    async def open(self, log_path: Path) -> Engine:
        """Fetches the model if it must, starts the engine in a process of its own, and connects to it."""
        path = await asyncio.to_thread(resolve_model, self.model)
        options = EmbeddedOptions(
            model=path,
            context_tokens=self.window_tokens,
            slots=self.slots,
            k_type=self.kv_type,
            v_type=self.kv_type,
            threads=self.threads,
            kv_unified=self.kv_unified,
        )
        server = await start_embedded(options, log_path)
        try:
            return await connect(server.url, model=server.alias, owner=server.process, known=server.deployment)
        except BaseException:
            await server.process.stop()
            raise


@dataclass(frozen=True, slots=True, kw_only=True)
class PdTarget:
    """A prefill server and a decode server that hand KV from one to the other: one deployment behind two URLs."""

    prefill_url: str
    decode_url: str
    model: str | None = None
    api_key: str | None = None
    tokenizer: str | None = None

    @property
    def label(self) -> str:
        """Both base URLs, and the model where one was named."""
        urls = f"prefill {base_url(self.prefill_url)} decode {base_url(self.decode_url)}"
        return urls if self.model is None else f"{urls} {self.model}"

    async def open(self, log_path: Path) -> Engine:  # noqa: ARG002 - their logs are their owners'
        """Connects to both. UsageError where one is no vLLM, or the two are no pair."""
        return await connect_pair(
            self.prefill_url,
            self.decode_url,
            model=self.model,
            api_key=self.api_key,
            tokenizer=None if self.tokenizer is None else Path(self.tokenizer),
        )
