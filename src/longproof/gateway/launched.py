"""Engines that the gateway starts, and stops with itself."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from longproof.clock import NS_PER_S
from longproof.engines.embedded import EmbeddedOptions, start_embedded
from longproof.engines.model_files import resolve_model
from longproof.engines.openai import Known
from longproof.engines.process import Launch, OwnedProcess
from longproof.errors import UsageError
from longproof.gateway.config import EngineSection, FleetConfig, ReplicaSection, ServedSection

_log = logging.getLogger("longproof.gateway")


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """One engine that runs, ours or not: where, what its section says, and what we know of it without asking."""

    name: str
    url: str
    section: ServedSection
    model: str | None = None
    api_key_env: str | None = None
    process: OwnedProcess | None = None
    known: Known | None = None
    tokenizer: Path | None = None
    """The model's directory, tokenizer.json or GGUF: what to count with."""
    prefill_url: str | None = None
    """Of a prefill/decode pair, whose decode side is at `url`."""


async def standing_replicas(config: FleetConfig, log_directory: Path) -> list[Standing]:
    """All engines of a configuration, those of ours started. Raises what stands in the way of a start; then none of
    ours runs any more."""
    found: list[Standing] = []
    try:
        for number, engine in enumerate(config.engine):
            name = _engine_name(config, number)
            found.append(await _start(name, engine, config.directory, log_directory / f"{name}.log"))
    except BaseException:
        await stop_all(found)
        raise
    found += running_replicas(config)
    names = [one.name for one in found]
    if len(set(names)) != len(names):
        await stop_all(found)
        raise UsageError(f"two replicas have one name: {', '.join(names)}", advice="give each a name of its own")
    return found


def names_of(config: FleetConfig) -> list[str]:
    """What its engines and replicas are called."""
    engines = [_engine_name(config, number) for number in range(len(config.engine))]
    return [*engines, *(one.name for one in running_replicas(config))]


def running_replicas(config: FleetConfig) -> list[Standing]:
    """Those that run already."""
    return [_named(section, config.directory) for section in config.replica]


async def stop_all(standing: Sequence[Standing]) -> None:
    """Ends those that are ours."""
    await asyncio.gather(*(one.process.stop() for one in standing if one.process is not None))


def _engine_name(config: FleetConfig, number: int) -> str:
    return config.engine[number].name or ("embedded" if len(config.engine) == 1 else f"engine-{number}")


def _named(section: ReplicaSection, directory: Path) -> Standing:
    url = section.url or section.decode_url
    return Standing(
        name=section.name or url.split("://")[-1].strip("/"),
        url=url,
        prefill_url=section.prefill_url or None,
        section=section,
        model=section.model,
        api_key_env=section.api_key_env,
        tokenizer=_tokenizer(section, directory),
    )


def _tokenizer(section: ServedSection, directory: Path) -> Path | None:
    return None if section.tokenizer is None else directory / section.tokenizer


async def _start(name: str, engine: EngineSection, directory: Path, log_path: Path) -> Standing:
    if engine.kind == "embedded":
        _log.info("starting %s: llama.cpp, in a process of its own", name)
        model = engine.model
        if model is not None and not model.startswith("hf://"):
            model = str(directory / model)
        path = await asyncio.to_thread(resolve_model, model)
        options = EmbeddedOptions(
            model=path,
            context_tokens=engine.context,
            slots=engine.slots or 1,
            k_type=engine.kv_type,
            v_type=engine.kv_type,
            threads=engine.threads,
            kv_unified=engine.kv_unified,
        )
        server = await start_embedded(options, log_path, deadline_s=engine.start_within / NS_PER_S)
        return Standing(
            name=name,
            url=server.url,
            section=engine,
            model=server.alias,
            process=server.process,
            known=server.deployment,
            tokenizer=_tokenizer(engine, directory) or path,
        )
    assert engine.url is not None  # its section sees to that
    _log.info("starting %s: %s", name, " ".join(engine.command))
    launch = Launch(
        name=name,
        argv=engine.command,
        log_path=log_path,
        url=engine.url,
        health_path=engine.ready,
        env=engine.environment,
    )
    process = OwnedProcess(launch)
    await process.start(deadline_s=engine.start_within / NS_PER_S)
    return Standing(
        name=name,
        url=engine.url,
        section=engine,
        model=engine.model,
        process=process,
        tokenizer=_tokenizer(engine, directory),
    )
