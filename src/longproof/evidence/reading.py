"""Reading an evidence directory: every link and every hash is checked before anything is believed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from longproof.errors import EvidenceError
from longproof.evidence.chain import Chain, link, read_chain
from longproof.evidence.codec import decode, format_of
from longproof.evidence.disk import read_whole
from longproof.evidence.records import FORMAT, Header, Record, Seal
from longproof.evidence.seal import HEADER_NAME, RECORDS_NAME, SEAL_NAME, check_seal


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """An evidence directory as read.

    `seal` is None for a run that was killed or still goes on. `digest` is the sha256 (hex) over the seal, or over the
    header and the whole records while unsealed.
    """

    header: Header
    chain: Chain
    seal: Seal | None
    digest: str

    @property
    def records(self) -> tuple[Record, ...]:
        """All records, in order."""
        return self.chain.records

    @property
    def complete(self) -> bool:
        """Whether the protocol ran to its end; never true without a seal."""
        return self.seal is not None and self.seal.complete


def holds_run(directory: Path) -> bool:
    """Whether a run was begun in this directory."""
    return (directory / HEADER_NAME).exists()


def read(directory: Path, *, log_may_grow: bool = False) -> Stored:
    """Reads and verifies an evidence directory. Raises EvidenceError naming the file and line that cannot be trusted.

    With a seal, header, records and engine log are held byte by byte. Without one the chain holds the header and every
    record but the last. `log_may_grow`: an interrupted run is being resumed, and its engine may write its log already.
    """
    header_bytes = read_whole(directory, HEADER_NAME)
    _check_format(header_bytes, directory / HEADER_NAME)
    header = decode(Header, header_bytes, where=str(directory / HEADER_NAME))
    records_bytes = read_whole(directory, RECORDS_NAME)
    chain = read_chain(records_bytes, header=header_bytes, where=str(directory / RECORDS_NAME))
    if not (directory / SEAL_NAME).exists():
        digest = link(header_bytes + records_bytes[: chain.length_bytes])
        return Stored(header=header, chain=chain, seal=None, digest=digest)
    seal_bytes = read_whole(directory, SEAL_NAME)
    _check_format(seal_bytes, directory / SEAL_NAME)
    seal = decode(Seal, seal_bytes, where=str(directory / SEAL_NAME))
    check_seal(directory, seal, records=len(chain.records), log_may_grow=log_may_grow)
    return Stored(header=header, chain=chain, seal=seal, digest=link(seal_bytes))


def _check_format(data: bytes, path: Path) -> None:
    found = format_of(data, where=str(path))
    if found != FORMAT:
        raise EvidenceError(
            f"{path} has format {found}; this longproof reads format {FORMAT}",
            advice="read it with the longproof version that wrote it, or prove again",
        )
