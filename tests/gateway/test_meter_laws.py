"""Conservation of usage: whatever is admitted, refused, ended, killed and not written in whatever order, every attempt
stands on the books once, with what was last known of it."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from longproof.gateway.ledger_journal import SLOTS
from longproof.gateway.ledger_store import SqliteLedger
from longproof.gateway.meter import MeterSettings, UsageMeter
from longproof.gateway.ports import Admitted, MeterUnavailable, Spent
from longproof.policy.arrivals import EndKind
from longproof.testing.fake_clock import FakeClock

INPUT = 1_000


class Books(RuleBasedStateMachine):
    """One directory, the meters that follow one another in it, and a disk that may be full.

    `expected` is by entry (request, attempt): its ending and output tokens, or None while it is open; `passed` what was
    last told of it; `unwritten` the ends that only the process knows so far."""

    @initialize()
    def begin(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="meter-laws-"))
        self.clock = FakeClock()
        self.number = 0
        self.open: dict[str, int] = {}  # request → its attempt
        self.expected: dict[tuple[str, int], tuple[str, int] | None] = {}
        self.passed: dict[tuple[str, int], int] = {}
        self.unwritten: set[tuple[str, int]] = set()
        self.full = ""
        self.start()

    def start(self) -> None:
        ledger = SqliteLedger(self.directory / "usage.sqlite")
        # it folds when it is told to, so that a run can be repeated
        self.meter = UsageMeter(self.directory, ledger, MeterSettings(fold_every_s=10_000.0), self.clock)
        self.whole = self.meter._journal._write
        self.meter.start()

    def settle(self, request: str, ending: str, output: int) -> None:
        entry = (request, self.open.pop(request))
        self.expected[entry] = (ending, output)
        if self.full:
            self.unwritten.add(entry)

    @rule(again=st.integers(0, 9))
    def admit(self, again: int) -> None:
        """A new request, or (one time in three) one that its replica refused and another one gets."""
        if self.open and again < 3:
            request = sorted(self.open)[again % len(self.open)]
            attempt = self.open[request] + 1
            self.settle(request, "rejected", 0)
        else:
            self.number += 1
            request, attempt = f"q{self.number}", 1
        told = Admitted(
            id=request,
            key="k",
            tenant="t",
            model="m",
            replica=f"r{attempt}",
            input_tokens=INPUT,
            output_tokens=64,
            at_ns=self.clock.now_ns(),
        )
        if self.full == "all" or self.unwritten:
            try:
                self.meter.admitted(told)
            except MeterUnavailable:
                return
            raise AssertionError("it was admitted although nothing can be written down")
        self.meter.admitted(told)
        self.open[request] = attempt
        self.expected[request, attempt] = None
        self.passed[request, attempt] = 0

    @precondition(lambda self: self.open)
    @rule(which=st.integers(0, 99), more=st.integers(0, 40))
    def passes(self, which: int, more: int) -> None:
        request = sorted(self.open)[which % len(self.open)]
        entry = (request, self.open[request])
        self.passed[entry] += more
        self.meter.passed(request, self.passed[entry])

    @precondition(lambda self: self.open)
    @rule(which=st.integers(0, 99), kind=st.sampled_from(list(EndKind)), output=st.integers(0, 64))
    def ends(self, which: int, kind: EndKind, output: int) -> None:
        """Twice: the second one changes nothing."""
        request = sorted(self.open)[which % len(self.open)]
        self.settle(request, kind.value, 0 if kind is EndKind.REJECTED else output)
        for told in (output, output + 1):
            self.meter.spent(
                Spent(
                    id=request,
                    ending=kind,
                    status=200,
                    input_tokens=INPUT,
                    cached_tokens=None,
                    output_tokens=told,
                    reported=True,
                    at_ns=self.clock.now_ns(),
                )
            )

    @rule()
    def folds(self) -> None:
        self.meter._fold()

    @rule(seconds=st.integers(0, 5))
    def time_passes(self, seconds: int) -> None:
        self.clock.advance_s(seconds)

    @rule(full=st.sampled_from(["", "all", "ends"]))
    def disk(self, full: str) -> None:
        """It has room; it has none; it has room for the line of a new request alone."""

        def write(line: bytes) -> int:
            if full == "all" or line.startswith(b'["s"'):
                raise OSError(28, "No space left on device")
            return self.whole(line)

        self.full = full
        self.meter._journal._write = write if full else self.whole  # type: ignore[method-assign]
        if not full and self.meter._write_waiting():
            self.unwritten.clear()

    @rule(full=st.sampled_from(["all", "ends"]), again=st.integers(0, 9))
    def full_for_a_moment(self, full: str, again: int) -> None:
        self.disk(full)
        self.admit(again)
        self.disk("")

    @rule()
    def killed(self) -> None:
        """kill -9: nothing more is done, the kernel closes what was open. Then there is room, and a new start."""
        meter = self.meter
        meter._stop.set()
        if meter._thread is not None:
            meter._thread.join()
        meter._journal.close()
        meter._progress.close()
        meter._ledger.close()
        meter._lock.release()
        lost = [*self.unwritten, *((request, attempt) for request, attempt in self.open.items())]
        for entry in lost:
            self.expected[entry] = ("interrupted", self.passed[entry])
        self.unwritten.clear()
        self.open.clear()
        self.full = ""
        self.start()
        assert meter is not self.meter
        assert self.meter.state().recovered == len(lost)

    @invariant()
    def nothing_is_kept_of_those_that_ended(self) -> None:
        if not hasattr(self, "meter"):
            return
        state, slots = self.meter.state(), self.meter._progress._free
        assert (state.open_requests, state.unwritten) == (len(self.open), len(self.unwritten))
        assert len(slots) == len(set(slots)) == SLOTS - len(self.open)

    def teardown(self) -> None:
        if not hasattr(self, "meter"):
            return
        self.disk("")
        for request in sorted(self.open):
            self.ends(sorted(self.open).index(request), EndKind.COMPLETED, 5)
        self.meter.close()
        ledger = SqliteLedger(self.directory / "usage.sqlite")
        try:
            settled, left = list(ledger.settled()), ledger.unsettled("gateway")
        finally:
            ledger.close()
            shutil.rmtree(self.directory)
        found = {(i.request_id, int(i.replica[1:])): (end.ending, end.output_tokens) for i, end in settled}
        assert len(found) == len(settled)
        assert left == []
        assert found == self.expected


TestBooks = Books.TestCase
TestBooks.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
