"""What each unit of a corpus costs on one server, learned in few calls.

    MARK sep unit₀ sep MARK sep unit₁ sep MARK …     one call for a quarter of a million characters
    └──┘     └───────┘ └──┘     └───────┘ └──┘
     the ids between two marks, less the separator after a mark, are what the unit and its separator cost

A mark is a made-up word that the text does not have. It stands alone between line ends, so byte-level tokenizers, which
cut the text into words first, always make the same ids of it. Where the marks are not found again (another kind of
tokenizer, or a server that gives no ids), a whole batch is counted and shared out by characters, and only a few units
are counted alone: those are what a prompt is brought to its exact length with.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np
from numpy.typing import NDArray

from longproof.asking.tally import Tally
from longproof.engines.base import Engine
from longproof.errors import EngineProtocolError, UsageError

_MARK_LETTERS = "bcdfghjklmnpqrstvwxz"
_MARK_LENGTH = 6
_MARKS_TRIED = 20
_BATCH_CHARS = 262_144
_SHARED_BATCH_CHARS = 65_536
_SAMPLE_CHARS = 4_096
_PROBED_UNITS = 64
_FEW_PROBED_UNITS = 16
_ANCHOR = "So it began"
_LONGEST_PROBED_CHARS = 240


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitTokens:
    """Tokens of each unit, its separator included, as int64 [units].

    `counted` marks the units whose cost was counted; the others' is their share of a batch. `how` says by whom. `drift`
    is what a long stretch costs more than its units add up to, per token; 0 where tokens never span a border.
    """

    tokens: NDArray[np.int64]
    counted: NDArray[np.bool_]
    how: str
    drift: float = 0.0


async def count_units(engine: Engine, tally: Tally, units: Sequence[str], separator: str) -> UnitTokens:
    """Counts the units on this server. Raises EngineMisbehaved where it stops answering."""
    if tally.counts_unsent:
        try:
            found = await _between_marks(engine, units, separator)
        except (EngineProtocolError, UsageError):
            found = None  # it counts, but gives no ids
        if found is not None:
            drift = await _drift(engine, units, separator, found)
            return UnitTokens(
                tokens=found, counted=np.ones(len(units), dtype=np.bool_), how="ids between marks", drift=drift
            )
    return await _shared_out(tally, units, separator)


# -- by marks ---------------------------------------------------------------------------------------------------------


async def _between_marks(engine: Engine, units: Sequence[str], separator: str) -> NDArray[np.int64] | None:
    mark = _absent_word(units)
    learned = None if mark is None else await _learn_mark(engine, mark, separator)
    if mark is None or learned is None:
        return None
    pattern, after_mark = learned
    costs: list[NDArray[np.int64]] = []
    for batch in _batches(units, _BATCH_CHARS):
        between = f"{separator}{mark}{separator}"
        text = f"{_ANCHOR}{between}{between.join(batch)}{between}"
        places = _occurrences(np.asarray(await engine.tokenize(text), dtype=np.int64), pattern)
        if len(places) != len(batch) + 1:
            return None
        costs.append(np.diff(places) - len(pattern) - after_mark)
    found = np.concatenate(costs)
    return found if bool((found > 0).all()) else None


def _absent_word(units: Sequence[str]) -> str | None:
    """A word without vowels that no unit holds. Drawn, not listed: a list would stand in this file, and this file may
    be what a corpus holds."""
    chance = Random("marks")
    words = ("".join(chance.choices(_MARK_LETTERS, k=_MARK_LENGTH)) for _ in range(_MARKS_TRIED))
    return next((word for word in words if not any(word in unit for unit in units)), None)


async def _learn_mark(engine: Engine, mark: str, separator: str) -> tuple[NDArray[np.int64], int] | None:
    """(ids of the mark, how many the separator between two marks has); None when its ids depend on what is before."""
    before = len(await engine.tokenize(f"{_ANCHOR}\n"))
    pattern = np.asarray((await engine.tokenize(f"{_ANCHOR}\n{mark}"))[before:], dtype=np.int64)
    endings = (_ANCHOR, f"{_ANCHOR}.", f"({_ANCHOR})", f"{_ANCHOR} 17", mark)
    written = "".join(f"{ending}{separator}{mark}{separator}" for ending in endings)
    places = _occurrences(np.asarray(await engine.tokenize(written), dtype=np.int64), pattern)
    if len(places) != len(endings) + 1:
        return None
    return pattern, int(places[-1] - places[-2]) - len(pattern)


def _occurrences(ids: NDArray[np.int64], pattern: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where the pattern begins."""
    size = len(pattern)
    if not 0 < size <= len(ids):
        return np.empty(0, dtype=np.int64)
    fits = ids[: len(ids) - size + 1] == pattern[0]
    for offset in range(1, size):
        fits &= ids[offset : len(ids) - size + 1 + offset] == pattern[offset]
    return np.flatnonzero(fits).astype(np.int64)


async def _drift(engine: Engine, units: Sequence[str], separator: str, tokens: NDArray[np.int64]) -> float:
    """How far a stretch is from the sum of its units, on the first batch: no proof of anything, but a first guess."""
    batch = next(_batches(units, _SHARED_BATCH_CHARS))
    around = len(await engine.tokenize(separator.join([_ANCHOR, _ANCHOR])))
    within = len(await engine.tokenize(separator.join([_ANCHOR, *batch, _ANCHOR])))
    expected = int(tokens[: len(batch)].sum())
    return (within - around - expected) / expected


# -- shared out -------------------------------------------------------------------------------------------------------


async def _shared_out(tally: Tally, units: Sequence[str], separator: str) -> UnitTokens:
    """Batches counted whole (where each answer costs a request, one sample of all units), and a few units alone."""
    lengths = np.fromiter((len(unit) + len(separator) for unit in units), dtype=np.int64, count=len(units))
    base = await tally.text(_ANCHOR)
    shares = np.empty(len(units), dtype=np.float64)
    if tally.counts_unsent:
        begin = 0
        for batch in _batches(units, _SHARED_BATCH_CHARS):
            end = begin + len(batch)
            whole = await tally.text(separator.join([*batch, _ANCHOR])) - base
            shares[begin:end] = whole / int(lengths[begin:end].sum())
            begin = end
    else:
        sample = units[:: max(1, int(lengths.sum()) // _SAMPLE_CHARS)]
        text = separator.join([*sample, _ANCHOR])
        shares[:] = (await tally.text(text) - base) / (len(text) - len(_ANCHOR))
    tokens = np.maximum(1, np.rint(lengths * shares)).astype(np.int64)
    counted = np.zeros(len(units), dtype=np.bool_)
    for number in _to_probe(units, _PROBED_UNITS if tally.counts_unsent else _FEW_PROBED_UNITS):
        text = f"{units[number]}{separator}{_ANCHOR}"
        tokens[number] = max(1, await tally.text(text) - base)
        counted[number] = True
    return UnitTokens(tokens=tokens, counted=counted, how="batches shared out by characters, a few units alone")


def _to_probe(units: Sequence[str], most: int) -> list[int]:
    """Short units of different lengths, spread over the corpus."""
    short = [number for number, unit in enumerate(units) if len(unit) <= _LONGEST_PROBED_CHARS]
    Random("probed units").shuffle(short)
    return sorted(short[:most])


def _batches(units: Sequence[str], chars: int) -> Iterator[Sequence[str]]:
    begin = size = 0
    for number, unit in enumerate(units):
        if size and size + len(unit) > chars:
            yield units[begin:number]
            begin, size = number, 0
        size += len(unit)
    yield units[begin:]
