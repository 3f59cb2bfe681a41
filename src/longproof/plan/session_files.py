"""A mix of sessions from a file: a trace, or one of two tables that anybody can write.

*.jsonl                                                   a Mooncake trace
*.csv   TIMESTAMP,ContextTokens,GeneratedTokens           an Azure trace
        input_tokens,output_tokens,share                  a table; also shared_tokens and prefix (its name)
        high_tokens,share                                 a histogram by upper edge; also output_tokens
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path

from longproof.domain.units import parse_tokens
from longproof.errors import UsageError
from longproof.plan.mix import HistogramBin, SessionMix, SessionShare, mix_from_histogram, mix_from_trace
from longproof.plan.traces import read_trace

_HEADERS = "TIMESTAMP,ContextTokens,GeneratedTokens or input_tokens,output_tokens,share or high_tokens,share"


def read_mix(path: Path) -> SessionMix:
    """The mix a file describes, told apart by its header. Lengths may be written as 8192, 8k or 8Ki.

    Sessions of a table that name one `prefix` share it: the longest `shared_tokens` of a name is held once. Raises
    UsageError naming file and line.
    """
    if path.suffix != ".csv":
        return mix_from_trace(read_trace(path), source=path.name)
    try:
        rows = list(csv.DictReader(path.read_text(encoding="utf-8-sig").splitlines()))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}", advice="name a readable file") from error
    header = set(rows[0]) if rows else set[str]()
    if "TIMESTAMP" in header:
        return mix_from_trace(read_trace(path), source=path.name)
    if {"input_tokens", "output_tokens", "share"} <= header:
        return _table(path, rows)
    if {"high_tokens", "share"} <= header:
        bins = [
            HistogramBin(
                high_tokens=_tokens(path, number, row, "high_tokens"),
                share=_share(path, number, row),
                output_tokens=_tokens(path, number, row, "output_tokens"),
            )
            for number, row in enumerate(rows, start=2)
        ]
        return mix_from_histogram(bins, source=path.name)
    raise UsageError(f"{path} has no header that is known", advice=f"start it with {_HEADERS}")


def _table(path: Path, rows: list[dict[str, str]]) -> SessionMix:
    prefixes: dict[str, int] = {}
    sessions: list[SessionShare] = []
    for number, row in enumerate(rows, start=2):
        shared = _tokens(path, number, row, "shared_tokens")
        name = row.get("prefix") or ""
        prefixes[name] = max(shared, prefixes.get(name, 0))
        sessions.append(
            SessionShare(
                input_tokens=_tokens(path, number, row, "input_tokens"),
                output_tokens=_tokens(path, number, row, "output_tokens"),
                share=_share(path, number, row),
                shared_tokens=shared,
            )
        )
    return SessionMix(sessions=tuple(sessions), source=path.name, pinned_tokens=sum(prefixes.values()))


def _tokens(path: Path, line: int, row: Mapping[str, str], field: str) -> int:
    text = row.get(field)
    if text is None or not text.strip():
        return 0
    try:
        return parse_tokens(text)
    except UsageError as error:
        raise UsageError(f"{path}, line {line}: {field} {error.problem}", advice=error.advice) from error


def _share(path: Path, line: int, row: Mapping[str, str]) -> float:
    try:
        return float(row["share"])
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"{path}, line {line}: the share '{row['share']}' is not a number",
            advice="write shares as numbers; they need not add up to one",
        ) from error
