"""Writes a window's records while it runs: what is seen is on disk a moment later, and nobody who measures waits for
the disk."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Self

from longproof.asking.context import Cell, ProbeContext
from longproof.domain.events import EngineSample
from longproof.errors import EngineMisbehaved
from longproof.evidence.records import Body, RequestBody, SamplesBody

_FLUSH_SAMPLES_NS = 2_000_000_000
_KEPT_OUT = ("_bucket", "_created")
"""Of a histogram its sum and count are kept: buckets by the hundred, several times a second, would be the evidence."""


class Recorder:
    """An open window's way to the journal. `add` never waits; leaving the context writes what is left."""

    def __init__(self, ctx: ProbeContext, *, probe: str, cell: Cell, prefix: str) -> None:
        self._ctx = ctx
        self._probe = probe
        self._cell = cell
        self._prefix = prefix
        self._queue: asyncio.Queue[tuple[str, Body] | None] = asyncio.Queue()
        self._writer: asyncio.Task[None] | None = None
        self._samples: list[EngineSample] = []
        self._failed = 0
        self._sample_records = 0

    async def __aenter__(self) -> Self:
        self._writer = asyncio.create_task(self._write())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._flush_samples()
        self._queue.put_nowait(None)
        if self._writer is not None:
            await self._writer

    def add(self, name: str, body: RequestBody) -> None:
        """A request that is over."""
        self._queue.put_nowait((f"{self._prefix}{name}", body))

    async def sample(self, every_s: float) -> None:
        """Scrapes the engine's metrics again and again, until cancelled."""
        clock = self._ctx.clock
        flushed_ns = clock.now_ns()
        while True:
            try:
                self._samples.append(_slim(await self._ctx.engine.sample()))
            except EngineMisbehaved:
                self._failed += 1
            if clock.now_ns() - flushed_ns >= _FLUSH_SAMPLES_NS:
                self._flush_samples()
                flushed_ns = clock.now_ns()
            await asyncio.sleep(every_s)

    def _flush_samples(self) -> None:
        if not self._samples and not self._failed:
            return
        body = SamplesBody(probe=self._probe, cell=self._cell, samples=tuple(self._samples), failed=self._failed)
        self._queue.put_nowait((f"{self._prefix}samples/{self._sample_records}", body))
        self._sample_records += 1
        self._samples, self._failed = [], 0

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


def _slim(sample: EngineSample) -> EngineSample:
    kept = {name: value for name, value in sample.values.items() if not name.partition("{")[0].endswith(_KEPT_OUT)}
    return EngineSample(
        at_ns=sample.at_ns, running=sample.running, waiting=sample.waiting, kv_usage=sample.kv_usage, values=kept
    )
