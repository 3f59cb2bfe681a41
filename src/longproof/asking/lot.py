"""Requests of a stock whose bodies are made when they leave, from one body that they share.

    request i   {"prompt":[ nonce i , ………… megabytes of filler ………… ],"max_tokens":…}
                            └ its own ┘└─────── in memory once, for all of them ──────┘

Prompts as whole values would be 14 MB for each request of a million ids, held until its answer is over.
"""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import dataclass

from longproof.asking.context import ProbeContext, ids_bytes, prompt_bytes
from longproof.asking.stock import PromptStock
from longproof.engines.base import Engine
from longproof.engines.request_body import Prepared, Series

_INLINE_BYTES = 256 * 1024
"""A hash over more than this takes longer than a glance: it is made beside the event loop."""


class Lot:
    """Requests of `stock` that are alike but for their prompts' nonces. `cold`: ask the engine not to reuse anything,
    where it has that switch."""

    def __init__(
        self, stock: PromptStock, *, max_tokens: int, timeout_s: float, cold: bool = False, seed: int = 0
    ) -> None:
        self.stock = stock
        self._proved = stock.proved(max_tokens=max_tokens, timeout_s=timeout_s, cold=cold, seed=seed)
        self._series: Series | None = None
        self._made_without: tuple[str, ...] = ()
        self._making = asyncio.Lock()
        self._around: tuple[bytes, bytes] | None = None

    def request(self, i: int) -> LotRequest:
        """The i-th, which costs nothing until it is prepared."""
        return LotRequest(lot=self, i=i, exact_output=self._proved.exact_output)

    async def prepare(self, engine: Engine, i: int) -> Prepared:
        """The i-th as it goes out. A field that the engine has turned down meanwhile is left out."""
        async with self._making:
            refused = engine.capabilities.fields_refused
            if self._series is None or self._made_without != refused:
                self._series = Series(await engine.prepare(self._proved), self.stock.opening)
                self._made_without = refused
        return self._series.prepared(self.stock.opening_of(i))

    async def prompt_sha256(self, i: int) -> str:
        """As `context.prompt_sha256` of the i-th prompt."""
        if self._around is None:
            whole = b"".join(prompt_bytes(self.stock.built.prompt))
            opening = _bytes(self.stock.opening)
            at = whole.index(opening)
            self._around = whole[:at], whole[at + len(opening) :]
        before, after = self._around
        digest = hashlib.sha256(before + _bytes(self.stock.opening_of(i)))
        if len(after) <= _INLINE_BYTES:
            digest.update(after)
        else:
            await asyncio.to_thread(digest.update, after)
        return digest.hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class LotRequest:
    """One request of a lot."""

    lot: Lot
    i: int
    exact_output: bool = True


def lot_of(ctx: ProbeContext, stock: PromptStock, *, max_tokens: int | None = None) -> Lot:
    """Requests of a stock with the protocol's time limit and seed, and its output where none is given; cold where the
    engine has that switch."""
    return Lot(
        stock,
        max_tokens=ctx.protocol.output_tokens if max_tokens is None else max_tokens,
        timeout_s=ctx.protocol.request_timeout_s,
        cold=ctx.engine.capabilities.cold,
        seed=ctx.protocol.seed,
    )


def _bytes(opening: str | tuple[int, ...]) -> bytes:
    return opening.encode() if isinstance(opening, str) else ids_bytes(opening)
