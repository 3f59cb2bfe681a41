"""Writes a window's records while it runs: what is seen is on disk a moment later, and nobody who measures waits for
the disk."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Self

from longproof.asking.context import Cell, ProbeContext
from longproof.asking.sampler import Sampler, sampling
from longproof.domain.events import EngineSample
from longproof.evidence.records import Body, RequestBody, SamplesBody

_FLUSH_SAMPLES_S = 2.0


class Recorder:
    """An open window's way to the journal. `add` never waits; leaving the context writes what is left."""

    def __init__(self, ctx: ProbeContext, *, probe: str, cell: Cell, prefix: str) -> None:
        self._ctx = ctx
        self._probe = probe
        self._cell = cell
        self._prefix = prefix
        self._queue: asyncio.Queue[tuple[str, Body] | None] = asyncio.Queue()
        self._writer: asyncio.Task[None] | None = None
        self._sample_records = 0
        self._sampler: Sampler | None = None

    async def __aenter__(self) -> Self:
        self._writer = asyncio.create_task(self._write())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._queue.put_nowait(None)
        if self._writer is not None:
            await self._writer

    def add(self, name: str, body: RequestBody) -> None:
        """A request that is over."""
        self._queue.put_nowait((f"{self._prefix}{name}", body))

    @property
    def sampled(self) -> int:
        """Samples so far."""
        return 0 if self._sampler is None else self._sampler.sampled

    @property
    def last(self) -> EngineSample | None:
        """The latest sample."""
        return None if self._sampler is None else self._sampler.last

    async def sample(self, every_s: float) -> None:
        """Keeps the engine's metrics, scraped every so many seconds, until cancelled."""
        async with sampling(self._ctx.engine, every_s) as sampler:
            self._sampler = sampler
            try:
                while True:
                    await asyncio.sleep(_FLUSH_SAMPLES_S)
                    self._keep(sampler)
            finally:
                self._keep(sampler)

    def _keep(self, sampler: Sampler) -> None:
        samples, failed = sampler.take(), sampler.take_failed()
        if not samples and not failed:
            return
        body = SamplesBody(probe=self._probe, cell=self._cell, samples=samples, failed=failed)
        self._queue.put_nowait((f"{self._prefix}samples/{self._sample_records}", body))
        self._sample_records += 1

    async def _write(self) -> None:
        ended = False
        while not ended:
            entries = [await self._queue.get()]
            while not self._queue.empty():
                entries.append(self._queue.get_nowait())
            ended = None in entries
            batch: Sequence[tuple[str, Body]] = [entry for entry in entries if entry is not None]
            if not batch:
                continue
            await asyncio.to_thread(self._ctx.journal.append_all, batch)
            for key, body in batch:
                if isinstance(body, RequestBody):
                    self._ctx.progress.finished(key, body)
