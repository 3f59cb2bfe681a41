"""Read-only view of an evidence directory's records that findings work on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from longproof.domain.measure import value_or_none
from longproof.evidence.records import CountBody, Header, NoteBody, Record, RequestBody, WindowBody
from longproof.evidence.windows import Window, window_of


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceView:
    """Header and records, with the two look-ups every finding needs."""

    header: Header
    records: tuple[Record, ...]
    sealed: bool
    complete: bool
    digest: str

    def all_requests(self) -> Iterator[tuple[str, RequestBody]]:
        """(key, body) of every request of every probe, in order."""
        for record in self.records:
            if isinstance(record.body, RequestBody):
                yield record.key, record.body

    def limit_tokens(self) -> int | None:
        """The longest prompt + output one sequence may have by the server's own word, None = it does not say."""
        deployment = self.header.deployment
        slot = value_or_none(deployment.slot_limit_tokens)
        return slot if slot is not None else value_or_none(deployment.configured_limit_tokens)

    def requests(self, probe: str) -> Iterator[tuple[str, RequestBody]]:
        """(key, body) of a probe's requests, in order."""
        for record in self.records:
            if isinstance(record.body, RequestBody) and record.body.probe == probe:
                yield record.key, record.body

    def counts(self, probe: str) -> Iterator[tuple[str, CountBody]]:
        """(key, body) of a probe's token counts, in order."""
        for record in self.records:
            if isinstance(record.body, CountBody) and record.body.probe == probe:
                yield record.key, record.body

    def notes(self, probe: str) -> Iterator[tuple[str, NoteBody]]:
        """(key, body) of a probe's notes, in order."""
        for record in self.records:
            if isinstance(record.body, NoteBody) and record.body.probe == probe:
                yield record.key, record.body

    def windows(self, probe: str) -> tuple[Window, ...]:
        """A probe's windows under load that ran to their end, in order. What a crash tore is not among them."""
        ended = [(r.key, r.body) for r in self.records if isinstance(r.body, WindowBody) and r.body.probe == probe]
        return tuple(window_of(key, body, self.records) for key, body in ended)
