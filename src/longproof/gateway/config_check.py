"""What is wrong with a configuration, as far as it can be seen on this machine before anything is started: files that
are not there, addresses that are none, names that are given twice.
"""

from __future__ import annotations

import os
import re
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from longproof.clock import NS_PER_S
from longproof.errors import UserError
from longproof.gateway.config import EngineSection, FleetConfig, ReplicaSection
from longproof.gateway.launched import names_of
from longproof.gateway.ledger_store import open_ledger
from longproof.gateway.listener import Tls
from longproof.gateway.model_tokenizer import load_model_tokenizer
from longproof.gateway.pass_through import named_route
from longproof.gateway.shared_store import SharedStore, StoreAddress

_ENDPOINT = re.compile(r"tcp://\S+:\d{1,5}|(ipc|inproc)://\S+")


def config_problems(config: FleetConfig, state: Path) -> Iterator[str]:
    """Everything that would keep it from serving as written. `state`: where usage and engine logs are kept. May load
    tokenizers, and connects to a ledger in a database: call it from a thread."""
    yield from _doors(config)
    yield from _places(config, state)
    yield from _shared(config)
    names = names_of(config)
    for name, section in zip(names, (*config.engine, *config.replica), strict=True):
        yield from _served(name, section, config.directory)
    for name, times in Counter(names).items():
        if times > 1:
            yield f"{times} replicas are called '{name}'; give each a name of its own"
    for url, times in Counter(section.url.rstrip("/") for section in config.replica if section.url).items():
        if times > 1:
            yield f"{times} replicas are at {url}: its cache would be counted as often"
    for claim in config.claim if config.engine else ():  # where all engines run, claims are read as a whole
        if not (config.directory / claim.path / "header.json").is_file():
            yield f"[[claim]] {claim.path}: there is no evidence; name the directory that 'longproof prove --out' wrote"


def tls_of(config: FleetConfig) -> Tls | None:
    """The certificate and key of a configuration, None where it has none."""
    section, base = config.gateway.tls, config.directory
    if section is None:
        return None
    client_ca = None if section.client_ca is None else base / section.client_ca
    return Tls(certificate=base / section.certificate, key=base / section.key, client_ca=client_ca)


def address_of(config: FleetConfig, timeout_s: float, lease_ms: int) -> StoreAddress | None:
    """The store that several gateways share; None where nothing is shared."""
    shared = config.shared
    if shared is None:
        return None
    return StoreAddress(
        url=shared.url, fleet=shared.fleet, lease_ms=lease_ms, timeout_s=timeout_s, password_env=shared.password_env
    )


def _doors(config: FleetConfig) -> Iterator[str]:
    section, tls = config.gateway, tls_of(config)
    if tls is not None:
        try:
            tls.context()
        except UserError as problem:
            yield f"[gateway.tls] {problem.problem}"
    for route in section.pass_through:
        try:
            named_route(route)
        except UserError as problem:
            yield problem.problem
    if section.traces is not None and not section.traces.startswith(("http://", "https://")):
        yield f"[gateway] traces: '{section.traces}' is no address; write it like http://127.0.0.1:4318"


def _places(config: FleetConfig, state: Path) -> Iterator[str]:
    section = config.gateway
    wanted = [("state", state)]
    if section.decision_log is not None:
        wanted.append(("decision_log", (config.directory / section.decision_log).parent))
    for name, directory in wanted:
        there = next((one for one in (directory, *directory.parents) if one.exists()), Path("/"))
        if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
            yield f"[gateway] {name}: nothing can be written in {directory}"
    if section.ledger is not None and (section.ledger.partition("://")[0] != "sqlite" and "://" in section.ledger):
        try:
            open_ledger(section.ledger).close()
        except UserError as problem:
            yield f"[gateway] ledger: {problem.problem}; {problem.advice}"


def _shared(config: FleetConfig) -> Iterator[str]:
    address = address_of(config, 1.0, max(1, (config.shared.lease if config.shared else NS_PER_S) * 1_000 // NS_PER_S))
    if address is not None:
        try:
            SharedStore(address, "check")
        except UserError as problem:
            yield f"[shared] {problem.problem}; {problem.advice}"


def _served(name: str, section: ReplicaSection | EngineSection, directory: Path) -> Iterator[str]:
    for field, value in (("kv_events", section.kv_events), ("kv_replay", section.kv_replay)):
        for endpoint in (value or "").split():
            if not _ENDPOINT.fullmatch(endpoint):
                yield f"{name}: {field} '{endpoint}' is no endpoint; write it like tcp://127.0.0.1:5557"
    if section.kv_replay is not None and section.kv_events is None:
        yield f"{name}: kv_replay without kv_events: there is nothing to ask again for"
    if section.tokenizer is not None:
        try:
            load_model_tokenizer(directory / section.tokenizer)
        except UserError as problem:
            yield f"{name}: tokenizer: {problem.problem}; {problem.advice}"
    if isinstance(section, EngineSection):
        yield from _command(name, section.command)
    elif section.api_key_env is not None and not os.environ.get(section.api_key_env):
        yield f"{name}: {section.api_key_env} is not set, and the engine is asked without a key"


def _command(name: str, command: Sequence[str]) -> Iterator[str]:
    if command and shutil.which(command[0]) is None:
        yield f"{name}: there is no program '{command[0]}'"
