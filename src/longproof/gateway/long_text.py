"""Token ids of a long text, a stretch at a time, and no stretch twice.

A conversation's next turn repeats all that was said before, and a tokenizer needs two seconds for a million tokens. So
a text is cut into stretches of `STRIDE_CHARS`, and what a stretch became is remembered under a digest of all text up to
its end (`text_memory`). A tokenizer is not additive, though: a cut changes the tokens around it. Hence

    text      ├──────────────── stride k ───────────────┤├──────────── stride k + 1 ────
    tokens     …  t  t  t  t  t  t  t  t  t │ t  t  t    ╎
                        └── overlap ──────┘ └─ margin ─┘ cut: these few may be wrong
                        ▲                   ▲
                   the next window     settled: these are kept
                   starts here

and the next window has to say the same again: the last half of the overlap must come out as the same ids at the same
places, which shows that the tokenizer has forgotten where the window began. Where it does not (a pretoken longer than a
stride, say), the text is encoded in one piece, as if there were no memory. So the result is always what the tokenizer
makes of the whole text; tests hold one against the other.

Everything runs in a worker thread. The tokenizer itself (Rust) lets the event loop run; stretches keep the rest short:
reading the ids of a million tokens at once would hold the interpreter for 20 ms and more.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from longproof.gateway.chat_template import Uncountable
from longproof.gateway.text_memory import Stretch, TextMemory, digest

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer

STRIDE_CHARS = 8_192
_MARGIN_CHARS = 128
_OVERLAP_TOKENS = 24
_AGREEING_TOKENS = 12
LONGEST_PIECE_CHARS = 512 << 10
"""What is encoded in one piece at most: it takes some 300 bytes of memory per character."""


class Unstretchable(Uncountable):
    """A text that is too long for one piece, and whose stretches do not agree. Nobody should be made to encode it."""


class LongText:
    """Encodes with one tokenizer; special tokens that are written out are read as such, none is added. Thread-safe."""

    def __init__(self, tokenizer: Tokenizer, memory: TextMemory, *, stride_chars: int = STRIDE_CHARS) -> None:
        self._tokenizer = tokenizer
        self._memory = memory
        self._stride = stride_chars
        self.in_one_piece = 0
        """Texts longer than a stride for which windows did not agree."""

    def encode(self, text: str) -> array[int]:
        """Ids of the whole text. Raises Unstretchable."""
        if len(text) <= self._stride:
            return array("I", self._encoding(text).ids)
        ids = self._by_strides(text)
        if ids is None:
            if len(text) > LONGEST_PIECE_CHARS:
                raise Unstretchable(f"{len(text):,} characters without a place where their tokens settle")
            self.in_one_piece += 1
            return array("I", self._encoding(text).ids)
        return ids

    def _by_strides(self, text: str) -> array[int] | None:
        ids: array[int] = array("I")
        name, start = b"", 0
        last: Stretch | None = None
        while start + self._stride < len(text):
            end = start + self._stride
            name = digest(name, text[start:end])
            known = self._memory.get(name)
            if known is None:
                known = self._stretch(text, end, ids, last)
                if known is None:
                    return None
                self._memory.put(name, known)
            ids.extend(known.ids)
            last, start = known, end
        tail = self._continued(text[last.restart_char if last else 0 :], ids, last)
        if tail is None:
            return None
        ids.extend(tail[0].ids[tail[1] :])
        return ids

    def _stretch(self, text: str, end: int, before: array[int], last: Stretch | None) -> Stretch | None:
        """What the window that ends at `end` settles beyond `before`. None: it does not agree with what was settled, or
        settles too little."""
        window_start = last.restart_char if last else 0
        found = self._continued(text[window_start:end], before, last)
        if found is None:
            return None
        encoding, first = found
        # a token settles when it ends well before the cut, and begins where the one before it has ended: the bytes of
        # one character may be several tokens that share a place
        latest = end - window_start - _MARGIN_CHARS
        index = len(encoding) - 1
        while index > first and not self._clean(encoding, index, latest):
            index -= 1
        if index - first < _OVERLAP_TOKENS:
            return None
        restart = index - _OVERLAP_TOKENS
        while restart > 0 and not self._clean(encoding, restart, latest):
            restart -= 1
        return Stretch(
            ids=array("I", encoding.ids[first:index]),
            restart_char=window_start + _start(encoding, restart),
            settled_char=window_start + _start(encoding, index),
            overlap_tokens=index - restart,
        )

    def _continued(self, window: str, before: array[int], last: Stretch | None) -> tuple[Encoding, int] | None:
        """The encoding of a window, and the index of its first token that is not settled yet."""
        encoding = self._encoding(window)
        if last is None:
            return encoding, 0
        place = last.settled_char - last.restart_char
        settled = before[-_AGREEING_TOKENS:].tolist()
        # the window's own first tokens may be cut otherwise than in the whole text, by one or two
        for index in range(max(last.overlap_tokens - 4, _AGREEING_TOKENS), last.overlap_tokens + 5):
            if index >= len(encoding):
                break
            if _start(encoding, index) == place and _ids(encoding, index - _AGREEING_TOKENS, index) == settled:
                return encoding, index
        return None

    def _clean(self, encoding: Encoding, index: int, latest: int) -> bool:
        start, end = _chars(encoding, index)
        return end <= latest and index > 0 and start >= _chars(encoding, index - 1)[1]

    def _encoding(self, text: str) -> Encoding:
        # `encode` holds the interpreter while it works (tokenizers 0.23), `encode_batch` does not
        return self._tokenizer.encode_batch([text], add_special_tokens=False)[0]


def _chars(encoding: Encoding, index: int) -> tuple[int, int]:
    found = encoding.token_to_chars(index)
    return (0, 0) if found is None else found


def _start(encoding: Encoding, index: int) -> int:
    return _chars(encoding, index)[0]


def _ids(encoding: Encoding, start: int, end: int) -> list[int]:
    return encoding.ids[start:end]
