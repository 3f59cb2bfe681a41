"""Which values a text names: whole tokens, in any of the ways people and models write them.

Numbers: ``711097`` is also ``711,097``, ``711.097``, ``711'097``, ``711_097``, ``711 097`` (from five digits on),
``**711097**`` and digits of other scripts; it does not stand in ``7110975``, ``711097.5``, ``-711097``, ``711097-2`` or
``x711097``. Numbers up to twelve may be words. Words: ``Amber Falcon`` is also ``amber-falcon`` and ``AMBER  FALCON``
in prose; it does not stand in ``Amber Falconer`` or ``non-amber``. In code, case and every underscore count, and a dot
ends a name, so that ``self.read_k`` names ``read_k``.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence

from longproof.quality.corpora.corpus import Kind

_INVISIBLE = dict.fromkeys(map(ord, "\u00ad\u200b\u200c\u200d\u2060\ufeff"))
_STRAIGHT = str.maketrans({"‘": "'", "’": "'", "“": '"', "”": '"', "−": "-", "‐": "-", "‑": "-", "№": "#"})
_RUN = re.compile(r"\d+(?:[.,' ]\d+)*")
_WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
_SPACED_DIGITS = 5
_FREE_DIGITS = 3
"""A number this long that nobody showed is a value made up; a shorter one may count lines or say an order."""


def values_in(text: str, candidates: Sequence[str], kind: Kind) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(candidates that stand in `text`, other numbers as long as the numeric candidates); in the order of the text,
    each once."""
    shown = plain(text, kind)
    numeric = {candidate for candidate in candidates if candidate.isdecimal()}
    lengths = {len(candidate) for candidate in numeric if len(candidate) >= _FREE_DIGITS}
    found: list[tuple[int, str]] = []
    others: dict[str, None] = {}
    for at, value in _numbers(shown, spaced=any(length >= _SPACED_DIGITS for length in lengths)):
        if value in numeric:
            found.append((at, value))
        elif any(abs(len(value) - length) <= 1 and len(value) >= _FREE_DIGITS for length in lengths):
            others[value] = None
    for candidate in candidates:
        word = _WORDS[int(candidate)] if candidate in numeric and int(candidate) < len(_WORDS) else candidate
        if word in numeric:
            continue
        pattern = _word_pattern(plain(word, kind), kind)
        found.extend((match.start(), candidate) for match in pattern.finditer(shown))
    return tuple(dict.fromkeys(value for _, value in sorted(found))), tuple(others)


def plain(text: str, kind: Kind) -> str:
    """The text without what only decorates it: one form of letters, digits, quotes and spaces, no markdown emphasis."""
    text = unicodedata.normalize("NFKC", text.translate(_STRAIGHT)).translate(_INVISIBLE).translate(_STRAIGHT)
    text = re.sub(r"\\([_*,])", r"\1", text).replace("{,}", ",")
    text = re.sub(r"[^\W\D]", lambda digit: str(unicodedata.decimal(digit[0])), text)
    text = re.sub(r"(?<!\w)\*+|\*+(?!\w)|[`~]", " ", text)
    if kind == "code":
        return re.sub(r"(?<!\w)\d{1,3}(?:_\d{3})+(?!\w)", lambda number: number[0].replace("_", ""), text)
    return text.replace("_", " ").casefold()


def _numbers(text: str, *, spaced: bool) -> Iterator[tuple[int, str]]:
    """(place, digits) of every whole number; decimals, negative numbers and parts of longer tokens are none."""
    for run in _RUN.finditer(text):
        if not _stands_alone(text, run.start(), run.end()):
            continue
        for at, part in _split(run[0], spaced=spaced):
            yield run.start() + at, part


def _stands_alone(text: str, start: int, end: int) -> bool:
    before, after = text[max(0, start - 2) : start], text[end : end + 2]
    if before and (before[-1].isalnum() or before[-1] in "_-"):
        return False
    if before.endswith(".") and before != ".." and not before[0].isalnum():
        return False  # .711097
    return not (after and (after[0].isalnum() or after[0] == "_" or (after[0] == "-" and after[1:].isalnum())))


def _split(run: str, *, spaced: bool) -> Iterator[tuple[int, str]]:
    """A run of digits and separators as numbers: one that is grouped in threes, or several."""
    for separator in ",.' ":
        if re.fullmatch(rf"\d{{1,3}}(?:{re.escape(separator)}\d{{3}})+", run) and (spaced or separator != " "):
            yield 0, re.sub(r"\D", "", run)
            return
    if re.fullmatch(r"\d{1,3}(?:[,' ]\d{3})+\.\d+", run):
        return  # 1,234.5
    if re.fullmatch(r"\d+,\d{1,2}", run):
        return  # 1234,5
    for part in re.finditer(r"[\d.]+", run):
        if "." not in part[0]:
            yield part.start(), part[0]


def _word_pattern(word: str, kind: Kind) -> re.Pattern[str]:
    if kind == "code":
        return re.compile(rf"(?<!\w){re.escape(word)}(?!\w)")
    inner = r"[\s\-]+".join(re.escape(part) for part in re.split(r"[\s\-]+", word))
    return re.compile(rf"(?<!\w)(?<!\w-){inner}(?!\w)(?!-\w)")
