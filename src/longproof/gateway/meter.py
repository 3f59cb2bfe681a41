"""The usage meter: every request that is sent is written down before it is sent and once more when it ended.

    admitted ──▶ journal: intent ─────┐
    passed   ──▶ progress slot        ├─ a thread folds closed segments ──▶ ledger (SQLite, PostgreSQL)
    spent    ──▶ journal: settlement ─┘

    kill -9, at any point:    what was appended is folded at the next start; an intent without a settlement is settled
                              as interrupted with the output its slot shows. Nothing is lost, nothing stands twice.
    disk full or read-only:   `admitted` raises, so nothing is served that cannot be written down; what already runs
                              is kept in memory and written as soon as there is room.
    database away:            segments wait on the disk, in order.

On the event loop a request costs two write() calls and a slot; nothing there waits for a disk or a database.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

from longproof.clock import Clock, SystemClock
from longproof.errors import UsageError
from longproof.gateway.ledger_journal import Journal, Progress, read_segment
from longproof.gateway.ledger_rows import Intent, Row, Settlement, Timing, settlement, usage_left_by
from longproof.gateway.ledger_store import LedgerStore
from longproof.gateway.meter_lock import MeterLock
from longproof.gateway.ports import Admitted, MeterUnavailable, Spent
from longproof.gateway.takings import Takings, TakingsView
from longproof.policy.arrivals import EndKind
from longproof.policy.metering import (
    CacheSource,
    Ending,
    PriceBook,
    RequestUsage,
    UsageSource,
    bill,
    residency_token_ms,
)

FOLD_EVERY_S = 0.25
_MOST_TOKENS = 10**11
_MOST_TOKEN_MS = 10**15
"""Far beyond any request; with prices bounded too, no amount leaves 64 bits."""
_LONGEST_TEXT = 512
_ENDINGS = {kind: Ending(kind.value) for kind in EndKind}
_LONGEST_PAUSE_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MeterSettings:
    """`gateway`: this gateway's name, its own among all that share a ledger."""

    gateway: str = "gateway"
    book: PriceBook = field(default_factory=PriceBook)
    fold_every_s: float = FOLD_EVERY_S


@dataclass(frozen=True, slots=True, kw_only=True)
class MeterState:
    """How the meter is. `problem` None = well. `unwritten`: ends that wait in memory for room on the disk;
    `journal_bytes`: written, not yet in the ledger. `recovered`: requests an earlier, killed gateway left behind."""

    ledger: str
    open_requests: int
    unwritten: int
    journal_bytes: int
    recovered: int
    problem: str | None
    takings: TakingsView


@dataclass(slots=True)
class _Running:
    intent: Intent
    sent_ns: int
    predicted_cached_tokens: int | None


class UsageMeter:
    """One meter per gateway and directory. Call `start` before the first request and `close` after the last. Raises
    UsageError where usage cannot be written down."""

    def __init__(
        self, directory: Path, ledger: LedgerStore, settings: MeterSettings, clock: Clock | None = None
    ) -> None:
        self._settings, self._clock, self._ledger = settings, clock or SystemClock(), ledger
        self._directory = directory
        self._boot, self._count = os.urandom(6).hex(), 0
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._lock = MeterLock(directory)
        except OSError as problem:
            raise _unwritable(f"{directory}: {problem.strerror or problem}") from problem
        try:
            self._journal = Journal(directory)
            self._progress = Progress(directory / "progress.slots")
            self._boots = _note_boot(directory / "boots", self._boot)
        except OSError as problem:
            self._lock.release()
            raise _unwritable(f"{directory}: {problem.strerror or problem}") from problem
        self._running: dict[str, _Running] = {}
        self._unwritten: deque[Row] = deque()
        self._takings = Takings()
        self._problem: str | None = None
        self._fold_problem: str | None = None
        self._recovered = 0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> int:
        """Takes over what an earlier gateway left in this directory, then folds in the background. Returns how many
        requests it had left unsettled. Blocks for as long as the ledger takes. UsageError where it cannot be
        written."""
        self._fold()
        if self._fold_problem is not None:
            raise _unwritable(self._fold_problem)
        try:
            unsettled = self._ledger.unsettled(self._settings.gateway)
            left = [intent for intent in unsettled if _boot_of(intent) in self._boots]
            self._ledger.write([self._interrupted(intent) for intent in left])
        except Exception as problem:  # any driver's error, as in `_fold`
            raise _unwritable(f"{self._ledger.place}: {problem}") from problem
        self._recovered = len(left)
        self._thread = threading.Thread(target=self._fold_until_stopped, name="longproof-ledger", daemon=True)
        self._thread.start()
        return self._recovered

    def admitted(self, request: Admitted) -> None:
        """Writes down that `request` is about to be sent. Raises MeterUnavailable when it cannot be written.

        A second call for one id means that the first replica refused it: its entry is settled so, without usage.
        """
        if request.id in self._running:
            self._settle(self._running.pop(request.id), Ending.REJECTED, _nothing(request.at_ns))
        if not self._write_waiting():
            raise MeterUnavailable(self._problem or "the journal cannot be written")
        self._count += 1
        intent = self._intent(request, self._progress.take(self._count))
        try:
            self._journal.append(intent)
        except OSError as problem:
            self._free(intent)
            self._problem = f"{self._directory}: {problem.strerror or problem}"
            raise MeterUnavailable(self._problem) from problem
        self._problem = None
        self._running[request.id] = _Running(intent, request.at_ns, request.predicted_cached_tokens)

    def passed(self, request_id: str, output_tokens: int) -> None:
        """So many output tokens were passed on in all: what is billed should this process die now."""
        running = self._running.get(request_id)
        if running is not None and running.intent.slot is not None:
            self._progress.put(running.intent.slot, output_tokens, self._unix_ns())

    def spent(self, request: Spent) -> None:
        """Writes down how `request` ended. A second end changes nothing; one that was never admitted is not ours."""
        running = self._running.pop(request.id, None)
        if running is not None:
            self._settle(running, _ENDINGS[request.ending], request)

    def state(self) -> MeterState:
        """How the meter is, and what was taken since it started."""
        return MeterState(
            ledger=self._ledger.place,
            open_requests=len(self._running),
            unwritten=len(self._unwritten),
            journal_bytes=self._journal.pending_bytes,
            recovered=self._recovered,
            problem=self._problem or self._fold_problem,
            takings=self._takings.view(),
        )

    def close(self) -> None:
        """Folds what is left and lets go of directory and ledger. Requests still open stay intents."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        self._write_waiting()
        self._fold()
        self._journal.close()
        self._progress.close()
        self._ledger.close()
        self._lock.release()

    def _intent(self, request: Admitted, slot: int | None) -> Intent:
        return Intent(
            entry=f"{self._settings.gateway}-{self._boot}-{self._count}",
            gateway=self._settings.gateway,
            request_id=_kept(request.id),
            tenant=_kept(request.tenant),
            key=_kept(request.key),
            model=_kept(request.model),
            replica=request.replica,
            pool=request.pool,
            input_tokens=min(request.input_tokens, _MOST_TOKENS),
            allowance_tokens=min(request.output_tokens, _MOST_TOKENS),
            at_unix_ns=self._unix_ns(),
            slot=slot,
        )

    def _settle(self, running: _Running, ending: Ending, end: Spent) -> None:
        intent = running.intent
        held_ms = end.kv_token_ms
        timing = Timing(
            at_unix_ns=self._unix_ns(),
            ran_ns=max(0, end.at_ns - running.sent_ns),
            ttft_ns=None if end.first_token_ns is None else max(0, end.first_token_ns - running.sent_ns),
            held_token_ms=None if held_ms is None else min(held_ms, _MOST_TOKEN_MS),
        )
        usage = _usage(end, running, timing)
        priced = bill(usage, model=intent.model, pool=intent.pool, ending=ending, book=self._settings.book)
        row = settlement(intent.entry, ending, end.status, timing, usage, priced)
        self._takings.add(intent, row)
        self._unwritten.append(row)
        self._write_waiting()
        self._free(intent)

    def _write_waiting(self) -> bool:
        while self._unwritten:
            try:
                self._journal.append(self._unwritten[0])
            except OSError as problem:
                self._problem = f"{self._directory}: {problem.strerror or problem}"
                return False
            self._unwritten.popleft()
            self._problem = None
        return True

    def _free(self, intent: Intent) -> None:
        if intent.slot is not None:
            self._progress.give_back(intent.slot)

    def _interrupted(self, intent: Intent) -> Settlement:
        number = int(intent.entry.rpartition("-")[2])
        found = None if intent.slot is None else self._progress.left_by(intent.slot, number)
        output_tokens, last_unix_ns = found or (0, 0)
        usage = usage_left_by(intent, output_tokens)
        priced = bill(usage, model=intent.model, pool=intent.pool, ending=Ending.INTERRUPTED, book=self._settings.book)
        timing = Timing(at_unix_ns=self._unix_ns(), ran_ns=max(0, last_unix_ns - intent.at_unix_ns))
        return settlement(intent.entry, Ending.INTERRUPTED, 0, timing, usage, priced)

    def _fold_until_stopped(self) -> None:
        wait_s = self._settings.fold_every_s
        while not self._stop.wait(wait_s):
            self._fold()
            # a ledger that is away is asked less and less often: every attempt closes a segment, and makes a file
            wait_s = self._settings.fold_every_s if self._fold_problem is None else min(2 * wait_s, _LONGEST_PAUSE_S)

    def _fold(self) -> None:
        """Closed segments into the ledger, oldest first. A segment goes only after its rows are on the disk there."""
        try:
            for path in self._journal.closed_segments():
                rows, damaged = read_segment(path)
                self._ledger.write(rows)
                self._journal.folded(path, damaged=damaged > 0)
            self._fold_problem = None
        except Exception as problem:  # any driver's error: the segments stay, and the next turn tries again
            self._fold_problem = f"{self._ledger.place}: {problem}"

    def _unix_ns(self) -> int:
        return int(self._clock.wall().timestamp() * 1e6) * 1_000


def _unwritable(what: str) -> UsageError:
    return UsageError(f"usage cannot be written down: {what}", advice="check place and space")


def _note_boot(path: Path, boot: str) -> set[str]:
    """Adds this start to the directory's list; returns the earlier ones. Only what those began is taken over: another
    gateway that bears the same name by mistake, on the same database, is not declared dead."""
    earlier = set(path.read_text().split()) if path.exists() else set[str]()
    with path.open("a") as target:
        target.write(boot + "\n")
    return earlier


def _boot_of(intent: Intent) -> str:
    return intent.entry.rsplit("-", 2)[1]


def _kept(text: str) -> str:
    """A client's text as any database takes it: bounded, no lone surrogates, no NUL. One row that is refused would keep
    all behind it out of the ledger."""
    if text.isascii() and text.isprintable() and len(text) <= _LONGEST_TEXT:
        return text
    return text[:_LONGEST_TEXT].encode("utf-8", "replace").decode().replace("\x00", "\ufffd")


def _usage(end: Spent, running: _Running, timing: Timing) -> RequestUsage:
    cached, cached_from = end.cached_tokens, CacheSource.ENGINE
    if cached is None:
        cached, cached_from = running.predicted_cached_tokens, CacheSource.PREDICTED
    began = end.ending is not EndKind.REJECTED
    input_tokens = min(end.input_tokens, _MOST_TOKENS) if began else 0
    output_tokens = min(end.output_tokens, _MOST_TOKENS) if began else 0
    occupied = residency_token_ms(input_tokens, output_tokens, timing.ran_ns, timing.ttft_ns)
    return RequestUsage(
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        cached_tokens=None if cached is None else min(cached, input_tokens),
        cached_from=CacheSource.UNKNOWN if cached is None else cached_from,
        kv_token_ms=min(occupied, _MOST_TOKEN_MS),
        counted_by=_who_counted(end),
    )


def _who_counted(end: Spent) -> UsageSource:
    if end.reported:
        return UsageSource.ENGINE
    return UsageSource.GATEWAY if end.exact else UsageSource.BOUND


def _nothing(at_ns: int) -> Spent:
    """The end of a request whose replica refused it: nothing was used."""
    return Spent(
        id="",
        ending=EndKind.REJECTED,
        status=0,
        input_tokens=0,
        cached_tokens=0,
        output_tokens=0,
        reported=False,
        at_ns=at_ns,
        kv_token_ms=0,
    )
