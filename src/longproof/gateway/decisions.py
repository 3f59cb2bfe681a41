"""The decision log on disk: every input of the controller with what it answered, with the reason and all scores.

    Recorded ── record ──▶ waiting ── a thread encodes and writes ──▶ decisions.jsonl ── full ──▶ …part-0001.jsonl

A file that is full becomes a part and a new one begins; beyond so many files the oldest goes (`decision_files`). A
replay reads the parts in order. Where the first are gone it begins with an empty controller, and says how many records
it lacks.

On the event loop a record costs an append to a list. A log that cannot be written stops nothing: records are dropped
and counted, and `replay_log` says that there is a gap. A kill loses what was not written yet, at most a fraction of a
second.
"""

from __future__ import annotations

import errno
import os
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from io import FileIO
from pathlib import Path

from longproof.errors import UsageError
from longproof.gateway.decision_codec import (
    FollowedReplica,
    LogEntry,
    LogHeader,
    decode_entry,
    decode_header,
    encode_entry,
    encode_header,
)
from longproof.gateway.decision_files import drop_oldest, next_life, part_path, parts_of
from longproof.policy.actions import Dispatch, Refusal, Wait
from longproof.policy.controller import Controller
from longproof.policy.decision_record import DecisionRecord, Difference, feed
from longproof.policy.routing import PrefixRouter, RoutingRule

WRITE_EVERY_S = 0.1
MOST_WAITING = 200_000
_BATCH = 2_000
FILE_BYTES, FILES = 256 << 20, 8


class DecisionLog:
    """Writes one log. `path` is a new file: a log begins with its controller. `file_bytes`: no file gets longer, but
    for one whose header and first batch are; `files`: so many are kept, those of earlier lives included. Raises
    UsageError when it cannot be made."""

    def __init__(
        self,
        path: Path,
        header: LogHeader,
        *,
        write_every_s: float = WRITE_EVERY_S,
        file_bytes: int = FILE_BYTES,
        files: int = FILES,
    ) -> None:
        if file_bytes < 1 or files < 1:
            raise UsageError("a decision log of nothing cannot be kept", advice="keep at least one file of one byte")
        self._family, self.path = path, next_life(path)
        self._header, self._file_bytes, self._files = header, file_bytes, files
        self._part, self._begun_bytes = 1, 0
        self._followed: dict[str, FollowedReplica] = {}
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._begin()
        except OSError as problem:
            raise UsageError(
                f"the decision log {self.path} cannot be written: {problem.strerror}", advice="name another file"
            ) from problem
        drop_oldest(self._family, files)
        self.dropped = 0
        self._waiting: deque[LogEntry] = deque()
        self._every_s = write_every_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._write_until_stopped, name="longproof-decisions", daemon=True)
        self._thread.start()

    def sink(self, entry: LogEntry) -> None:
        """Takes one entry; never waits, never raises."""
        if len(self._waiting) >= MOST_WAITING:
            self.dropped += 1
            return
        self._waiting.append(entry)

    def close(self) -> None:
        """Writes what is left."""
        self._stop.set()
        self._thread.join()
        self._file.close()

    def _write_until_stopped(self) -> None:
        while not self._stop.wait(self._every_s):
            self._write()
        self._write()

    def _write(self) -> None:
        while self._waiting:
            batch = [self._waiting.popleft() for _ in range(min(_BATCH, len(self._waiting)))]
            data = b"".join(map(encode_entry, batch))
            before = os.fstat(self._file.fileno()).st_size
            if before > self._begun_bytes and before + len(data) > self._file_bytes and self._turn_over():
                before = self._begun_bytes
            try:
                wrote = self._file.write(data)
            except OSError:
                wrote = -1
            if wrote != len(data):  # half a line would spoil the next one
                os.ftruncate(self._file.fileno(), before)
                os.lseek(self._file.fileno(), before, os.SEEK_SET)
                self.dropped += len(batch)
            self._followed.update((one.replica, one) for one in batch if isinstance(one, FollowedReplica))

    def _begin(self) -> FileIO:
        """A new file with its header. Raises OSError."""
        header = encode_header(replace(self._header, part=self._part, followed=tuple(self._followed.values())))
        file = self.path.open("xb", buffering=0)
        try:
            if file.write(header) != len(header):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            file.close()
            self.path.unlink()
            raise
        self._begun_bytes = len(header)
        return file

    def _turn_over(self) -> bool:
        """The file becomes a part and a new one begins. False: it could not be, and the file goes on growing."""
        full, part = self._file, part_path(self.path, self._part)
        try:
            self.path.rename(part)
        except OSError:
            return False
        self._part += 1
        try:
            self._file = self._begin()
        except OSError:
            self._part -= 1
            with suppress(OSError):
                part.rename(self.path)
            return False
        full.close()
        drop_oldest(self._family, self._files)
        return True


class LoggedRouter(PrefixRouter):
    """A router that also writes down how it is told to follow replicas."""

    def __init__(self, rule: RoutingRule, log: DecisionLog) -> None:
        super().__init__(rule)
        self._log = log

    def follow(self, replica: str, *, block_tokens: int, cache_blocks: int | None, events: bool) -> None:
        """See `PrefixRouter`."""
        super().follow(replica, block_tokens=block_tokens, cache_blocks=cache_blocks, events=events)
        self._log.sink(
            FollowedReplica(replica=replica, block_tokens=block_tokens, cache_blocks=cache_blocks, events=events)
        )


@dataclass(slots=True, kw_only=True)
class Replayed:
    """What a replay found. `sent`, `waits`, `refused`: decisions in the log by kind. `differences`: records a fresh
    controller answers otherwise, the first few. `missing`: records the log lacks; what follows a gap may differ for
    that reason alone. `torn`: its last line is half a one."""

    inputs: int = 0
    sent: int = 0
    waits: int = 0
    refused: int = 0
    differing: int = 0
    missing: int = 0
    torn: bool = False
    differences: list[Difference] = field(default_factory=list[Difference])

    def count(self, record: DecisionRecord) -> None:
        """One more input of the log."""
        self.inputs += 1
        self.sent += sum(isinstance(action, Dispatch) for action in record.actions)
        self.waits += sum(isinstance(action, Wait) for action in record.actions)
        self.refused += sum(isinstance(action, Refusal) for action in record.actions)

    @property
    def same(self) -> bool:
        """Whether everything was decided again as it was."""
        return not self.differing and not self.missing


def replay_log(path: Path, *, keep: int = 20) -> Replayed:
    """Feeds a log, all its parts in order, to a fresh controller. UsageError for a file that is no decision log."""
    found = Replayed()
    entries = _entries(path)
    header = next(entries)
    assert isinstance(header, LogHeader)
    router = PrefixRouter(header.routing)
    controller = Controller(header.config, router)
    for followed in header.followed:
        _follow(router, followed)
    for record in entries:
        if isinstance(record, LogHeader):
            continue  # the next part of the same life: what it says is known
        if record is None:
            found.torn = True  # the gateway was killed while it wrote
            continue
        if isinstance(record, FollowedReplica):
            _follow(router, record)
            continue
        found.missing += record.number - found.inputs - found.missing
        found.count(record)
        try:
            replayed = tuple(feed(controller, record.input, record.at_ns))
        except (ValueError, KeyError):
            if not found.missing:
                raise
            replayed = ()  # it contradicts what is missing
        if replayed != record.actions:
            found.differing += 1
            if len(found.differences) < keep:
                found.differences.append(Difference(record=record, replayed=replayed))
    return found


def records_about(path: Path, request_id: str) -> Iterator[DecisionRecord]:
    """Everything a log says about one request, in order."""
    for record in _entries(path, containing=request_id.encode()):
        if isinstance(record, DecisionRecord):
            told = record.input
            named = getattr(told, "id", None) or getattr(getattr(told, "arrival", None), "id", None)
            if named == request_id or any(action.id == request_id for action in record.actions):
                yield record


def _entries(path: Path, *, containing: bytes = b"") -> Iterator[LogHeader | LogEntry | None]:
    """Each part's header and then its entries whose line holds `containing`; None for half a line. UsageError."""
    for part in parts_of(path):
        lines = _lines(part)
        yield decode_header(next(lines, b""), where=f"{part}:1")
        for place, line in enumerate(lines, 2):
            if not line.endswith(b"\n"):
                yield None
            elif containing in line:
                yield decode_entry(line, where=f"{part}:{place}")


def _lines(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as source:
            yield from source
    except OSError as problem:
        raise UsageError(
            f"{path} cannot be read: {problem.strerror}", advice="name the file that decision_log is set to"
        ) from problem


def _follow(router: PrefixRouter, how: FollowedReplica) -> None:
    router.follow(how.replica, block_tokens=how.block_tokens, cache_blocks=how.cache_blocks, events=how.events)
