"""The embedded engine: llama.cpp's own server (PyPI `xllamacpp`) in a process that we own."""

from __future__ import annotations

import asyncio
import importlib.metadata
import re
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from longproof.domain.deployment import Deployment, EngineKind
from longproof.domain.measure import Measured, Provenance, Reading, Unknown, derived, given, reported
from longproof.domain.units import format_tokens
from longproof.engines.embedded_child import EXIT_REFUSED, ChildSettings
from longproof.engines.embedded_log import LlamaCppLogFacts, parse_llamacpp_log
from longproof.engines.gguf_header import GgufHeader, read_gguf_header
from longproof.engines.model_digest import model_sha256
from longproof.engines.process import Launch, OwnedProcess
from longproof.errors import EngineDied, ModelFileError, UsageError, UserError

KV_TYPES = ("f16", "bf16", "f32", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")
"""KV cache types that llama.cpp takes (common/arg.cpp, 2026); a quantized V turns flash attention on."""

T = TypeVar("T")

_CELL_STEP_TOKENS = 256  # llama.cpp pads the cells of a stream to this
_MOST_SLOTS = 256  # LLAMA_MAX_SEQ; more are refused by xllamacpp 2026.10.11549
_MOST_CELLS = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedOptions:
    """What to serve, and how. None = the model's own (context) or llama.cpp's default (threads, batches, prompt cache).

    `context_tokens` is the window of each slot: prompt and output together. With `kv_unified` the slots share one pool
    of that many tokens, otherwise each slot has a pool of its own. `port` 0 takes a free one. `prompt_cache_mib` limits
    the host memory in which llama.cpp keeps prompts that lost their slot (its default is 8,192; 0 turns it off).
    """

    model: Path
    context_tokens: int | None = None
    slots: int = 1
    k_type: str = "f16"
    v_type: str = "f16"
    threads: int | None = None
    kv_unified: bool = False
    batch_tokens: int | None = None
    ubatch_tokens: int | None = None
    prompt_cache_mib: int | None = None
    alias: str | None = None
    host: str = "127.0.0.1"
    port: int = 0

    def __post_init__(self) -> None:
        for name, value in (("k_type", self.k_type), ("v_type", self.v_type)):
            if value not in KV_TYPES:
                raise UsageError(
                    f"{name} '{value}' is not a KV cache type", advice=f"choose one of: {', '.join(KV_TYPES)}"
                )
        _between("slots", self.slots, 1, _MOST_SLOTS)
        _between("port", self.port, 0, 65_535)
        for name, value in (
            ("context_tokens", self.context_tokens),
            ("threads", self.threads),
            ("batch_tokens", self.batch_tokens),
            ("ubatch_tokens", self.ubatch_tokens),
        ):
            if value is not None:
                _between(name, value, 1, _MOST_CELLS)
        if self.prompt_cache_mib is not None:
            _between("prompt_cache_mib", self.prompt_cache_mib, 0, _MOST_CELLS)


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedServer:
    """A running embedded engine and all that is known of it without asking it.

    `context_tokens` is the window asked for per slot; `warnings` say in which ways the engine will not do exactly what
    was asked. `process` starts on the same port again when it is restarted.
    """

    process: OwnedProcess
    options: EmbeddedOptions
    context_tokens: int
    alias: str
    header: GgufHeader
    model_sha256: str
    xllamacpp_version: str
    warnings: tuple[str, ...]

    @property
    def url(self) -> str:
        """Base URL without a trailing slash or /v1."""
        return self.process.url

    def log_facts(self) -> LlamaCppLogFacts:
        """What the engine logged at its latest start."""
        return parse_llamacpp_log(self.process.log_text())

    def deployment(self) -> Deployment:
        """What we gave the engine, what its model file says and what it logged; the rest is for its adapter to ask."""
        options, log = self.options, self.log_facts()
        same = options.k_type == options.v_type
        other: dict[str, Reading[str]] = {
            "ubatch_tokens": _logged(_text(log.ubatch_tokens), "n_ubatch"),
            "flash_attention": _logged(_text(log.flash_attention), "flash attention"),
            "kv_bytes": _logged(_text(log.kv_bytes), "KV cache sizes"),
        }
        if options.threads is not None:
            other["threads"] = given(str(options.threads), "option threads")
        if self.warnings:
            other["warnings"] = derived("; ".join(self.warnings), "options against model and engine")
        if options.prompt_cache_mib is not None:
            other["prompt_cache_mib"] = given(str(options.prompt_cache_mib), "option prompt_cache_mib")
        return Deployment(
            engine=EngineKind.LLAMACPP,
            engine_version=given(f"xllamacpp {self.xllamacpp_version}", "the installed package"),
            model=given(self.alias, "option alias"),
            model_file=given(options.model.name, "option model"),
            model_sha256=Measured(
                value=self.model_sha256, provenance=Provenance.MEASURED, source="sha256 of the model file"
            ),
            configured_limit_tokens=given(self.context_tokens, "option context_tokens, per slot"),
            trained_limit_tokens=_trained(self.header),
            slots=given(options.slots, "option slots"),
            slot_limit_tokens=_logged(log.slot_tokens, "n_ctx_slot"),
            kv_capacity_tokens=_logged(log.kv_capacity_tokens, "llama_kv_cache cells × streams"),
            kv_dtype=given(
                options.k_type if same else f"K {options.k_type}, V {options.v_type}", "options k_type, v_type"
            ),
            kv_unified=given(options.kv_unified, "option kv_unified"),
            max_batched_tokens=_logged(log.batch_tokens, "n_batch"),
            other=other,
        )


async def start_embedded(options: EmbeddedOptions, log_path: Path, *, deadline_s: float = 600.0) -> EmbeddedServer:
    """Starts llama.cpp with these options and returns when it serves; its log goes to `log_path` (appended).

    Raises ModelFileError for a file that is no whole GGUF or that llama.cpp cannot load, UsageError for options that it
    refuses, EngineDied when it crashes, EngineUnreachable at the deadline.
    """
    header = read_gguf_header(options.model)
    context_tokens = options.context_tokens or header.trained_tokens
    if context_tokens is None:
        raise UsageError(
            f"{options.model} does not say which context it was trained for", advice="name the context in tokens"
        )
    cells = _cells(context_tokens, options)
    alias = options.alias or options.model.stem
    process = OwnedProcess(_launch(options, alias=alias, cells=cells, port=options.port, log_path=log_path))
    try:
        await process.start(deadline_s=deadline_s)
    except EngineDied as death:
        raise (_refusal(death, options, cells) or death) from None
    try:
        # the engine was told "any free port"; when it comes back it must come back where it was
        port = int(process.url.rpartition(":")[2])
        process.launch = _launch(options, alias=alias, cells=cells, port=port, log_path=log_path)
        digest = await asyncio.to_thread(model_sha256, options.model)
    except BaseException:
        await process.stop()
        raise
    return EmbeddedServer(
        process=process,
        options=options,
        context_tokens=context_tokens,
        alias=alias,
        header=header,
        model_sha256=digest,
        xllamacpp_version=importlib.metadata.version("xllamacpp"),
        warnings=tuple(_warnings(context_tokens, options, header)),
    )


def _launch(options: EmbeddedOptions, *, alias: str, cells: int, port: int, log_path: Path) -> Launch:
    settings = ChildSettings(
        model_path=str(options.model.resolve()),
        n_ctx=cells,
        n_parallel=options.slots,
        kv_unified=options.kv_unified,
        k_type=options.k_type,
        v_type=options.v_type,
        n_threads=options.threads,
        n_batch=options.batch_tokens,
        n_ubatch=options.ubatch_tokens,
        cache_ram_mib=options.prompt_cache_mib,
        alias=alias,
        host=options.host,
        port=port,
    )
    return Launch(
        name="embedded llama.cpp",
        # -P: a file in the working directory must not shadow a module
        argv=(sys.executable, "-P", "-m", "longproof.engines.embedded_child", settings.to_json()),
        log_path=log_path,
        watches_lifeline=True,
    )


def _cells(context_tokens: int, options: EmbeddedOptions) -> int:
    """llama.cpp's n_ctx for a window per slot: unless they share one pool, it divides n_ctx by the slots, then pads."""
    padded = -(-context_tokens // _CELL_STEP_TOKENS) * _CELL_STEP_TOKENS
    cells = padded if options.kv_unified else padded * options.slots
    if cells > _MOST_CELLS:
        raise UsageError(
            f"{options.slots} slots of {format_tokens(context_tokens)} tokens are {format_tokens(cells)} KV cells; "
            f"llama.cpp counts to {format_tokens(_MOST_CELLS)}",
            advice="ask for fewer slots or a smaller context",
        )
    return cells


def _warnings(context_tokens: int, options: EmbeddedOptions, header: GgufHeader) -> list[str]:
    found: list[str] = []
    trained = header.trained_tokens
    if trained is not None and context_tokens > trained:
        found.append(
            f"a context of {format_tokens(context_tokens)} tokens was asked for, the model was trained for "
            f"{format_tokens(trained)}: llama.cpp caps every slot there"
        )
    elif context_tokens % _CELL_STEP_TOKENS:
        padded = _cells(context_tokens, replace(options, slots=1))
        found.append(
            f"a context of {format_tokens(context_tokens)} tokens was asked for, llama.cpp rounds it up to "
            f"{format_tokens(padded)}"
        )
    if options.kv_unified and options.slots > 1:
        found.append(
            f"{options.slots} slots share one pool of KV cells: together they hold no more than one slot alone"
        )
    return found


_BIND = re.compile(r"couldn't bind HTTP server socket")
_KV_ALLOCATION = re.compile(
    r"failed to allocate (?:buffer for kv cache|compute buffers)|failed to allocate .*buffer of size (\d+)"
)
_CONTEXT = re.compile(r"failed to create_?\s?context")
_MODEL = re.compile(r"error loading model: (.*)")


def _refusal(death: EngineDied, options: EmbeddedOptions, cells: int) -> UserError | None:
    """llama.cpp's own words for why it would not start, as advice to the user; None when they say nothing we know."""
    if death.returncode != EXIT_REFUSED:
        return None
    log = death.log_tail
    if _BIND.search(log):
        return UsageError(
            f"port {options.port} on {options.host} is taken", advice="name another port, or 0 for a free one"
        )
    if _KV_ALLOCATION.search(log):
        return UsageError(
            f"the memory for {format_tokens(cells)} KV cells ({options.k_type}/{options.v_type}) could not be had",
            advice="ask for a smaller context, fewer slots or a smaller KV type",
        )
    model = _MODEL.search(log)
    if model:
        return ModelFileError(
            f"llama.cpp cannot load {options.model}: {model[1]}", advice="use a model that this xllamacpp release knows"
        )
    if _CONTEXT.search(log):
        return UsageError(
            f"llama.cpp refuses {options.k_type}/{options.v_type} KV for {options.model.name}; its log ends:\n{log}",
            advice="use k_type and v_type f16",
        )
    return None


def _between(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise UsageError(
            f"{name} is {format_tokens(value)}; it can be {format_tokens(low)} to {format_tokens(high)}",
            advice=f"choose {name} in that range",
        )


def _trained(header: GgufHeader) -> Reading[int]:
    key = f"{header.architecture}.context_length"
    if header.trained_tokens is None:
        return Unknown(reason=f"the model file has no {key}")
    return reported(header.trained_tokens, f"GGUF header {key}")


def _logged(value: T | None, line: str) -> Reading[T]:
    return (
        Unknown(reason=f"the engine's log has no line with {line}")
        if value is None
        else reported(value, f"engine log, {line}")
    )


def _text(value: int | bool | None) -> str | None:
    return None if value is None else str(value).lower()
