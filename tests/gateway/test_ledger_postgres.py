"""The usage ledger on a real PostgreSQL, started here for these tests."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from longproof.gateway import ledger_postgres
from longproof.gateway.ledger_rows import Intent, Settlement, Timing, settlement
from longproof.gateway.ledger_store import LedgerStore, SqliteLedger, open_ledger
from longproof.gateway.meter import MeterSettings, UsageMeter
from longproof.gateway.ports import Admitted
from longproof.policy.metering import CacheSource, Ending, PriceBook, RequestUsage, UsageSource, bill
from longproof.testing.ports import free_port

pytestmark = pytest.mark.postgres


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    """The URL of a database. Its server refuses to run as root, so it runs as nobody then."""
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin/pg_ctl"))
    control = shutil.which("pg_ctl") or (str(debian[-1]) if debian else None)
    assert control is not None, "no pg_ctl (Debian: apt-get install postgresql)"
    folder = Path(tempfile.mkdtemp(prefix="longproof-postgres-"))  # pytest's own folders are closed to nobody
    who = pwd.getpwnam("nobody") if os.geteuid() == 0 else None
    if who is not None:
        os.chown(folder, who.pw_uid, who.pw_gid)
    data, port = folder / "data", 0
    as_user = {} if who is None else {"user": who.pw_uid, "group": who.pw_gid, "cwd": folder}

    def call(*arguments: str) -> None:
        subprocess.run([control, *arguments], check=True, capture_output=True, timeout=120, **as_user)  # type: ignore[call-overload]

    call("initdb", "-D", str(data), "-o", "--auth=trust --username=longproof --no-sync")
    port = free_port()
    call("start", "-w", "-D", str(data), "-l", str(folder / "log"), "-o", f"-p {port} -k {folder} -F -h 127.0.0.1")
    try:
        yield f"postgresql://longproof:secret@127.0.0.1:{port}/postgres"
    finally:
        call("stop", "-D", str(data), "-m", "immediate")
        shutil.rmtree(folder)


def intent(number: int, gateway: str = "g1") -> Intent:
    return Intent(
        entry=f"{gateway}-b-{number}",
        gateway=gateway,
        request_id='"; DROP TABLE intents; --\u2028',
        tenant="Ünï",
        key="k",
        model="m",
        replica="a",
        pool="long",
        input_tokens=2**40,
        allowance_tokens=1,
        at_unix_ns=1_800_000_000_000_000_000 + number,
        slot=None,
    )


def ended(of: Intent) -> Settlement:
    usage = RequestUsage(
        input_tokens=7,
        output_tokens=3,
        cached_tokens=None,
        cached_from=CacheSource.UNKNOWN,
        kv_token_ms=2**50,
        counted_by=UsageSource.ENGINE,
    )
    priced = bill(usage, model="m", pool="long", ending=Ending.COMPLETED, book=PriceBook())
    timing = Timing(at_unix_ns=of.at_unix_ns + 5, ran_ns=5)
    return settlement(of.entry, Ending.COMPLETED, 200, timing, usage, priced)


def test_both_ledgers_give_the_same_rows_back(postgres: str, tmp_path: Path) -> None:
    ledgers: list[LedgerStore] = [open_ledger(postgres), SqliteLedger(tmp_path / "usage.sqlite")]
    first, second, others = intent(1), intent(2), intent(3, gateway="g2")
    for ledger in ledgers:
        ledger.write([first, second, others])
        ledger.write([ended(first), first])  # a row that is there already is left alone
        ledger.write([ended(first)])
        assert ledger.unsettled("g1") == [second]
        assert list(ledger.settled()) == [(first, ended(first))]
        assert list(ledger.settled(since_unix_ns=first.at_unix_ns + 6)) == []
    assert "secret" not in ledgers[0].place
    for ledger in ledgers:
        ledger.close()


def test_every_row_is_read_once_when_there_are_more_than_a_page(postgres: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_postgres, "PAGE_ROWS", 3)
    ledger = open_ledger(postgres)
    many = [intent(100 + number // 2, gateway=f"page{number % 2}") for number in range(12)]  # two of each moment
    ledger.write([*many, *map(ended, many)])
    read = [one.entry for one, _ in ledger.settled(since_unix_ns=many[0].at_unix_ns + 5) if "page" in one.gateway]
    assert read == sorted((one.entry for one in many), key=lambda entry: (int(entry.rpartition("-")[2]), entry))
    ledger.close()


def test_the_ledger_refuses_when_a_row_would_be_changed(postgres: str) -> None:
    import pg8000.native

    ledger = open_ledger(postgres)
    ledger.write([intent(10)])
    database = ledger._db  # type: ignore[attr-defined]
    for change in ("UPDATE intents SET tenant = 'x'", "DELETE FROM settlements", "TRUNCATE intents"):
        with pytest.raises(pg8000.native.DatabaseError, match="append-only"):
            database.run(change)
    ledger.close()


def test_a_request_is_kept_when_its_names_are_nothing_a_database_holds(postgres: str, tmp_path: Path) -> None:
    # NUL is no character of a PostgreSQL text, a lone surrogate is none of UTF-8, and 2**70 is no 64-bit number
    ledger = open_ledger(postgres)
    meter = UsageMeter(tmp_path, ledger, MeterSettings(gateway="odd"))
    meter.start()
    odd = "a\x00b\udc80" + "x" * 10_000
    meter.admitted(
        Admitted(
            id=odd, key=odd, tenant=odd, model=odd, replica="a", input_tokens=5, output_tokens=2**70, at_ns=0, pool="p"
        )
    )
    meter.close()
    again = open_ledger(postgres)
    (kept,) = again.unsettled("odd")
    assert kept.request_id == "a\ufffdb?" + "x" * 508
    assert kept.allowance_tokens == 10**11
    again.close()


def test_writing_goes_on_when_the_connection_was_lost(postgres: str) -> None:
    import pg8000.native

    ledger = open_ledger(postgres)
    ledger._db.run("SET statement_timeout = 0")  # type: ignore[attr-defined]
    other = open_ledger(postgres)
    other._db.run(  # type: ignore[attr-defined]
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
    )
    with pytest.raises((pg8000.native.Error, OSError)):  # the farewell is read, or the connection is found reset
        ledger.write([intent(20)])
    ledger.write([intent(20)])
    assert intent(20) in ledger.unsettled("g1")
    ledger.close()
    other.close()


def test_half_a_batch_is_never_kept_when_one_row_is_refused(postgres: str) -> None:
    import pg8000.native

    ledger = open_ledger(postgres)
    bad = intent(31)
    object.__setattr__(bad, "input_tokens", 2**63)  # more than a column holds
    with pytest.raises(pg8000.native.DatabaseError):
        ledger.write([intent(30), bad])
    assert intent(30) not in ledger.unsettled("g1")
    ledger.close()
