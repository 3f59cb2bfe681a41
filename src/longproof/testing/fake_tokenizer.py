"""A deterministic, reversible tokenizer that needs no files.

Text is cut into pieces that never cross a word border, as byte-level BPE tokenizers do, and each piece is looked up
by itself:

    "Hi the 12 bado!"  →  "Hi" | " the" | " " | "1" | "2" | " bado" | "!"
                          H i     the     ␣     1     2     bado      !

So the count of a text is the sum of the counts of its words, as long as every word after the first begins with a
space. A word that is not in the vocabulary is cut greedily into the longest parts that are (syllables, then letters).
Digits are one token each. A character outside ASCII becomes its UTF-8 bytes, one token each. Ids are stable across
processes and versions of Python.

    0 … 3        special tokens
    4 … 259      bytes
    260 …        letters, punctuation and words, each without and (the words and letters) with a leading space
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterable, Sequence
from functools import cache

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|bos|>")
END_OF_TEXT, TURN_START, TURN_END, BOS = range(4)
FIRST_BYTE = len(SPECIAL_TOKENS)
FIRST_WORD = FIRST_BYTE + 256

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if loop.first and message['role'] != 'system' %}"
    "<|im_start|>system\nYou are a helpful assistant that tells the truth.<|im_end|>\n"
    "{% endif %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""ChatML with a default system message; what /props shows and what `render_chat` renders."""

# Everyday words give ordinary prompts ordinary counts; the syllable words below make the vocabulary large.
_EVERYDAY_TEXT = """
a about above after again air all alone along also always am an and animal another answer any are around as ask
assistant at away back be became because become been before began begin behind being below between big bird black blue
boat body book both bottom box boy bring brought brown build but buy by call came can car care carry cat change
children city class clear close code codes cold color come common could country cut dark day deep did different do
does dog done door down draw drink dry each early earth east easy eat end enough even ever every example eye face fact
fall family far farm fast father feel feet few field figure find fire first fish five floor fly follow food foot for
form found four free friend from front full game garden gave get girl give go gold gone good got grass great green
ground group grow had half hand happy hard has have he head hear heard heart heavy help helpful her here high hill him
his hold home horse hot hour house how hundred i ice idea if in is island it its just keep kind king knew know land
language large last late laugh lay lead learn leave left less let letter life light like line list listen little live
long look lost lot love low made make man many map mark may me mean measure men middle might mile mind minute miss
money month moon more morning most mother mountain move much music must my name near need never new next night no
north not note nothing notice now number numbers of off often oh old on once one only open or order other our out over
own page paper part pass people perhaps person picture piece place plain plan plant play point power press problem
product pull put question quick quiet rain ran reach read ready real red remember rest right river road rock room
round rule run said same sand saw say school sea second see seem seen self send sentence set seven several shape she
ship short should show side simple since sing sit six size sky sleep slow small snow so some song soon sound south
space stand star start state stay step still stone stood stop story street strong study such summer sun sure system
table tail take talk teach tell tells ten than that the their them then there these they thing think this those though
thought thousand three through time to today together told too took top toward town travel tree true truth try turn
two under unit until up upon us use user usual very voice wait walk wall want war warm was watch water way we week
weight well went were west what wheel when where which while white who whole why will wind window winter wish with
without wonder wood word work world would write year yes yet you young your
"""
_EVERYDAY = tuple(_EVERYDAY_TEXT.split())

_PIECES = re.compile(r" ?[A-Za-z]+|[0-9]| ?[!-/:-@\[-`{-~]|[\s\S]")
_SPECIALS = re.compile("(" + "|".join(re.escape(token) for token in SPECIAL_TOKENS) + ")")


def _words() -> list[str]:
    syllables = [c + v for c in "bdfgklmnprstvz" for v in "aeiou"]
    pairs = [first + second for first in syllables for second in syllables]
    plain = [*_EVERYDAY, *syllables, *pairs]
    capitals = [word.capitalize() for word in _EVERYDAY if len(word) > 1]
    return list(dict.fromkeys([*string.ascii_letters, *plain, *capitals, "HEAD", "MIDDLE", "TAIL"]))


class FakeTokenizer:
    """Text ↔ ids. One instance serves everybody (`tokenizer()`): its only state is a memo of words."""

    def __init__(self) -> None:
        words = _words()
        singles = [chr(c) for c in range(128) if not chr(c).isalpha()]
        spaced = [" " + word for word in words] + [" " + mark for mark in string.punctuation]
        self._pieces = [*words, *singles, *spaced]
        self._id_of = {piece: FIRST_WORD + i for i, piece in enumerate(self._pieces)}
        self._memo: dict[str, tuple[int, ...]] = {}

    @property
    def size(self) -> int:
        """Number of ids; every id below it can be decoded."""
        return FIRST_WORD + len(self._pieces)

    @property
    def everyday_ids(self) -> tuple[int, ...]:
        """Ids of everyday words with a leading space: what the fake model talks in."""
        return tuple(self._id_of[" " + word] for word in _EVERYDAY if len(word) > 1)

    def encode(self, text: str, *, parse_special: bool = True) -> list[int]:
        """Ids of a text, no token added. `parse_special`: the spelling of a special token becomes that token."""
        if not parse_special:
            return self._encode_plain(text)
        ids: list[int] = []
        for part in _SPECIALS.split(text):
            if part in SPECIAL_TOKENS:
                ids.append(SPECIAL_TOKENS.index(part))
            elif part:
                ids.extend(self._encode_plain(part))
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """Text of ids; incomplete UTF-8 becomes U+FFFD."""
        return self.decode_bytes(ids).decode(errors="replace")

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """UTF-8 bytes of ids. IndexError for an id that does not exist."""
        return b"".join(map(self.token_bytes, ids))

    def token_bytes(self, token: int) -> bytes:
        """UTF-8 bytes of one token."""
        if token < FIRST_BYTE:
            return SPECIAL_TOKENS[token].encode()
        if token < FIRST_WORD:
            return bytes((token - FIRST_BYTE,))
        return self._pieces[token - FIRST_WORD].encode()

    def valid(self, ids: Sequence[int]) -> bool:
        """Whether every id exists."""
        return not ids or (min(ids) >= 0 and max(ids) < self.size)

    def _encode_plain(self, text: str) -> list[int]:
        memo = self._memo
        ids: list[int] = []
        for piece in _PIECES.findall(text):
            known = memo.get(piece)
            if known is None:
                known = self._piece_ids(piece)
                if len(memo) < 100_000:  # bounds the memory that a hostile text can take
                    memo[piece] = known
            ids.extend(known)
        return ids

    def _piece_ids(self, piece: str) -> tuple[int, ...]:
        whole = self._id_of.get(piece)
        if whole is not None:
            return (whole,)
        if not piece.isascii():
            return tuple(FIRST_BYTE + byte for byte in piece.encode())
        ids: list[int] = []
        start = 0
        while start < len(piece):
            end = next(end for end in range(len(piece), start, -1) if piece[start:end] in self._id_of)
            ids.append(self._id_of[piece[start:end]])
            start = end
        return tuple(ids)


@cache
def tokenizer() -> FakeTokenizer:
    """The shared tokenizer; building its vocabulary takes a few milliseconds, once."""
    return FakeTokenizer()


def render_chat(messages: Sequence[tuple[str, str]], *, add_generation_prompt: bool = True) -> str:
    """What CHAT_TEMPLATE makes of (role, content) pairs. Written out, so that nothing waits for a template engine."""
    parts: list[str] = []
    if messages and messages[0][0] != "system":
        parts.append("<|im_start|>system\nYou are a helpful assistant that tells the truth.<|im_end|>\n")
    parts.extend(f"<|im_start|>{role}\n{content}<|im_end|>\n" for role, content in messages)
    if add_generation_prompt:
        parts.append("<|im_start|>assistant\n")
    return "".join(parts)
