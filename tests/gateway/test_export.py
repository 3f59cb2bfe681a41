"""Tables of the usage ledger."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from longproof.cli.main import run
from longproof.cli.replay_decisions import replay_decisions
from longproof.cli.usage import usage
from longproof.errors import UsageError
from longproof.gateway.export import REQUEST_COLUMNS, parquet_bytes, requests_sheet, sums_sheet, write_csv
from longproof.gateway.ledger_rows import Intent, Timing, settlement
from longproof.gateway.ledger_sql import Settled
from longproof.gateway.ledger_store import SqliteLedger
from longproof.policy.metering import CacheSource, Ending, PriceBook, Prices, RequestUsage, Sku, UsageSource, bill

BOOK = PriceBook(skus=(Sku(name="chat", prices=Prices(input_cold=1_500_000, input_cached=0, output=0), models=("m",)),))
NOON_NS = int(datetime(2026, 11, 30, 12, 0, tzinfo=UTC).timestamp()) * 10**9
DAY_NS = 86_400 * 10**9


def request(
    number: int,
    *,
    tenant: str = "acme",
    model: str = "m",
    days: int = 0,
    cached: int | None = 100,
    ms: int | None = 2_500,
) -> Settled:
    """1,000 tokens in, 50 out."""
    at_ns = NOON_NS + days * DAY_NS + number * 1_000
    intent = Intent(
        entry=f"g-b-{number}",
        gateway="g",
        request_id=f"r{number}",
        tenant=tenant,
        key="k",
        model=model,
        replica="a",
        pool="p",
        input_tokens=1_000,
        allowance_tokens=64,
        at_unix_ns=at_ns,
    )
    used = RequestUsage(
        input_tokens=1_000,
        output_tokens=50,
        cached_tokens=cached,
        cached_from=CacheSource.UNKNOWN if cached is None else CacheSource.ENGINE,
        kv_token_ms=ms,
        counted_by=UsageSource.ENGINE,
    )
    priced = bill(used, model=model, pool="p", ending=Ending.COMPLETED, book=BOOK)
    timing = Timing(at_unix_ns=at_ns + 5_000_000, ran_ns=5_000_000)
    return intent, settlement(intent.entry, Ending.COMPLETED, 200, timing, used, priced)


def read(sheet: Any) -> list[dict[str, str]]:
    text = io.StringIO()
    write_csv(sheet, text)
    return list(csv.DictReader(io.StringIO(text.getvalue())))


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Path]:
    store = SqliteLedger(tmp_path / "usage.sqlite")
    pairs = [request(1), request(2, tenant="globex", days=1), request(3, model="other", days=1)]
    store.write([row for pair in pairs for row in pair])
    store.close()
    return tmp_path / "usage.sqlite"


def test_a_request_is_one_row_with_exact_amounts() -> None:
    (row,) = read(requests_sheet([request(1)]))
    assert list(row) == [column.name for column in REQUEST_COLUMNS]
    # 900 cold x 1.5 uUSD = 1,350 uUSD
    assert row["total_usd"] == "0.00135"
    assert row["ended_at"] == "2026-11-30T12:00:00.005001+00:00"
    assert (row["charged"], row["input_cold_tokens"]) == ("true", "900")


def test_a_cell_is_empty_when_nothing_is_known() -> None:
    (row,) = read(requests_sheet([request(1, cached=None, model="other", ms=None)]))
    assert (row["input_cached_tokens"], row["kv_token_ms"], row["sku"], row["total_usd"]) == ("", "", "", "")


def test_sums_are_by_what_was_asked() -> None:
    pairs = [request(1), request(2), request(3, tenant="globex", days=1), request(4, model="other", ms=None)]
    rows = read(sums_sheet(pairs, ["tenant", "day"]))
    assert [(row["tenant"], row["day"], row["requests"]) for row in rows] == [
        ("acme", "2026-11-30", "3"),
        ("globex", "2026-12-01", "1"),
    ]
    # two of three have a price: 2 x 1,350 uUSD, and 2 x 2.5 token-s
    assert (rows[0]["usd"], rows[0]["unpriced_requests"], rows[0]["kv_token_seconds"]) == ("0.0027", "1", "5")


def test_sums_are_refused_when_their_name_is_unknown() -> None:
    with pytest.raises(UsageError, match="no sums by 'colour'"):
        sums_sheet([], ["colour"])


@pytest.mark.parametrize("name", ["=1+1", "+1", "-1", "@x", "\tx"])
def test_a_spreadsheet_sees_text_when_a_name_looks_like_a_formula(name: str) -> None:
    (row,) = read(requests_sheet([request(1, tenant=name)]))
    assert row["tenant"] == "'" + name


def test_parquet_keeps_types_and_amounts() -> None:
    from pyarrow import parquet

    table = parquet.read_table(io.BytesIO(parquet_bytes(requests_sheet([request(1), request(2, model="other")]))))
    assert table.column("total_usd").to_pylist() == [Decimal("0.00135"), None]
    assert str(table.schema.field("ended_at").type) == "timestamp[us, tz=UTC]"
    assert table.column("charged").to_pylist() == [True, True]
    empty = parquet.read_table(io.BytesIO(parquet_bytes(sums_sheet([], ["day"]))))
    assert empty.num_rows == 0
    assert str(empty.schema.field("usd").type) == "decimal128(38, 9)"


def test_the_command_lists_a_time_window(ledger: Path) -> None:
    ran = CliRunner().invoke(usage, [str(ledger), "--since", "2026-12-01", "--format", "json"])
    assert ran.exit_code == 0
    rows = [json.loads(line) for line in ran.stdout.splitlines()]
    assert [row["request_id"] for row in rows] == ["r2", "r3"]
    assert rows[0]["total_usd"] == "0.00135"
    for same in ("2026-12-01T02:00:00+02:00", "2026-11-30 19:00:00.000000-05:00", rows[0]["ended_at"]):
        again = CliRunner().invoke(usage, [str(ledger), "--since", same, "--format", "json"])
        assert again.stdout == ran.stdout  # what it prints it also takes
    ran = CliRunner().invoke(usage, [str(ledger), "--until", "2026-12-01", "--by", "sku"])
    assert ran.stdout.splitlines()[1].startswith("chat,1,900,100,50,")


def test_the_command_writes_a_file(ledger: Path, tmp_path: Path) -> None:
    from pyarrow import parquet

    target = tmp_path / "usage.parquet"
    assert CliRunner().invoke(usage, [str(ledger), "--format", "parquet", "--out", str(target)]).exit_code == 0
    assert parquet.read_table(target).num_rows == 3


def test_the_command_makes_no_ledger_when_there_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["usage", str(tmp_path / "none.sqlite")]) == 2
    assert "there is no ledger" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_the_replay_command_says_whether_anything_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from test_decisions import log_of

    path = log_of(tmp_path / "decisions.jsonl")
    ran = CliRunner().invoke(replay_decisions, [str(path)], standalone_mode=False)
    assert ran.return_value == 0
    assert "everything is decided as it was" in ran.stdout
    path.write_bytes(path.read_bytes().replace(b'"most_waiting":8', b'"most_waiting":1'))
    ran = CliRunner().invoke(replay_decisions, [str(path)], standalone_mode=False)
    assert ran.return_value == 1
    assert "answered otherwise" in ran.stdout
    ran = CliRunner().invoke(replay_decisions, [str(path), "--request", "nobody"], standalone_mode=False)
    assert (ran.return_value, ran.stdout) == (1, "")
    assert run(["replay-decisions", str(tmp_path / "none")]) == 2
