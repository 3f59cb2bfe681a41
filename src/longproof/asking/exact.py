"""From wishes to a prompt of exactly that length: as text that the server counts, or as ids that need no counting."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from longproof.asking.filler import filler_ids, filler_text
from longproof.asking.frame import Frame
from longproof.asking.layout import Insert, Piece, Stretch, filler_tokens, in_order, lay_out, lengthen, shortest
from longproof.asking.lexicon import Lexicon
from longproof.asking.tally import Tally, usage_count
from longproof.domain.request import CountSource, IdsPrompt, Prompt, TokenCount
from longproof.engines.base import Engine

_MOST_PADDING_TOKENS = 256
"""Filler this short may stand in front as bare words where sentences between the inserts cannot hit the length."""
_ROUNDS = 8
_PATIENT_ROUNDS = 2
_PREDICTED = "usage of shorter prompts with the same beginning, inserts and question, and one token for each added word"


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltPrompt:
    """A prompt and its length; `count.source` says who counted."""

    prompt: Prompt
    count: TokenCount


class LengthUnproven(Exception):  # noqa: N818 - not an error: a probe notes it and goes on
    """No prompt of exactly the wanted length can be promised. `closest_tokens`: the nearest that can, None = not
    known.
    """

    def __init__(self, why: str, *, wanted_tokens: int, closest_tokens: int | None = None) -> None:
        super().__init__(why)
        self.why = why
        self.wanted_tokens = wanted_tokens
        self.closest_tokens = closest_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """One prompt's wishes, and the seeds that its words are drawn with."""

    total_tokens: int
    nonce: str
    inserts: tuple[Insert, ...]
    question: str
    body_seed: str
    tail_seed: str

    def chance(self, stretch: Stretch, attempt: int) -> Random:
        """Where the words of a stretch come from. Where words cost different amounts in different company, correcting
        by the difference can go on for ever: later attempts draw the tail anew, and correct that once as well."""
        draw = attempt // _PATIENT_ROUNDS
        redrawn = f"/{draw}" if draw else ""
        return Random(
            f"{self.tail_seed}{redrawn}/{stretch.index}" if stretch.in_tail else f"{self.body_seed}/{stretch.index}"
        )

    def unproven(self, why: str, closest_tokens: int | None = None) -> LengthUnproven:
        """The refusal to promise this length."""
        return LengthUnproven(why, wanted_tokens=self.total_tokens, closest_tokens=closest_tokens)


class TextWriter:
    """Writes prompts as text for one server: counted while the filler is short, then lengthened, then counted whole."""

    def __init__(self, *, frame: Frame, lexicon: Lexicon, tally: Tally) -> None:
        self._frame = frame
        self._lexicon = lexicon
        self._tally = tally
        self._counted: dict[tuple[str, tuple[Insert, ...], str, int], int] = {}

    async def write(self, wanted: Wanted) -> BuiltPrompt:
        """The prompt. Raises LengthUnproven, EngineMisbehaved."""
        without_filler = await self._count_short(wanted, in_order(wanted.inserts))
        spare = wanted.total_tokens - without_filler
        if spare < 0:
            raise wanted.unproven(
                f"{wanted.total_tokens} tokens do not hold template, nonce, inserts and question: these alone are "
                f"{without_filler}",
                without_filler,
            )
        pieces = lay_out(spare, wanted.inserts)
        if pieces is not None:
            short = shortest(pieces)
            predicted = await self._count_short(wanted, short) - filler_tokens(short) + filler_tokens(pieces)
            pieces = lengthen(pieces, wanted.total_tokens - predicted)
        if pieces is not None:
            try:
                return await self._prove(
                    wanted,
                    lambda extra, attempt: self._spread(wanted, lengthen(pieces, extra, correction=extra), attempt),
                )
            except LengthUnproven:
                if spare > _MOST_PADDING_TOKENS:
                    raise  # so many bare words in front would push every insert from its depth
        return await self._prove(wanted, lambda extra, attempt: self._padded(wanted, spare + extra, attempt))

    async def _prove(self, wanted: Wanted, write: Callable[[int, int], Prompt | None]) -> BuiltPrompt:
        """Writes, counts and corrects until the server's own count is the wanted one. `write` takes the correction in
        tokens.
        """
        extra, closest = 0, None
        for attempt in range(_ROUNDS):
            prompt = write(extra, attempt)
            if prompt is None:
                break
            if not self._tally.counts_unsent:
                return BuiltPrompt(prompt=prompt, count=usage_count(wanted.total_tokens, how=_PREDICTED))
            count = await self._tally.prompt(prompt)
            if count.total == wanted.total_tokens:
                return BuiltPrompt(prompt=prompt, count=count)
            closest = count.total
            extra += wanted.total_tokens - closest
        raise wanted.unproven(
            f"adding and removing one-token words led to {closest} tokens, never to that many", closest
        )

    async def _count_short(self, wanted: Wanted, pieces: tuple[Piece, ...]) -> int:
        """Tokens of the prompt with these few pieces. Remembered: a repeat of a prompt must not touch the server
        again.
        """
        key = (wanted.nonce, wanted.inserts, wanted.question, len(pieces))
        if key not in self._counted:
            front = wanted.nonce if self._tally.counts_unsent else self._sibling(wanted.nonce)
            prompt = self._frame.prompt(front, self._rest(wanted, pieces))
            self._counted[key] = (await self._tally.prompt(prompt)).total
        return self._counted[key]

    def _sibling(self, nonce: str) -> str:
        """Another nonce of the same cost: what is sent to be counted must not warm the beginning of what is
        measured.
        """
        first, *others = nonce.split(" ")
        stock = self._lexicon.words
        chance = Random(f"sibling/{nonce}")
        return " ".join([first, *(chance.choice(stock) if word in stock else word for word in others)])

    def _spread(self, wanted: Wanted, pieces: tuple[Piece, ...] | None, attempt: int) -> Prompt | None:
        return None if pieces is None else self._frame.prompt(wanted.nonce, self._rest(wanted, pieces, attempt))

    def _padded(self, wanted: Wanted, tokens: int, attempt: int) -> Prompt | None:
        """Too little filler for sentences: single words right after the nonce."""
        if tokens < 0:
            return None
        chance = wanted.chance(Stretch(tokens=tokens, index=0, in_tail=True), attempt)
        words = chance.choices(self._lexicon.words, k=tokens)
        return self._frame.prompt(" ".join([wanted.nonce, *words]), self._rest(wanted, in_order(wanted.inserts)))

    def _rest(self, wanted: Wanted, pieces: tuple[Piece, ...], attempt: int = 0) -> str:
        texts = [
            piece
            if isinstance(piece, str)
            else filler_text(
                piece.tokens,
                lexicon=self._lexicon,
                chance=wanted.chance(piece, attempt),
                correction=piece.correction,
            )
            for piece in pieces
        ]
        return "\n\n".join([*texts, wanted.question] if wanted.question else texts)


async def write_ids(wanted: Wanted, *, engine: Engine, lexicon: Lexicon) -> BuiltPrompt:
    """The prompt as ids. Below the nonce's own length the nonce is cut. Raises LengthUnproven, EngineMisbehaved."""
    nonce_ids = await engine.tokenize(wanted.nonce)
    insert_ids = {insert.text: await engine.tokenize(f"\n\n{insert.text}\n\n") for insert in wanted.inserts}
    question_ids = await engine.tokenize(f"\n\n{wanted.question}") if wanted.question else []
    asked = sum(len(insert_ids[insert.text]) for insert in wanted.inserts) + len(question_ids)
    if wanted.total_tokens < 1:
        raise wanted.unproven("no prompt is shorter than one token", 1)
    if asked and wanted.total_tokens < len(nonce_ids) + asked:
        raise wanted.unproven(
            f"nonce, inserts and question alone are {len(nonce_ids) + asked} tokens", len(nonce_ids) + asked
        )
    spare = max(wanted.total_tokens - len(nonce_ids) - asked, 0)
    pieces = lay_out(spare, wanted.inserts)
    if pieces is None:
        pieces = (Stretch(tokens=spare, index=0, in_tail=True), *in_order(wanted.inserts))
    ids = nonce_ids[: wanted.total_tokens]
    for piece in pieces:
        if isinstance(piece, str):
            ids.extend(insert_ids[piece])
        else:
            ids.extend(filler_ids(piece.tokens, lexicon=lexicon, chance=wanted.chance(piece, 0)))
    ids.extend(question_ids)
    count = TokenCount(
        total=len(ids), content=len(ids), template=0, special=0, source=CountSource.IDS, how="the number of ids sent"
    )
    return BuiltPrompt(prompt=IdsPrompt(ids=tuple(ids)), count=count)
