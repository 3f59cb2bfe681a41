"""Reading the tables that ship with the package: `*.toml`, one published table each, and single figures.

A row holds what its source lists: a claimed length, the effective length in the source's own words, and a cell per
length, either `scores_percent` or `right` of `n`. "not published" stands for a cell that the source leaves out.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cache
from importlib import resources
from typing import Any, Literal, cast

from longproof.domain.measure import Unknown

_SINGLES = "singles.toml"
# The raw shape of a parsed TOML file; it does not leave this module.
_Table = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedCell:
    """The share right at one length, 0..1; `n` answers stand behind it, where that is known."""

    length: str
    share: float | Unknown
    n: int | Unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedRow:
    """One model. `listed` is the effective length in the source's words, empty where it lists none."""

    model: str
    claimed: str
    listed: str
    base: float | None
    cells: tuple[PublishedCell, ...]
    reported_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedTable:
    """One source with its rule: what must reach `threshold` (0..1), the mean itself or its share of the base."""

    name: str
    what: str
    url: str
    file: str
    commit: str
    published: date
    read: date
    rule: Literal["mean", "share of base"]
    threshold: float
    rule_source: str
    answers: str
    rows: tuple[PublishedRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SingleFigure:
    """What one source says of one model, without cells."""

    source: str
    url: str
    how: str
    read: date
    model: str
    claimed: str
    says: str


def nominal_tokens(label: str) -> int:
    """4K is 4,000 and 1M is 1,000,000: only the order matters, and sources mean 1,000 or 1,024 by K."""
    return int(float(label[:-1]) * {"K": 1_000, "M": 1_000_000}[label[-1]])


@cache
def published_tables() -> tuple[PublishedTable, ...]:
    """Every table that ships, by name."""
    files = resources.files("longproof.claim").joinpath("published").iterdir()
    texts = [f.read_text(encoding="utf-8") for f in files if f.name.endswith(".toml") and f.name != _SINGLES]
    return tuple(sorted((parse_table(tomllib.loads(text)) for text in texts), key=lambda table: table.name))


@cache
def single_figures() -> tuple[SingleFigure, ...]:
    """Figures without cells, in the order of the file."""
    text = resources.files("longproof.claim").joinpath("published", _SINGLES).read_text(encoding="utf-8")
    raw = tomllib.loads(text)
    return tuple(
        SingleFigure(
            source=raw["sources"][figure["source"]]["name"],
            url=raw["sources"][figure["source"]]["url"],
            how=raw["sources"][figure["source"]]["how"],
            read=raw["read"],
            model=figure["model"],
            claimed=figure["claimed"],
            says=figure["says"],
        )
        for figure in raw["figure"]
    )


def parse_table(raw: _Table) -> PublishedTable:
    """One file. Raises KeyError for a missing key, ValueError for cells that do not match the lengths."""
    lengths = cast("Sequence[str]", raw["lengths"])
    answers = raw["answers_per_cell"]
    per_cell = answers if isinstance(answers, int) else Unknown(reason=str(answers))
    counted = f"{answers:,} a cell: {raw['answers_source']}" if isinstance(answers, int) else str(answers)
    return PublishedTable(
        name=raw["name"],
        what=raw["what"],
        url=raw["url"],
        file=raw["file"],
        commit=raw["commit"],
        published=raw["published"],
        read=raw["read"],
        rule=raw["rule"],
        threshold=raw["threshold_percent"] / 100,
        rule_source=raw["rule_source"],
        answers=counted,
        rows=tuple(_row(row, lengths, per_cell) for row in raw["row"]),
    )


def _row(raw: _Table, lengths: Sequence[str], per_cell: int | Unknown) -> PublishedRow:
    base: float | None = None
    if "base_percent" in raw:
        base = raw["base_percent"] / 100
    elif "base_n" in raw:
        base = raw["base_right"] / raw["base_n"]
    return PublishedRow(
        model=raw["model"],
        claimed=raw["claimed"],
        listed=raw["listed"],
        base=base,
        cells=_counted(raw, lengths) if "n" in raw else _scored(raw, lengths, per_cell),
        reported_by=raw.get("reported_by", ""),
    )


def _scored(raw: _Table, lengths: Sequence[str], per_cell: int | Unknown) -> tuple[PublishedCell, ...]:
    pairs = zip(lengths, raw["scores_percent"], strict=True)
    return tuple(
        PublishedCell(length=length, share=Unknown(reason=score) if isinstance(score, str) else score / 100, n=per_cell)
        for length, score in pairs
    )


def _counted(raw: _Table, lengths: Sequence[str]) -> tuple[PublishedCell, ...]:
    cells: list[PublishedCell] = []
    for length, right, n in zip(lengths, raw["right"], raw["n"], strict=True):
        if isinstance(n, str):
            cells.append(PublishedCell(length=length, share=Unknown(reason=n), n=Unknown(reason=n)))
        else:
            cells.append(PublishedCell(length=length, share=right / n, n=int(n)))
    return tuple(cells)
