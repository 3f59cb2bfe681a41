"""Prompts of an exact length, as the server under test counts it, each with a fresh nonce at its very front.

    nonce ─ filler ─ inserts ─ question     everything but the filler is counted by the server while the filler is short
                                            filler of one-token words makes up the rest (predicted)
                                            the server counts the whole (proven), or the tail is corrected and counted
                                            again

A server that cannot count is calibrated with small requests (`tally.UsageTally`). There the last count stays a
prediction, marked CountSource.USAGE: counting the prompt itself would mean sending it, and it would no longer be cold.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from longproof.asking.exact import BuiltPrompt, LengthUnproven, TextWriter, Wanted, write_ids
from longproof.asking.frame import Frame, choose_frame
from longproof.asking.layout import Insert
from longproof.asking.lexicon import Lexicon, NoPlainWords, learn_ids, learn_lexicon
from longproof.asking.stock import PromptStock
from longproof.asking.tally import Tally, tally_for
from longproof.asking.words import SHORTEST_WORDS, WORDS
from longproof.domain.request import Route
from longproof.engines.base import Engine
from longproof.errors import EngineDied, EngineMisbehaved, EngineUnreachable

__all__ = ["BuiltPrompt", "Insert", "LengthUnproven", "PromptBuilder"]

_NONCE_WORDS = 6


class PromptBuilder:
    """Builds prompts for one engine and one route. Same seed, nonce and server → same prompt.

    Learns the server's one-token words at the first call. Raises LengthUnproven for a length that cannot be promised,
    also where the server refuses to count; EngineUnreachable and EngineDied pass.
    """

    def __init__(self, engine: Engine, *, route: Route, seed: int, salt: str) -> None:
        self._engine = engine
        self._route = route
        self._seed = seed
        self._salt = salt
        self._tally: Tally = tally_for(engine, route)
        self._learning = asyncio.Lock()
        self._frame: Frame | None = None
        self._lexicon: Lexicon | None = None
        self._writer: TextWriter | None = None

    def nonce(self, key: str) -> str:
        """Six plain words (42 bits) from the session's salt and the question's key: no earlier session sent them."""
        digest = hashlib.sha256(f"{self._salt}/{key}".encode()).digest()
        return " ".join(WORDS[byte % SHORTEST_WORDS] for byte in digest[:_NONCE_WORDS])

    async def exact(
        self,
        total_tokens: int,
        *,
        nonce: str,
        inserts: Sequence[Insert] = (),
        question: str = "",
        tail_nonce: str | None = None,
    ) -> BuiltPrompt:
        """A prompt of `total_tokens` as the server counts it, template and special tokens included.

        Chat prompts are messages; the completions route gets ids where the engine takes them, else text. `tail_nonce`
        redraws the tail of the filler (its last max(64, 1/16) tokens); everything before stays byte for byte. Inserts
        and question are never cut. Very short prompts put their filler right after the nonce.
        """
        wanted = self._wanted(total_tokens, nonce, tuple(inserts), question, tail_nonce)
        with _explained(wanted):
            if self._sends_ids:
                return await write_ids(wanted, engine=self._engine, lexicon=await self._words())
            if self._writer is None:
                self._writer = TextWriter(frame=await self._front(), lexicon=await self._words(), tally=self._tally)
            return await self._writer.write(wanted)

    async def ids(self, total_tokens: int, *, nonce: str) -> BuiltPrompt:
        """`total_tokens` ids of plain words (never special ones), the nonce's first; below its length the nonce is cut.

        Raises LengthUnproven also where the engine takes no ids.
        """
        wanted = self._wanted(total_tokens, nonce, (), "", None)
        if not self._engine.capabilities.token_ids:
            raise wanted.unproven("the server takes no token ids")
        with _explained(wanted):
            return await write_ids(wanted, engine=self._engine, lexicon=await self._words())

    async def stock(self, total_tokens: int, *, key: str) -> PromptStock:
        """As many prompts of `total_tokens` as anybody wants, at the price of proving one. Same errors as `exact`."""
        first, *_ = self.nonce(key).split(" ")
        lexicon = await self._words()
        digest = hashlib.sha256(f"{self._salt}/{key}/stock".encode()).digest()
        drawn = [lexicon.words[byte % len(lexicon.words)] for byte in digest[: _NONCE_WORDS - 1]]
        nonce = " ".join([first, *drawn])
        built = await self.exact(total_tokens, nonce=nonce)
        ids = len(await self._engine.tokenize(nonce)) if self._sends_ids else 0
        return PromptStock(
            built=built,
            nonce=nonce,
            words=lexicon.words,
            word_ids=lexicon.word_ids,
            nonce_ids=min(ids, total_tokens),
        )

    async def minimum_tokens(self) -> int:
        """A length that holds the template and any nonce, and little else: one nonce's count and a token more for
        each word.

        1 where ids are sent. Raises LengthUnproven where nobody counts.
        """
        if self._sends_ids:
            return 1
        nonce = self.nonce("minimum")
        with _explained(self._wanted(1, nonce, (), "", None)):
            frame = await self._front()
            return (await self._tally.prompt(frame.prompt(nonce, ""))).total + _NONCE_WORDS

    async def most_shared_tokens(self) -> int:
        """How long a beginning two prompts with different nonces can share at most: the template's, and the nonce's own
        length.

        Not exact, but never too small: a server that reports more cached tokens for a fresh prompt is wrong. Raises
        LengthUnproven where nobody counts.
        """
        if not self._sends_ids:
            return await self.minimum_tokens()
        nonce = self.nonce("minimum")
        with _explained(self._wanted(1, nonce, (), "", None)):
            return len(await self._engine.tokenize(nonce)) + _NONCE_WORDS

    @property
    def _sends_ids(self) -> bool:
        return self._route is Route.COMPLETIONS and self._engine.capabilities.token_ids

    def _wanted(
        self, total_tokens: int, nonce: str, inserts: tuple[Insert, ...], question: str, tail_nonce: str | None
    ) -> Wanted:
        seed = f"{self._seed}/{nonce}"
        return Wanted(
            total_tokens=total_tokens,
            nonce=nonce,
            inserts=inserts,
            question=question,
            body_seed=f"{seed}/body",
            tail_seed=f"{seed}/tail/{tail_nonce or ''}",
        )

    async def _front(self) -> Frame:
        async with self._learning:
            if self._frame is None:
                self._frame = await choose_frame(self._engine, self._route, self._tally)
            return self._frame

    async def _words(self) -> Lexicon:
        async with self._learning:
            if self._lexicon is None:
                lexicon = await learn_lexicon(self._tally.text, most_words=self._tally.words)
                if self._engine.capabilities.token_ids:
                    word_ids, period_id = await learn_ids(self._engine.tokenize, lexicon)
                    lexicon = replace(lexicon, word_ids=word_ids, period_id=period_id)
                self._lexicon = lexicon
            return self._lexicon


@contextmanager
def _explained(wanted: Wanted) -> Generator[None]:
    """Turns what keeps a length from being promised into LengthUnproven; a server that is gone stays that."""
    try:
        yield
    except NoPlainWords as problem:
        raise wanted.unproven(str(problem)) from problem
    except (EngineUnreachable, EngineDied):
        raise
    except EngineMisbehaved as problem:
        raise wanted.unproven(f"the server would not count: {problem.what}") from problem
