"""The journal: the one writer of an evidence directory.

Journal.create(dir, header) ─▶ start_session ─▶ append … append ─▶ seal ─▶ close
          kill -9 ─▶ Journal.resume(dir) ─▶ start_session ─▶ append …
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from longproof.clock import Clock
from longproof.errors import EvidenceError
from longproof.evidence.chain import Chain, link, make_line
from longproof.evidence.codec import decode, encode
from longproof.evidence.disk import cut, not_writable, sync_directory, write_whole
from longproof.evidence.lock import DirectoryLock
from longproof.evidence.reading import Stored, holds_run, read
from longproof.evidence.records import Body, Header, Record, Seal, SessionBody
from longproof.evidence.seal import HEADER_NAME, RECORDS_NAME, SEAL_NAME, make_seal
from longproof.evidence.session import new_session


class Journal:
    """The only writer of an evidence directory. Not for several threads; a second process is kept out by a lock.

    What `get` and `records` return is what stands on disk, read back: a resumed run sees exactly what this one sees.
    """

    def __init__(self, directory: Path, header: Header, chain: Chain, lock: DirectoryLock) -> None:
        self.directory = directory
        self.header = header
        self._lock = lock
        self._records = list(chain.records)
        self._bodies: dict[str, Body] = {record.key: record.body for record in chain.records}
        self._last = chain.last
        self._length_bytes = chain.length_bytes
        self._sealed = False
        self._fd: int | None = os.open(directory / RECORDS_NAME, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)

    @classmethod
    def create(cls, directory: Path, header: Header) -> Self:
        """Begins a run: the header is on disk, whole, when this returns. EvidenceError where a run was begun before."""
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as problem:
            raise not_writable(directory, problem) from problem
        lock = DirectoryLock(directory)
        try:
            return cls(directory, header, _begin(directory, header), lock)
        except BaseException:
            lock.release()
            raise

    @classmethod
    def resume(cls, directory: Path) -> Self:
        """Continues a run that was killed or interrupted. Half a line at the end, left by a kill in the middle of a
        write, is cut; every whole line stays. EvidenceError for a complete run, a damaged one, or none."""
        read(directory, log_may_grow=True)  # before the lock: no lock file appears in a directory that holds no run
        lock = DirectoryLock(directory)
        try:
            stored = read(directory, log_may_grow=True)
            _reopen(directory, stored)
            return cls(directory, stored.header, stored.chain, lock)
        except BaseException:
            lock.release()
            raise

    @property
    def records(self) -> tuple[Record, ...]:
        """All records so far, in order."""
        return tuple(self._records)

    def get(self, key: str) -> Body | None:
        """What was recorded under a key, or None when nothing was."""
        return self._bodies.get(key)

    def append(self, key: str, body: Body) -> Record:
        """Adds one record; it is on disk (fsync) when this returns. A key that stands already is our bug:
        ValueError."""
        return self.append_all([(key, body)])[0]

    def append_all(self, entries: Sequence[tuple[str, Body]]) -> list[Record]:
        """Adds several records, in order, with one sync for all: under a load they come faster than a disk syncs.
        Either all are on disk when this returns, or the file is as it was before."""
        if self._fd is None or self._sealed:
            state = "sealed" if self._sealed else "closed"
            raise RuntimeError(f"'{entries[0][0]}' appended to a journal that is {state}")
        last, lines, added = self._last, bytearray(), list[Record]()
        for key, body in entries:
            if key in self._bodies or any(record.key == key for record in added):
                raise ValueError(f"the journal already has a record under '{key}'")
            line = make_line(len(self._records) + len(added), key, last, body)
            added.append(decode(Record, line[:-1], where=f"the new record '{key}'"))
            last = link(line[:-1])
            lines += line
        self._write(self._fd, bytes(lines))
        self._records += added
        self._bodies.update((record.key, record.body) for record in added)
        self._last = last
        self._length_bytes += len(lines)
        return added

    def start_session(self, clock: Clock) -> SessionBody:
        """Records that this process begins to write, with a fresh salt, and returns what was recorded."""
        body = new_session(clock)
        number = sum(isinstance(record.body, SessionBody) for record in self._records)
        self.append(f"session.{number}", body)
        return body

    def seal(self, complete: bool) -> Seal:
        """Writes the seal over header, records and engine log; nothing can be appended afterwards.

        `complete`: the protocol ran to its end; only an incomplete run can be resumed. The engine must have stopped
        writing its log before.
        """
        if self._fd is None or self._sealed:
            raise RuntimeError("the journal is already sealed or closed")
        seal = make_seal(self.directory, records=len(self._records), complete=complete)
        try:
            write_whole(self.directory / SEAL_NAME, encode(seal, indent=True) + b"\n")
        except OSError as problem:
            raise not_writable(self.directory, problem) from problem
        self._sealed = True
        return seal

    def close(self) -> None:
        """Lets go of the directory. Safe to call twice."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
            self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _write(self, fd: int, line: bytes) -> None:
        rest = line
        try:
            while rest:
                rest = rest[os.write(fd, rest) :]
            os.fsync(fd)
        except OSError as problem:
            os.ftruncate(fd, self._length_bytes)  # a full disk leaves half a line, and the next one must not follow it
            raise not_writable(self.directory, problem) from problem


def _begin(directory: Path, header: Header) -> Chain:
    """The files of a new run. The records file comes first: where a header stands, its records do."""
    if holds_run(directory):
        raise EvidenceError(f"{directory} already holds a run", advice="resume it, or name a new directory with --out")
    records = directory / RECORDS_NAME
    if records.exists() and records.stat().st_size:
        raise EvidenceError(f"{directory} holds records without a header", advice="name a new directory with --out")
    header_bytes = encode(header, indent=True) + b"\n"
    try:
        records.touch()
        write_whole(directory / HEADER_NAME, header_bytes)
    except OSError as problem:
        raise not_writable(directory, problem) from problem
    return Chain(records=(), length_bytes=0, torn_bytes=0, last=link(header_bytes))


def _reopen(directory: Path, stored: Stored) -> None:
    """Makes a stored run ready for more records: no seal, no half line."""
    if stored.complete:
        raise EvidenceError(
            f"the run in {directory} is complete and sealed",
            advice=f"read it with 'longproof derive {directory}', or prove again into a new directory with --out",
        )
    try:
        (directory / SEAL_NAME).unlink(missing_ok=True)  # an interrupt wrote it: what follows needs a new one
        if stored.chain.torn_bytes:
            cut(directory / RECORDS_NAME, stored.chain.length_bytes)
        sync_directory(directory)
    except OSError as problem:
        raise not_writable(directory, problem) from problem
