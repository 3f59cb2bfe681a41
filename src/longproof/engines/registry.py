"""`connect(url)`: finds out which dialect a server speaks and returns the adapter for it.

    /v1/models ──▶ owned_by, Server header ──▶ named? ──▶ its own route answers? ──▶ adapter, all of it
                                       │           └──▶ only /v1 gets through ───▶ adapter, without its own routes
                                       └──▶ not named: each adapter's own route is tried in turn ──▶ adapter, or plain
                                       OpenAI

To add an engine: its adapter, and a line in `ADAPTERS`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from longproof.clock import Clock
from longproof.engines.base import Engine
from longproof.engines.link import Link
from longproof.engines.llamacpp import LlamaCppEngine
from longproof.engines.local_tokenizer import LocalTokenizer
from longproof.engines.openai import Known, OpenAIEngine, Owner
from longproof.engines.served import ServedModel, choose_model, served_models
from longproof.engines.sglang import SglangEngine
from longproof.engines.vllm import VllmEngine
from longproof.errors import EngineMisbehaved

_PROBE_TIMEOUT_S = 10.0
Native: TypeAlias = Callable[[Link], Awaitable[bool]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """How one engine is recognised: by the `owner` its model list names, by its `server` header, and by a route of its
    own."""

    engine: type[OpenAIEngine]
    owner: str
    server: str | None = None
    native: Native


def _answers(path: str, key: str) -> Native:
    """Whether a route gives a JSON object with a key that only this engine's answer has."""

    async def native(link: Link) -> bool:
        try:
            found = await link.get_json_if_served(path, timeout_s=_PROBE_TIMEOUT_S)
        except EngineMisbehaved:
            return False
        return found is not None and key in found

    return native


def _any_of(*natives: Native) -> Native:
    async def native(link: Link) -> bool:
        for one in natives:
            if await one(link):
                return True
        return False

    return native


def _exposes(prefix: str) -> Native:
    """Whether /metrics has metrics of this engine."""

    async def native(link: Link) -> bool:
        try:
            return f"\n{prefix}" in (await link.get("/metrics", timeout_s=_PROBE_TIMEOUT_S)).text
        except EngineMisbehaved:
            return False

    return native


ADAPTERS = (
    Adapter(engine=LlamaCppEngine, owner="llamacpp", server="llama.cpp", native=_answers("/props", "total_slots")),
    Adapter(
        engine=SglangEngine,
        owner="sglang",
        native=_any_of(
            _answers("/server_info", "max_total_num_tokens"), _answers("/get_server_info", "max_total_num_tokens")
        ),
    ),
    Adapter(engine=VllmEngine, owner="vllm", native=_exposes("vllm:")),
)


async def connect(
    url: str,
    *,
    model: str | None = None,
    api_key: str | None = None,
    tokenizer: Path | None = None,
    clock: Clock | None = None,
    owner: Owner | None = None,
    known: Known | None = None,
) -> Engine:
    """The engine at a URL. `tokenizer` is a tokenizer.json for servers that do not count; `owner` the process where it
    is ours, and `known` what whoever started it knows (`EmbeddedServer.process` and `.deployment`).

    Raises UsageError for an address or key that cannot be one, TargetError when the server cannot be reached, refuses
    the key, is no OpenAI-compatible server, or does not serve the model; ModelFileError for a tokenizer that cannot be
    read.
    """
    local = None if tokenizer is None else LocalTokenizer.load(tokenizer)
    link = Link(url, api_key=api_key, clock=clock)
    try:
        served = choose_model(await served_models(link), model, link.url)
        adapter, native = await _recognise(link, served)
    except BaseException:
        await link.aclose()
        raise
    engine = adapter(link, model=model or served.id, tokenizer=local, owner=owner, native=native)
    engine.known = known
    return engine


async def _recognise(link: Link, served: ServedModel) -> tuple[type[OpenAIEngine], bool]:
    """The adapter, and whether the engine's own routes can be reached."""
    for adapter in ADAPTERS:
        if served.owned_by == adapter.owner or (adapter.server is not None and served.server == adapter.server):
            return adapter.engine, await adapter.native(link)
    for adapter in ADAPTERS:
        if await adapter.native(link):
            return adapter.engine, True
    return OpenAIEngine, True
