"""From a corpus to the text around a question's needles: a contiguous stretch, whole units only, in flat memory.

    corpus   ▒▒▒▒▒▒▒░░░░░░░░░░░░░░░░░░░░░░░░▒▒▒▒▒▒▒▒▒▒   tokenized once per server: tokens per unit, and their sums
                    └── stretch, seeded ──┘  ▒ ▒ ── trim: units chosen for what they cost
    haystack        ░░░░░ needle ░░░░░░ needle ░░░░░░▒▒

A longer stretch of the same seed holds the shorter one. Needles stand at the borders of units nearest to their depth,
in the order of the item; nothing is cut, nothing stands there twice. A haystack is described by numbers; its text is
slices of one string, joined once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np
from numpy.typing import NDArray

from longproof.asking.tally import tally_for
from longproof.domain.request import Route
from longproof.engines.base import Engine
from longproof.errors import CorpusError
from longproof.quality.corpora.corpus import Corpus
from longproof.quality.corpora.duplicates import key_of
from longproof.quality.corpora.occurrences import TextIndex
from longproof.quality.corpora.units import split_units
from longproof.quality.item import Kind, Needle
from longproof.quality.trim import Pool
from longproof.quality.unit_tokens import UnitTokens, count_units

_COMMON_SHARE = 0.01
"""A value that stands in more units than this is common language (yes, 3, None): its lines stay."""
_SHRINKS = 12
_SAMPLE_ITEMS = 16
_SAMPLE_CHARS = 250_000
_CHARS_PER_TOKEN = 5
_GROUP_UNITS = 100
_FEWEST_UNITS = 8
_ENOUGH_SMALL = 4
"""Units of more than an eighth of the filler are passed over, where the smaller ones make up four times what is needed.
"""


class TokenizedCorpus:
    """A corpus with what each of its units costs on one server. Built once, read by every item.

    `text` holds all units, each with its separator behind it; `offsets` [units + 1] are characters, `tokens` [units]
    costs, `sums` [units + 1] costs of everything before.
    """

    def __init__(self, corpus: Corpus, costs: UnitTokens, units: Sequence[str] | None = None) -> None:
        units = corpus.units() if units is None else units
        self.name = corpus.name
        self.kind: Kind = corpus.kind
        self.licence = corpus.licence
        self.manifest_sha256 = corpus.manifest_sha256
        self.separator = corpus.separator
        self.how = costs.how
        self.drift = costs.drift
        self.text = corpus.separator.join([*units, ""])
        lengths = np.fromiter((len(unit) for unit in units), dtype=np.int64, count=len(units))
        self.offsets = _sums(lengths + len(corpus.separator))
        self.tokens = costs.tokens
        self.sums = _sums(costs.tokens)
        self.counted = costs.counted
        self.pool = Pool(costs.tokens, costs.counted)
        # built now, not at the first item: they take a second for a million tokens, and later requests may be running
        self._index = TextIndex(self.text)
        keys = ((key_of(unit), number) for number, unit in enumerate(units))
        self._by_key = {key: number for key, number in keys if key is not None}

    @property
    def total_tokens(self) -> int:
        """Tokens of the whole corpus."""
        return int(self.sums[-1])

    @property
    def longest_haystack_tokens(self) -> int:
        """The most filler that is promised: one part in sixteen stays for bringing prompts to their length and for
        lines that hold a key or value."""
        return self.total_tokens - self.total_tokens // 16

    def check_holds(self, tokens: int) -> None:
        """Raises CorpusError when the corpus is shorter than an item of that many tokens."""
        if tokens > self.longest_haystack_tokens:
            raise CorpusError(
                f"corpus {self.name} is too short for a prompt of {tokens:,} tokens: it has {self.total_tokens:,}, of "
                f"which {self.longest_haystack_tokens:,} can be used; nothing is repeated to fill it up",
                advice="add documents, test shorter lengths, or use the corpus 'generated', which is as long as needed",
            )

    def unit(self, number: int) -> str:
        """The text of one unit, without its separator."""
        return self.text[self.offsets[number] : self.offsets[number + 1] - len(self.separator)]

    def units_to_avoid(self, needles: Sequence[Needle], values: Iterable[str]) -> frozenset[int]:
        """Units that hold one of the values as whole words, or repeat a piece of a needle."""
        common = max(1.0, _COMMON_SHARE * len(self.tokens))
        avoided: set[int] = set()
        for value in values:
            places = self._index.places(value)
            if places:
                units = {int(found) for found in np.searchsorted(self.offsets, places, side="right") - 1}
                avoided |= units if len(units) <= common else set()
        for needle in needles:
            lines = needle.text.replace("\n", "\n\n")  # a sentence of a document is a line of its own there
            pieces = split_units("needle.py", needle.text if self.kind == "code" else lines, self.kind)
            for piece in (needle.text, *pieces):
                key = key_of(piece)
                number = None if key is None else self._by_key.get(key)
                if number is not None:
                    avoided.add(number)
        return frozenset(avoided)


@dataclass(frozen=True, slots=True, kw_only=True)
class Haystack:
    """Which units stand in a haystack, in order, and before which of them each needle stands.

    `units` [chosen] are numbers of units, the last `trimmed` of which were chosen for their cost. `borders` [needles]:
    so many chosen units stand before the needle. `depths` [needles]: tokens of filler before it as a share of all.
    `tokens`: what the filler is predicted to cost.
    """

    units: NDArray[np.int64]
    trimmed: int
    borders: tuple[int, ...]
    depths: tuple[float, ...]
    tokens: int


async def tokenize_corpus(
    engine: Engine, corpus: Corpus, *, route: Route, longest_tokens: int | None = None
) -> TokenizedCorpus:
    """Counts every unit of a corpus on this server, in few calls. Raises EngineMisbehaved, CorpusError.

    With `longest_tokens`, the longest item that will be built, a much larger corpus is sampled: groups of units in a
    row, evenly spaced, enough for sixteen such items.
    """
    units = corpus.units() if longest_tokens is None else _sample(corpus.units(), longest_tokens)
    costs = await count_units(engine, tally_for(engine, route), units, corpus.separator)
    return TokenizedCorpus(corpus, costs, units)


def _sample(units: Sequence[str], longest_tokens: int) -> Sequence[str]:
    wanted = _SAMPLE_ITEMS * _CHARS_PER_TOKEN * longest_tokens + _SAMPLE_CHARS
    there = sum(map(len, units))
    groups = range(0, len(units), _GROUP_UNITS)
    step = there / wanted
    if step < 2:
        return units
    chosen = (groups[int(number * step)] for number in range(int(len(groups) / step)))
    return [unit for begin in chosen for unit in units[begin : begin + _GROUP_UNITS]]


def choose_haystack(
    corpus: TokenizedCorpus,
    needles: Sequence[Needle],
    *,
    tokens: int,
    seed: str,
    avoid: frozenset[int] = frozenset(),
    attempt: int = 0,
    stretch_tokens: int | None = None,
    shared: bool = False,
) -> Haystack | None:
    """A haystack whose filler costs `tokens`; None when whole units do not make that up.

    The stretch is chosen for `stretch_tokens` (default: the same), so that a correction changes the trim alone;
    `attempt` draws other units for it. `shared`: needles stand where they would at `stretch_tokens`, and never within
    the trim: several questions then have the same text up to it. Raises CorpusError when the corpus is too short.
    """
    corpus.check_holds(tokens)
    basis = tokens if stretch_tokens is None else stretch_tokens
    stretch = _stretch(corpus, basis, Random(f"{seed}/stretch"), avoid)
    taken = np.zeros(len(corpus.tokens), dtype=np.bool_)
    taken[np.fromiter(avoid, dtype=np.int64, count=len(avoid))] = True
    taken[stretch] = True
    rest = tokens - int(corpus.tokens[stretch].sum())
    for shorter in range(min(len(stretch), _SHRINKS) + 1):
        kept = stretch[: len(stretch) - shorter]
        trim = corpus.pool.exactly(rest, taken=taken, chance=Random(f"{seed}/trim/{attempt}/{shorter}"))
        if trim is not None:
            units = np.concatenate([kept, np.asarray(trim, dtype=np.int64)])
            sums = _sums(corpus.tokens[units])
            borders = _borders(sums, needles, basis if shared else tokens, len(kept) if shared else len(units))
            return Haystack(
                units=units,
                trimmed=len(trim),
                borders=borders,
                depths=tuple(float(sums[border] / max(1, sums[-1])) for border in borders),
                tokens=int(sums[-1]),
            )
        if len(kept):
            taken[kept[-1]] = False
            rest += int(corpus.tokens[kept[-1]])
    return None


def haystack_text(corpus: TokenizedCorpus, haystack: Haystack, needles: Sequence[Needle]) -> str:
    """The text, without a separator at its end. Slices of the corpus between needles and gaps, joined once."""
    units, offsets, text = haystack.units, corpus.offsets, corpus.text
    gaps = np.flatnonzero(np.diff(units) != 1) + 1
    cuts: list[int] = sorted({0, len(units), *gaps.tolist(), *haystack.borders})
    before = iter(sorted(range(len(needles)), key=lambda index: haystack.borders[index]))
    waiting = next(before, None)
    parts: list[str] = []
    for begin, end in zip(cuts, [*cuts[1:], len(units)], strict=True):
        while waiting is not None and haystack.borders[waiting] <= begin:
            parts += (needles[waiting].text, corpus.separator)
            waiting = next(before, None)
        if begin < end:
            parts.append(text[offsets[units[begin]] : offsets[units[end - 1] + 1]])
    return "".join(parts).removesuffix(corpus.separator)


def _stretch(corpus: TokenizedCorpus, tokens: int, chance: Random, avoid: frozenset[int]) -> NDArray[np.int64]:
    """Units in a row, those to avoid left out, that leave at least what the cheapest unit costs.

    Begins at the same share of the free room at every length: the stretch of a longer prompt holds the shorter one's.
    """
    budget = tokens - (corpus.pool.cheapest or 0)
    usable = np.ones(len(corpus.tokens), dtype=np.bool_)
    usable[np.fromiter(avoid, dtype=np.int64, count=len(avoid))] = False
    small = usable & (corpus.tokens <= budget // _FEWEST_UNITS)
    if int(corpus.tokens[small].sum()) >= _ENOUGH_SMALL * tokens:
        usable = small  # a block of code may be larger than a short prompt, and depth is only as fine as the units
    free = np.flatnonzero(usable).astype(np.int64)
    sums = _sums(corpus.tokens[free])
    first = int(np.searchsorted(sums, chance.random() * max(0, int(sums[-1]) - tokens)))
    end = int(np.searchsorted(sums, int(sums[min(first, len(free))]) + budget, side="right")) - 1
    return free[first : max(first, end)]


def _borders(sums: NDArray[np.int64], needles: Sequence[Needle], tokens: int, latest: int) -> tuple[int, ...]:
    """For each needle the border nearest to its depth in `tokens` of filler: never before that of the needle it follows
    in the item, never after border `latest`."""
    borders: list[int] = []
    at_least = 0
    for needle in needles:
        wanted = needle.depth * tokens
        after = min(int(np.searchsorted(sums, wanted)), len(sums) - 1)
        before = max(after - 1, 0)
        nearest = before if wanted - sums[before] < sums[after] - wanted else after
        at_least = max(at_least, min(nearest, latest))
        borders.append(at_least)
    return tuple(borders)


def _sums(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Running sums from 0, one more than there are values."""
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(values, dtype=np.int64)])
