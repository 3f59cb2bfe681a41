"""Where a value occurs in a large text, as whole words and whatever its case."""

from __future__ import annotations

import re

_WORD = re.compile(r"\w+")


class TextIndex:
    """A text that is asked many times. Most fresh values hold a word that it does not have: those cost nothing."""

    def __init__(self, text: str) -> None:
        lowered = text.lower()
        # "İ" becomes two characters in lower case; then only A–Z are lowered, so that places stay places
        self._text = lowered if len(lowered) == len(text) else text.translate(_ASCII_LOWER)
        self._words = {found.group() for found in _WORD.finditer(self._text)}
        self._known: dict[str, tuple[int, ...]] = {}

    def places(self, value: str) -> tuple[int, ...]:
        """Character offsets at which `value` begins. Words in a value may have any white space between them.

        ``17`` does not occur in ``1705``, nor ``birch`` in ``birchwood``.
        """
        wanted = value.strip().lower()
        if not wanted:
            return ()
        if not self._words.issuperset(_WORD.findall(wanted)):
            return ()
        if wanted not in self._known:
            self._known[wanted] = self._find(wanted)
        return self._known[wanted]

    def _find(self, wanted: str) -> tuple[int, ...]:
        pattern = re.compile(r"\s+".join(re.escape(part) for part in wanted.split()))
        return tuple(found.start() for found in pattern.finditer(self._text) if self._is_whole(found))

    def _is_whole(self, found: re.Match[str]) -> bool:
        begin, end = found.span()
        text = self._text
        runs_on_before = begin > 0 and _is_word(text[begin]) and _is_word(text[begin - 1])
        runs_on_after = end < len(text) and _is_word(text[end - 1]) and _is_word(text[end])
        return not runs_on_before and not runs_on_after


_ASCII_LOWER = {code: code + 32 for code in range(ord("A"), ord("Z") + 1)}


def _is_word(letter: str) -> bool:
    return letter.isalnum() or letter == "_"
