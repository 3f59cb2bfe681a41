"""A window under load, put together again from the records that it left."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from longproof.domain.events import EngineSample
from longproof.evidence.records import Record, RequestBody, SamplesBody, WindowBody


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A window that ran to its end: its own record, its requests with their keys and the engine's samples, in order."""

    key: str
    body: WindowBody
    requests: tuple[tuple[str, RequestBody], ...]
    samples: tuple[EngineSample, ...]


def window_of(key: str, body: WindowBody, records: Iterable[Record]) -> Window:
    """The window of that record, among `records`: its requests and samples have keys that begin with its prefix."""
    inside = [record for record in records if record.key.startswith(body.prefix)]
    return Window(
        key=key,
        body=body,
        requests=tuple((record.key, record.body) for record in inside if isinstance(record.body, RequestBody)),
        samples=tuple(s for record in inside if isinstance(record.body, SamplesBody) for s in record.body.samples),
    )
