"""Readers of request traces, on files in the public formats."""

from __future__ import annotations

from pathlib import Path

import pytest

from longproof.errors import UsageError
from longproof.plan.traces import TraceRow, read_trace


def test_mooncake_rows_keep_blocks_and_order_when_read(tmp_path: Path) -> None:
    path = tmp_path / "conversation.jsonl"
    path.write_text(
        '{"timestamp": 3000, "input_length": 700, "output_length": 5, "hash_ids": [0, 1]}\n'
        "\n"
        '{"timestamp": 6000, "input_length": 512, "output_length": 9, "hash_ids": [0]}\n'
    )
    assert read_trace(path) == (
        TraceRow(at_ns=0, input_tokens=700, output_tokens=5, block_ids=(0, 1)),
        TraceRow(at_ns=3_000_000_000, input_tokens=512, output_tokens=9, block_ids=(0,)),
    )


def test_azure_times_keep_seven_decimals_when_read(tmp_path: Path) -> None:
    path = tmp_path / "code.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:17:03.9799600,4808,10\n"
        "2023-11-16 18:17:04.0319601,3180,8\n"
        "2023-11-17 18:17:04,1,1\n"
    )
    rows = read_trace(path)
    # 0.0319601 + 1 - 0.9799600 = 0.0520001 s; a day later 86,400.02004 s
    assert [row.at_ns for row in rows] == [0, 52_000_100, 86_400_020_040_000]
    assert (rows[0].input_tokens, rows[0].output_tokens, rows[0].block_ids) == (4808, 10, ())


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.jsonl", '{"timestamp": 0, "input_length": 1}\n', "line 1: not a row with timestamp"),
        ("a.jsonl", '{"timestamp": 0, "input_length": 1, "output_length": 1}\n[1]\n', "line 2"),
        ("a.jsonl", "", "has no rows"),
        ("a.csv", "TIMESTAMP,ContextTokens\n2023-11-16 18:17:03.9,1\n", "line 2: not a row with TIMESTAMP"),
        ("a.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,1,2\n", "line 2"),
        ("a.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9,-1,2\n", "negative length"),
        ("a.parquet", "", "neither .jsonl nor .csv"),
    ],
)
def test_a_broken_trace_is_named_with_file_and_line_when_read(tmp_path: Path, name: str, text: str, said: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(UsageError, match=said) as found:
        read_trace(path)
    assert name in found.value.problem


def test_a_missing_trace_is_named_when_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        read_trace(tmp_path / "none.csv")
