"""Read-only view of an evidence directory's records that findings work on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from longproof.evidence.records import CountBody, Header, NoteBody, Record, RequestBody


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceView:
    """Header and records, with the two look-ups every finding needs."""

    header: Header
    records: tuple[Record, ...]
    sealed: bool
    complete: bool
    digest: str

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
