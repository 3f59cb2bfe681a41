"""The usage meter: nothing lost, nothing twice, whatever is killed, full or away."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from longproof.errors import UsageError
from longproof.gateway.ledger_journal import Journal, Progress, read_segment
from longproof.gateway.ledger_rows import Intent, Row, Settlement
from longproof.gateway.ledger_store import Settled, SqliteLedger, open_ledger
from longproof.gateway.meter import MeterSettings, UsageMeter
from longproof.gateway.ports import Admitted, Spent
from longproof.policy.arrivals import EndKind
from longproof.policy.metering import PriceBook, Prices, Sku
from longproof.testing.fake_clock import FakeClock

S = 1_000_000_000
BOOK = PriceBook(skus=(Sku(name="chat", prices=Prices(input_cold=1_000_000, input_cached=100_000, output=2_000_000)),))


def meter_in(directory: Path, **settings: object) -> UsageMeter:
    ledger = SqliteLedger(directory / "usage.sqlite")
    return UsageMeter(directory, ledger, MeterSettings(book=BOOK, **settings), FakeClock())  # type: ignore[arg-type]


def admitted(name: str, *, replica: str = "a", predicted: int | None = None, at_ns: int = 0) -> Admitted:
    return Admitted(
        id=name,
        key="team",
        tenant="acme",
        model="m",
        replica=replica,
        input_tokens=1_000,
        output_tokens=64,
        at_ns=at_ns,
        pool="short",
        predicted_cached_tokens=predicted,
    )


def spent(
    name: str, *, ending: EndKind = EndKind.COMPLETED, cached: int | None = 400, output: int = 50, at_ns: int = 10 * S
) -> Spent:
    return Spent(
        id=name,
        ending=ending,
        status=200,
        input_tokens=1_000,
        cached_tokens=cached,
        output_tokens=output,
        reported=True,
        at_ns=at_ns,
        first_token_ns=at_ns - 2 * S,
        kv_token_ms=12_000_000,
    )


def kill(meter: UsageMeter) -> None:
    """As if its process was killed: what it has written stays behind."""
    meter._stop.set()  # pyright: ignore[reportPrivateUsage]
    meter._lock.release()  # pyright: ignore[reportPrivateUsage]


def settled_in(directory: Path) -> list[Settled]:
    ledger = SqliteLedger(directory / "usage.sqlite")
    try:
        return list(ledger.settled())
    finally:
        ledger.close()


def test_a_request_is_on_the_books_once_when_it_ended(tmp_path: Path) -> None:
    meter = meter_in(tmp_path)
    assert meter.start() == 0
    meter.admitted(admitted("r1"))
    meter.spent(spent("r1"))
    meter.spent(spent("r1", ending=EndKind.FAILED))  # a second end changes nothing
    meter.spent(spent("never admitted"))
    meter.close()
    ((intent, settlement),) = settled_in(tmp_path)
    assert (intent.request_id, intent.tenant, intent.key, intent.pool) == ("r1", "acme", "team", "short")
    # 600 cold x 1 $/M + 400 cached x 0.1 $/M + 50 x 2 $/M = 600,000 + 40,000 + 100,000 nano-USD
    assert (settlement.ending, settlement.sku, settlement.total_nano_usd) == ("completed", "chat", 740_000)
    assert (settlement.ran_ns, settlement.ttft_ns) == (10 * S, 8 * S)
    # 1,000 x 10 s + 50 x 2 s / 2 = 10,050 token-s occupied; the controller held more
    assert (settlement.kv_token_ms, settlement.held_token_ms) == (10_050_000, 12_000_000)
    assert list(tmp_path.glob("journal-*")) == []


def test_the_predicted_hit_stands_when_the_engine_reports_none(tmp_path: Path) -> None:
    meter = meter_in(tmp_path)
    meter.start()
    for name, predicted in (("known", 256), ("unknown", None)):
        meter.admitted(admitted(name, predicted=predicted))
        meter.spent(spent(name, cached=None))
    meter.close()
    rows = {intent.request_id: row for intent, row in settled_in(tmp_path)}
    assert (rows["known"].input_cached_tokens, rows["known"].cached_from) == (256, "predicted")
    assert (rows["unknown"].input_cached_tokens, rows["unknown"].cached_from) == (None, "unknown")
    assert rows["unknown"].input_cold_tokens == 1_000


def test_each_attempt_has_its_entry_when_a_replica_refused(tmp_path: Path) -> None:
    meter = meter_in(tmp_path)
    meter.start()
    meter.admitted(admitted("r1", replica="a"))
    meter.admitted(admitted("r1", replica="b"))
    meter.spent(spent("r1"))
    meter.close()
    rows = {intent.replica: row for intent, row in settled_in(tmp_path)}
    assert (rows["a"].ending, rows["a"].total_nano_usd, rows["a"].output_tokens) == ("rejected", 0, 0)
    assert (rows["b"].ending, rows["b"].total_nano_usd) == ("completed", 740_000)


def test_the_books_say_how_far_it_came_when_the_gateway_was_killed(tmp_path: Path) -> None:
    child = """
        meter.admitted(admitted("half"))
        meter.passed("half", 17)
        meter.admitted(admitted("none"))
        print("ready", flush=True)
        time.sleep(600)
        """
    process = gateway(child, tmp_path)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    with pytest.raises(UsageError, match="another gateway"):
        meter_in(tmp_path)
    process.kill()
    process.communicate()
    meter = meter_in(tmp_path)
    assert meter.start() == 2
    assert meter.state().recovered == 2
    meter.close()
    rows = {intent.request_id: row for intent, row in settled_in(tmp_path)}
    assert {name: (row.ending, row.output_tokens) for name, row in rows.items()} == {
        "half": ("interrupted", 17),
        "none": ("interrupted", 0),
    }
    assert all((row.charged, row.total_nano_usd) == (False, 0) for row in rows.values())


def test_no_usage_is_lost_or_doubled_when_the_gateway_is_killed_again_and_again(tmp_path: Path) -> None:
    child = """
        meter = UsageMeter(directory, ledger, MeterSettings(fold_every_s=0.002)); meter.start()
        for number in range(100_000):
            name = f"{label}/{number}"
            meter.admitted(admitted(name))
            meter.passed(name, number % 50)
            if number % 3:
                meter.spent(spent(name, output=number % 50))
            print(number, flush=True)
        """
    acknowledged: dict[int, int] = {}
    for label in range(3):
        process = gateway(child, tmp_path, str(label), start=False)
        assert process.stdout is not None
        last = -1
        for line in process.stdout:
            last = int(line)
            if last >= 150 + 211 * label:
                process.send_signal(signal.SIGKILL)
                break
        acknowledged[label] = max([last, *(int(line) for line in process.stdout.read().split())])
        assert process.wait() == -signal.SIGKILL
        process.stdout.close()
    meter = meter_in(tmp_path)
    meter.start()
    meter.close()
    rows: dict[str, Settlement] = {}
    for intent, row in settled_in(tmp_path):
        assert intent.request_id not in rows, f"{intent.request_id} stands twice"
        rows[intent.request_id] = row
    for label, last in acknowledged.items():
        for number in range(last + 1):
            row = rows.pop(f"{label}/{number}")
            assert row.ending == ("completed" if number % 3 else "interrupted")
            assert row.output_tokens == number % 50
    assert len(rows) <= len(acknowledged)  # one per round may have been written and not yet acknowledged


def test_nothing_is_admitted_and_no_end_is_lost_when_the_disk_is_full(tmp_path: Path) -> None:
    # A file size limit stands in for a full disk: the write stops in the middle of a line, then fails.
    child = """
        import resource
        meter.admitted(admitted("runs"))
        resource.setrlimit(resource.RLIMIT_FSIZE, (400, resource.RLIM_INFINITY))
        try:
            meter.admitted(admitted("late"))
        except MeterUnavailable as problem:
            print("refused:", problem)
        meter.spent(spent("runs"))
        state = meter.state()
        print("waiting:", state.unwritten, bool(state.problem))
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        meter.admitted(admitted("after"))
        meter.spent(spent("after"))
        print("well:", meter.state().unwritten, meter.state().problem)
        meter.close()
        """
    said, _ = gateway(child, tmp_path).communicate(timeout=60)
    assert "refused:" in said
    assert "waiting: 1 True" in said
    assert "well: 0 None" in said
    assert sorted(intent.request_id for intent, _ in settled_in(tmp_path)) == ["after", "runs"]


def test_a_gateway_does_not_start_and_says_why_when_its_disk_is_full(tmp_path: Path) -> None:
    child = """
        import resource
        from longproof.errors import UsageError
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
        try:
            UsageMeter(directory, ledger, MeterSettings(), FakeClock()).start()
        except UsageError as problem:
            print("said:", problem)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        print("recovered:", UsageMeter(directory, ledger, MeterSettings(), FakeClock()).start())
        """
    meter = meter_in(tmp_path)
    meter.start()
    meter.admitted(admitted("r"))
    kill(meter)
    said, _ = gateway(child, tmp_path, start=False).communicate(timeout=60)
    assert "said: usage cannot be written down" in said
    assert "recovered: 1" in said


def test_another_gateways_requests_are_left_alone_when_it_bears_the_same_name(tmp_path: Path) -> None:
    ledger = tmp_path / "shared.sqlite"
    one = UsageMeter(tmp_path / "one", SqliteLedger(ledger), MeterSettings(fold_every_s=0.001), FakeClock())
    one.start()
    one.admitted(admitted("running"))
    while one.state().journal_bytes:
        time.sleep(0.001)
    two = UsageMeter(tmp_path / "two", SqliteLedger(ledger), MeterSettings(), FakeClock())
    assert two.start() == 0
    one.spent(spent("running"))
    one.close()
    two.close()
    store = SqliteLedger(ledger)
    assert [(intent.request_id, row.ending) for intent, row in store.settled()] == [("running", "completed")]
    store.close()


class Fickle:
    """A ledger that is away until it is not."""

    place = "fickle"

    def __init__(self, inner: SqliteLedger) -> None:
        self._inner = inner
        self.away = False
        self.unsettled, self.settled, self.close = inner.unsettled, inner.settled, inner.close

    def write(self, rows: Iterable[Row]) -> None:
        if self.away:
            raise ConnectionError("the database is away")
        self._inner.write(rows)


def test_usage_waits_on_the_disk_when_the_database_is_away(tmp_path: Path) -> None:
    ledger = Fickle(SqliteLedger(tmp_path / "usage.sqlite"))
    meter = UsageMeter(tmp_path, ledger, MeterSettings(fold_every_s=600), FakeClock())
    meter.start()
    ledger.away = True
    for number in range(3):
        meter.admitted(admitted(str(number)))
        meter.spent(spent(str(number)))
        meter._fold()  # pyright: ignore[reportPrivateUsage] - the thread's turn, at a time of our choosing
    state = meter.state()
    assert state.problem == "fickle: the database is away"
    segments = list(tmp_path.glob("journal-*"))
    assert len(segments) == 3
    assert state.journal_bytes == sum(path.stat().st_size for path in segments)
    assert Journal(tmp_path).pending_bytes == state.journal_bytes  # as a next start would find it
    ledger.away = False
    meter.close()
    assert meter.state().journal_bytes == 0
    assert [intent.request_id for intent, _ in settled_in(tmp_path)] == ["0", "1", "2"]


def test_a_gateway_does_not_start_when_its_ledger_cannot_be_written(tmp_path: Path) -> None:
    meter = meter_in(tmp_path)
    meter.start()
    meter.admitted(admitted("r"))
    kill(meter)
    ledger = Fickle(SqliteLedger(tmp_path / "usage.sqlite"))
    ledger.away = True
    with pytest.raises(UsageError, match="the database is away"):
        UsageMeter(tmp_path, ledger, MeterSettings(), FakeClock()).start()
    ledger.close()


def test_the_whole_lines_count_when_a_segment_is_torn(tmp_path: Path) -> None:
    meter = meter_in(tmp_path)
    meter.start()
    meter.admitted(admitted("r1"))
    meter.spent(spent("r1"))
    meter.close()
    torn = tmp_path / "journal-0000000009.jsonl"
    torn.write_bytes(b'["i",{"entry":"x"\n\x00\x00\x00')
    again = meter_in(tmp_path)
    assert again.start() == 0
    again.close()
    assert torn.with_suffix(".damaged").exists()  # kept for people, folded never again
    assert len(settled_in(tmp_path)) == 1


@pytest.mark.parametrize(
    "line",
    [
        b"\xff\xfe",
        b"[]",
        b'["x",{}]',
        b'["i",{"entry":"x"}]',  # most of it is missing
        b'["i",[1]]',
        b'["s",{"entry":"\xff"}]',
        b'["i",{"entry":"x"',
    ],
)
def test_a_line_is_damaged_when_it_is_no_row(tmp_path: Path, line: bytes) -> None:
    segment = tmp_path / "journal-0000000001.jsonl"
    segment.write_bytes(line + b"\n\n")
    assert read_segment(segment) == ([], 1)


def test_a_number_is_no_row_when_it_is_none(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    intent = Intent(
        entry="g-b-1",
        gateway="g",
        request_id="r",
        tenant="t",
        key="k",
        model="m",
        replica="a",
        pool="p",
        input_tokens=5,
        allowance_tokens=6,
        at_unix_ns=7,
    )
    journal.append(intent)
    (segment,) = journal.closed_segments()
    assert read_segment(segment) == ([intent], 0)
    segment.write_bytes(segment.read_bytes().replace(b'"input_tokens":5', b'"input_tokens":5.5'))
    assert read_segment(segment) == ([], 1)


def test_takings_are_the_sum_of_the_bills(tmp_path: Path) -> None:
    meter = meter_in(tmp_path)
    meter.start()
    for name, ending in (("a", EndKind.COMPLETED), ("b", EndKind.CANCELLED), ("c", EndKind.FAILED)):
        meter.admitted(admitted(name))
        meter.spent(spent(name, ending=ending))
    takings = meter.state().takings
    assert takings.by_sku["chat"].nano_usd == 2 * 740_000
    assert takings.by_tenant["acme"].output_tokens == 150
    assert takings.by_ending == {"completed": 1, "cancelled": 1, "failed": 1}
    meter.close()


def test_progress_is_another_entrys_when_its_slot_was_taken_again(tmp_path: Path) -> None:
    progress = Progress(tmp_path / "slots", slots=1)
    slot = progress.take(1)
    assert slot == 0
    progress.put(slot, 5, 99)
    assert progress.take(2) is None  # all are taken
    assert progress.left_by(slot, 1) == (5, 99)
    progress.give_back(slot)
    assert progress.take(2) == 0
    assert progress.left_by(0, 1) is None
    assert progress.left_by(0, 2) == (0, 0)
    progress.close()


def test_a_row_comes_back_as_it_was_when_read_from_the_journal(tmp_path: Path) -> None:
    meter = meter_in(tmp_path, fold_every_s=600)
    meter.start()
    meter.admitted(admitted('a "quoted"\nname'))
    (segment,) = meter._journal.closed_segments()  # pyright: ignore[reportPrivateUsage]
    rows, damaged = read_segment(segment)
    assert damaged == 0
    (intent,) = rows
    assert isinstance(intent, Intent)
    assert intent.request_id == 'a "quoted"\nname'
    meter.close()
    assert Journal(tmp_path).pending_bytes == 0


def test_a_segment_is_folded_once_it_is_closed_when_rows_go_on_coming(tmp_path: Path) -> None:
    meter = meter_in(tmp_path, fold_every_s=600)
    meter.start()
    journal = meter._journal  # pyright: ignore[reportPrivateUsage]
    meter.admitted(admitted("r1"))
    (first,) = journal.closed_segments()
    meter.admitted(admitted("r2"))
    first_and_second = journal.closed_segments()
    assert first_and_second[0] == first
    assert len(first_and_second) == 2
    held = journal.pending_bytes
    size = first.stat().st_size
    journal.folded(first, damaged=False)
    assert journal.pending_bytes == held - size
    meter.close()


@pytest.mark.parametrize("change", ["DELETE FROM settlements", "UPDATE intents SET tenant = 'x'"])
def test_the_ledger_refuses_when_a_row_would_be_changed(tmp_path: Path, change: str) -> None:
    meter = meter_in(tmp_path)
    meter.start()
    meter.admitted(admitted("r"))
    meter.spent(spent("r"))
    meter.close()
    database = sqlite3.connect(tmp_path / "usage.sqlite")
    with pytest.raises(sqlite3.IntegrityError, match="append-only"):
        database.execute(change)
    database.close()


@pytest.mark.parametrize("address", ["mysql://host/x", "file:///x"])
def test_a_ledger_is_refused_when_its_kind_is_unknown(address: str) -> None:
    with pytest.raises(UsageError, match="no kind of ledger"):
        open_ledger(address)


def test_a_ledger_is_refused_when_the_file_is_something_else(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("not a database at all, but long enough to be looked at " * 4)
    with pytest.raises(UsageError, match="cannot be used as a ledger"):
        open_ledger(tmp_path / "notes.txt")


def gateway(body: str, directory: Path, label: str = "", *, start: bool = True) -> subprocess.Popen[str]:
    """A process that runs `body` with a `meter` on `directory`."""
    head = f"""
        import sys, time
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        from pathlib import Path
        from longproof.gateway.ports import MeterUnavailable
        from test_meter import BOOK, FakeClock, MeterSettings, SqliteLedger, UsageMeter, admitted, spent
        directory, label = Path(sys.argv[1]), sys.argv[2]
        ledger = SqliteLedger(directory / "usage.sqlite")
        """
    if start:
        head += """
        meter = UsageMeter(directory, ledger, MeterSettings(book=BOOK, fold_every_s=600), FakeClock())
        meter.start()
        """
    code = textwrap.dedent(head) + textwrap.dedent(body)
    return subprocess.Popen(
        [sys.executable, "-c", code, str(directory), label], stdout=subprocess.PIPE, text=True, env=os.environ.copy()
    )
