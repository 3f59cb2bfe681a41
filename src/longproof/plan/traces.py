"""Readers of request traces and tables of sessions: files in, values out. The only files `plan` reads.

*.jsonl   Mooncake: timestamp (ms), input_length, output_length, hash_ids (one per 512 tokens of the prompt)
*.csv     Azure: TIMESTAMP (wall clock), ContextTokens, GeneratedTokens
"""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import cast

from longproof.errors import UsageError

MOONCAKE_BLOCK_TOKENS = 512
_AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - the trace names no zone; only differences are used


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRow:
    """One request. `at_ns` since the first row. `block_ids`: one per `block_tokens` of the input, the last may be
    partial; equal ids mean equal whole prefixes up to there. Empty: the trace does not say."""

    at_ns: int
    input_tokens: int
    output_tokens: int
    block_ids: tuple[int, ...] = ()
    block_tokens: int = MOONCAKE_BLOCK_TOKENS


def read_trace(path: Path) -> tuple[TraceRow, ...]:
    """All rows in file order. Raises UsageError naming file and line for anything that is not a trace."""
    if path.suffix == ".jsonl":
        return read_mooncake(path)
    if path.suffix == ".csv":
        return read_azure(path)
    raise UsageError(f"{path} is neither .jsonl nor .csv", advice="give a Mooncake (.jsonl) or Azure (.csv) trace")


def read_mooncake(path: Path) -> tuple[TraceRow, ...]:
    """A Mooncake trace (`conversation_trace.jsonl` and its kind)."""
    rows: list[TraceRow] = []
    for number, line in enumerate(_text(path).splitlines(), start=1):
        if not line.strip():
            continue
        try:
            raw = cast("Mapping[str, object]", json.loads(line))
            ids = cast("list[int]", raw.get("hash_ids", []))
            rows.append(
                TraceRow(
                    at_ns=int(cast("float", raw["timestamp"]) * 1_000_000),
                    input_tokens=int(cast("int", raw["input_length"])),
                    output_tokens=int(cast("int", raw["output_length"])),
                    block_ids=tuple(int(block) for block in ids),
                )
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise _broken(path, number, "timestamp, input_length, output_length and hash_ids") from error
    return _from_first(path, rows)


def read_azure(path: Path) -> tuple[TraceRow, ...]:
    """An Azure LLM inference trace of 2023 or 2024."""
    rows: list[TraceRow] = []
    reader = csv.DictReader(_text(path).splitlines())
    for number, raw in enumerate(reader, start=2):
        try:
            rows.append(
                TraceRow(
                    at_ns=_wall_clock_ns(raw["TIMESTAMP"]),
                    input_tokens=int(raw["ContextTokens"]),
                    output_tokens=int(raw["GeneratedTokens"]),
                )
            )
        except (ValueError, KeyError, TypeError) as error:
            raise _broken(path, number, ", ".join(_AZURE)) from error
    return _from_first(path, rows)


def _wall_clock_ns(text: str) -> int:
    """``2023-11-16 18:17:03.9799600``: seven decimals are one more than datetime takes."""
    whole, _, fraction = text.strip().removesuffix("Z").partition("+")[0].partition(".")
    seconds = datetime.fromisoformat(whole) - _EPOCH
    return (seconds.days * 86_400 + seconds.seconds) * 1_000_000_000 + int(fraction.ljust(9, "0")[:9] or 0)


def _from_first(path: Path, rows: list[TraceRow]) -> tuple[TraceRow, ...]:
    if not rows:
        raise UsageError(f"{path} has no rows", advice="give a trace with at least one request")
    if min(min(row.input_tokens, row.output_tokens) for row in rows) < 0:
        raise UsageError(f"{path} has a negative length", advice="lengths are counts of tokens")
    first = rows[0].at_ns
    return tuple(
        TraceRow(
            at_ns=row.at_ns - first,
            input_tokens=row.input_tokens,
            output_tokens=row.output_tokens,
            block_ids=row.block_ids,
        )
        for row in rows
    )


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}", advice="name a readable trace file") from error


def _broken(path: Path, line: int, fields: str) -> UsageError:
    return UsageError(f"{path}, line {line}: not a row with {fields}", advice="check the file's format")
