"""The fake model: everything it says is a function of the token ids it really read, and of nothing else.

It answers canaries: where the text that was read ends in a question such as

    What are the HEAD, MIDDLE and TAIL codes? Answer with the three numbers only.

it answers with the numbers of the sentences ``The HEAD code is 4821.`` that it read, in the order of the question,
and leaves out those it did not read. Otherwise it talks in everyday words, seeded by what it read, for as long as it
is let. Log probabilities are seeded the same way, so a prompt whose lost part alone changes gives the same ones.
"""

from __future__ import annotations

import hashlib
import random
import re
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from longproof.testing.fake_tokenizer import FIRST_BYTE, tokenizer

_CODE = re.compile(r"The ([A-Z]+) code is (\d+)\.")
_QUESTION = re.compile(r"What are the ([A-Z, and]+) codes\?")
_QUESTION_WITHIN_TOKENS = 200
_KNOWS_NOTHING = "I do not know any code."
_MULTIBYTE = tuple(FIRST_BYTE + byte for byte in "é".encode())
MAX_TOP_LOGPROBS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenChoice:
    """A possible token and its log probability (natural logarithm, ≤ 0)."""

    token: int
    logprob: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Speech:
    """What the model says: token ids, and whether it ended by itself ("stop") or was stopped ("length")."""

    tokens: tuple[int, ...]
    ended: bool
    digest: bytes

    def choices(self, position: int, count: int) -> tuple[TokenChoice, ...]:
        """The chosen token first, then `count - 1` others, most likely first. A function of the digest and the
        position."""
        noise = hashlib.sha512(self.digest + position.to_bytes(4, "big")).digest()
        words = tokenizer().everyday_ids
        chosen = self.tokens[position]
        logprob = -(noise[0] + 1) / 512
        found = [TokenChoice(token=chosen, logprob=logprob)]
        for k in range(1, min(count, MAX_TOP_LOGPROBS)):
            logprob -= (noise[k] + 1) / 128
            index = int.from_bytes(noise[20 + 2 * k : 22 + 2 * k], "big")
            taken = {choice.token for choice in found}
            other = next(
                word for word in (words[(index + j) % len(words)] for j in range(len(taken) + 1)) if word not in taken
            )
            found.append(TokenChoice(token=other, logprob=logprob))
        return tuple(found)


def speak(
    read: Sequence[int], *, max_tokens: int, ignore_end: bool, multibyte: bool = False, words: str | None = None
) -> Speech:
    """What the model says after reading `read`: at most `max_tokens` tokens, exactly that many with `ignore_end`.

    Without a canary question or given `words` it never ends by itself. `multibyte` mixes characters of two bytes (two
    tokens each) into its own words.
    """
    digest = hashlib.sha256(array("I", read).tobytes()).digest()
    answer = answer_to(read) if words is None else words
    tokens = [] if answer is None else tokenizer().encode(answer)
    if answer is not None and not ignore_end:
        return Speech(tokens=tuple(tokens[:max_tokens]), ended=len(tokens) < max_tokens, digest=digest)
    rng = random.Random(digest)
    everyday = tokenizer().everyday_ids
    while len(tokens) < max_tokens:
        tokens.append(rng.choice(everyday))
        if multibyte and len(tokens) + len(_MULTIBYTE) <= max_tokens:
            tokens.extend(_MULTIBYTE)
    return Speech(tokens=tuple(tokens[:max_tokens]), ended=False, digest=digest)


def answer_to(read: Sequence[int]) -> str | None:
    """The answer to a canary question at the end of what was read; None where there is no such question."""
    questions = _QUESTION.findall(tokenizer().decode(read[-_QUESTION_WITHIN_TOKENS:]))
    if not questions:
        return None
    codes = dict(_CODE.findall(tokenizer().decode(read)))
    names = [name for name in re.findall(r"[A-Z]+", questions[-1]) if name in codes]
    return " ".join(codes[name] for name in names) or _KNOWS_NOTHING
