"""What the usage ledger writes before anything else happens: files that survive kill -9 of the gateway.

    directory/
      journal-0000000007.jsonl     whole lines: ["i", …intent] or ["s", …settlement]; one write() each
      progress.slots               a shared mapping: per slot  entry number │ output tokens │ Unix ns
      lock                         one gateway per directory

A line that write() took is in the kernel's page cache and outlives the process; so does a mapped page. The disk itself
gets them when a segment is folded into the ledger, a fraction of a second later: a power cut may lose that much.

A short write (disk full) is cut back at once, so that every line is whole but perhaps the last one after a power cut.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
from pathlib import Path

import msgspec

from longproof.gateway.ledger_rows import Intent, Row, Settlement

SLOTS = 32_768
"""Requests whose progress can be followed at once; others have none after a kill."""
_SLOT = struct.Struct("<QQQ")
_LAST_TWO = struct.Struct("<QQ")
_TAG: dict[type[Row], str] = {Intent: "i", Settlement: "s"}
_ENCODER = msgspec.json.Encoder()
_DECODERS = {
    b'["i",': msgspec.json.Decoder(tuple[str, Intent]),
    b'["s",': msgspec.json.Decoder(tuple[str, Settlement]),
}
"""By the beginning of a line. msgspec makes the row as it reads: a quarter of the time of a dict and then the row."""


class Journal:
    """Appends rows on the event loop; hands whole segments to the thread that folds them.

    `append` costs one write() of a few hundred bytes. Raises OSError when the disk does not take it; nothing is
    written then.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock = threading.Lock()
        names = sorted(directory.glob("journal-*.jsonl"))
        self._number = int(names[-1].stem.rpartition("-")[2]) if names else 0
        self._path: Path | None = None
        self._fd = -1
        self._bytes = 0
        self.pending_bytes = sum(path.stat().st_size for path in names)
        """What is not in the ledger yet: known without asking the disk, which may hold thousands of segments."""

    def append(self, row: Row) -> None:
        """One row, whole or not at all."""
        line = _ENCODER.encode((_TAG[type(row)], row)) + b"\n"
        with self._lock:
            if self._fd < 0:
                self._open()
            wrote = self._write(line)
            if wrote != len(line):
                os.ftruncate(self._fd, self._bytes)
                raise OSError(28, "the disk is full")
            self._bytes += wrote
            self.pending_bytes += wrote

    def closed_segments(self) -> list[Path]:
        """Every segment that is no longer written to, oldest first; the current one is closed for this, if it has
        anything in it."""
        with self._lock:
            if self._fd >= 0 and self._bytes:
                os.close(self._fd)
                self._fd, self._path = -1, None
            current, newest = self._path, self._segment(self._number)
        # listed without the lock, which the event loop waits for: one that is begun meanwhile has a higher number
        found = sorted(self._directory.glob("journal-*.jsonl"))
        return [path for path in found if path.name <= newest.name and path != current]

    def folded(self, segment: Path, *, damaged: bool) -> None:
        """A closed segment is in the ledger: its file goes, or stays under another name for who mends it by hand."""
        size = segment.stat().st_size
        if damaged:
            segment.rename(segment.with_suffix(".damaged"))
        else:
            segment.unlink()
        with self._lock:
            self.pending_bytes -= size

    def close(self) -> None:
        """Closes the current segment. Safe to call twice."""
        with self._lock:
            if self._fd >= 0:
                os.close(self._fd)
            self._fd, self._path = -1, None

    def _open(self) -> None:
        self._number += 1
        self._path = self._segment(self._number)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        self._fd, self._bytes = os.open(self._path, flags, 0o600), 0

    def _segment(self, number: int) -> Path:
        return self._directory / f"journal-{number:010d}.jsonl"

    def _write(self, line: bytes) -> int:
        try:
            return os.write(self._fd, line)
        except OSError:
            os.ftruncate(self._fd, self._bytes)
            raise


def read_segment(path: Path) -> tuple[list[Row], int]:
    """The rows of a segment, and how many of its lines are damaged (a power cut; nothing else tears a line)."""
    rows: list[Row] = []
    damaged = 0
    for line in path.read_bytes().split(b"\n"):
        if line:
            try:
                rows.append(_DECODERS[line[:5]].decode(line)[1])
            except (KeyError, msgspec.MsgspecError, UnicodeDecodeError):
                damaged += 1
    return rows, damaged


class Progress:
    """Output tokens of running requests, in memory that outlives the process."""

    def __init__(self, path: Path, slots: int = SLOTS) -> None:
        size = slots * _SLOT.size
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(fd, 0, size)  # a hole would be a bus error on the first write to a full disk
            self._map = mmap.mmap(fd, size)
        finally:
            os.close(fd)
        self._free = list(range(slots - 1, -1, -1))

    def take(self, number: int) -> int | None:
        """A slot for the entry of this number, or None when all are taken."""
        if not self._free:
            return None
        slot = self._free.pop()
        _SLOT.pack_into(self._map, slot * _SLOT.size, number, 0, 0)
        return slot

    def put(self, slot: int, output_tokens: int, at_unix_ns: int) -> None:
        """So many tokens were passed on in all."""
        _LAST_TWO.pack_into(self._map, slot * _SLOT.size + 8, output_tokens, at_unix_ns)

    def give_back(self, slot: int) -> None:
        """The request has ended."""
        self._free.append(slot)

    def left_by(self, slot: int, number: int) -> tuple[int, int] | None:
        """(output tokens, Unix ns of the last, 0 = none came) of an entry; None when the slot is another's by now."""
        owner, tokens, at_unix_ns = _SLOT.unpack_from(self._map, slot * _SLOT.size)
        return (tokens, at_unix_ns) if owner == number else None

    def close(self) -> None:
        """Unmaps the file."""
        self._map.close()
