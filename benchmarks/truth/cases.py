"""Reports of real servers, as they were written down: read tolerantly, nothing is taken from a case's id or model name.

A case is one JSON object. What a launch did not record stays None here; the judge of the engine decides which defaults
the launch can have had, and says so in the verdict.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from longproof.plan.capacity import Device, Layout

GIB = 1 << 30
COUNTED = ("exact", "exact-ratio", "exact-need")
"""The classes the last line counts; log-wrong is judged as misleading, the others are shown only."""


@dataclass(frozen=True)
class Speculative:
    """Speculation as a report words it. `tokens` None: not recorded."""

    method: str
    tokens: int | None
    shares_kv: bool


@dataclass(frozen=True)
class Case:
    """One report. `config_model` is the model whose dimensions `model` has, "" when it has a config of its own. `raw`
    keeps the fields only one engine's judge reads."""

    id: str
    engine: str
    version: str
    kind: str
    architecture: str
    model: str
    config_model: str
    observed: Mapping[str, object]
    notes: str
    layout: Layout
    device: Device
    gpu: str
    memory_bytes: int | None
    kv_dtype: str
    block_size: int | None
    max_model_len: int | None
    max_num_batched_tokens: int | None
    max_num_seqs: int | None
    speculative: Speculative | None
    raw: Mapping[str, object]

    def number(self, name: str) -> float | None:
        """An observed number, None when the report has none."""
        value = self.observed.get(name)
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None

    def count(self, name: str) -> int | None:
        """An observed whole number."""
        value = self.number(name)
        return None if value is None else int(value)


def read_cases(path: Path) -> list[Case]:
    """All cases of a JSON-lines file, in order."""
    return [_case(raw) for raw in read_objects(path)]


def read_objects(path: Path) -> list[Mapping[str, object]]:
    """The objects of a JSON-lines file. Raises SystemExit 2 with one message when it is not one."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        _give_up(f"{path} cannot be read: {error}")
    found: list[Mapping[str, object]] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            raw = json.loads(line)
        except ValueError as error:
            _give_up(f"{path}, line {number}: not JSON: {error}")
        if not isinstance(raw, dict):
            _give_up(f"{path}, line {number}: not an object")
        found.append(raw)
    return found


def _give_up(message: str) -> NoReturn:
    print(f"error: {message}", file=sys.stderr)
    raise SystemExit(2)


def _case(raw: Mapping[str, object]) -> Case:
    gpu = _text(raw.get("gpu"))
    memory = raw.get("gpu_mem_gib")
    return Case(
        id=_text(raw.get("id")),
        engine=_text(raw.get("engine")),
        version=_text(raw.get("engine_version")),
        kind=_text(raw.get("test_class")),
        architecture=_text(raw.get("arch")) or "unknown",
        model=_text(raw.get("model")),
        config_model=_text(raw.get("config_model")),
        observed=_mapping(raw.get("observed")),
        notes=_text(raw.get("notes")),
        layout=_layout(raw),
        device=_device(gpu, _text(raw.get("engine_version"))),
        gpu=gpu,
        memory_bytes=int(float(memory) * GIB) if isinstance(memory, int | float) else None,
        kv_dtype=_first_word(_text(raw.get("kv_cache_dtype"))) or "auto",
        block_size=_whole(raw.get("block_size")),
        max_model_len=_whole(raw.get("max_model_len"))
        or _whole(_mapping(raw.get("observed")).get("max_concurrency_len")),
        max_num_batched_tokens=_whole(raw.get("max_num_batched_tokens")),
        max_num_seqs=_whole(raw.get("max_num_seqs")),
        speculative=_speculative(_text(raw.get("spec_decode"))),
        raw=raw,
    )


def _layout(raw: Mapping[str, object]) -> Layout:
    parallel = _mapping(raw.get("cp"))
    partition = raw.get("pp_partition")
    layers = tuple(n for n in partition if isinstance(n, int)) if isinstance(partition, list) else ()
    return Layout(
        tp=_whole(raw.get("tp")) or 1,
        pp=_whole(raw.get("pp")) or max(1, len(layers)),
        partition=layers,
        dp=_whole(raw.get("dp")) or 1,
        dcp=_whole(parallel.get("dcp")) or 1,
        pcp=_whole(parallel.get("pcp")) or _whole(parallel.get("cp")) or 1,
    )


def _speculative(words: str) -> Speculative | None:
    """``mtp n=3``, ``eagle3 draft``, ``MTP assistant drafter (shares KV ...)`` → method, tokens, whether it has KV."""
    if not words:
        return None
    tokens = re.search(r"(?:\bn|n_spec|tokens|\bk) ?= ?(\d+)", words)
    return Speculative(
        method=_first_word(words).lower(),
        tokens=int(tokens[1]) if tokens else None,
        shares_kv="shares kv" in words.lower(),
    )


def _device(gpu: str, version: str) -> Device:
    words = f"{gpu} {version}".lower()
    if "tpu" in words:
        return Device.TPU
    if gpu.lower() == "cpu":
        return Device.CPU
    return Device.ROCM if gpu.lower().startswith("mi") else Device.CUDA


def _first_word(words: str) -> str:
    return words.replace(",", " ").split(" ")[0].split("(")[0]


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _whole(value: object) -> int | None:
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _mapping(value: object) -> Mapping[str, object]:
    return {str(k): v for k, v in value.items()} if isinstance(value, dict) else {}
