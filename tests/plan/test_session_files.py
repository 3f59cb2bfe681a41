"""Mixes from files: traces and the two tables anybody can write."""

from __future__ import annotations

from pathlib import Path

import pytest

from longproof.errors import UsageError
from longproof.plan.mix import SessionShare
from longproof.plan.session_files import read_mix


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_table_counts_each_named_prefix_once_when_read(tmp_path: Path) -> None:
    path = written(
        tmp_path / "table.csv",
        "input_tokens,output_tokens,share,shared_tokens,prefix\n"
        "8k,500,0.9,2000,support\n"
        "128Ki,2_000,0.09,1500,support\n"
        "900000,4000,0.01,30000,contracts\n",
    )
    mix = read_mix(path)
    assert mix.sessions[1] == SessionShare(input_tokens=131_072, output_tokens=2_000, share=0.09, shared_tokens=1500)
    assert mix.pinned_tokens == 2_000 + 30_000
    assert mix.source == "table.csv"


def test_short_table_shares_nothing_when_columns_are_left_out(tmp_path: Path) -> None:
    mix = read_mix(written(tmp_path / "t.csv", "input_tokens,output_tokens,share\n1000,100,3\n2000,100,1\n"))
    assert (mix.pinned_tokens, mix.mean_tokens) == (0, (3 * 1100 + 2100) / 4)


def test_histogram_is_told_apart_when_its_header_says_so(tmp_path: Path) -> None:
    mix = read_mix(written(tmp_path / "h.csv", "high_tokens,share\n8192,90\n131072,10\n1048576,0\n"))
    assert [one.total_tokens for one in mix.sessions] == [8192, 131_072]


def test_traces_are_told_apart_when_the_file_is_one(tmp_path: Path) -> None:
    azure = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n"
    assert read_mix(written(tmp_path / "a.csv", azure)).longest_tokens == 4818
    mooncake = '{"timestamp": 0, "input_length": 700, "output_length": 5, "hash_ids": [0, 1]}\n'
    assert read_mix(written(tmp_path / "m.jsonl", mooncake)).longest_tokens == 705


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a,b\n1,2\n", "no header that is known"),
        ("", "no header that is known"),
        ("input_tokens,output_tokens,share\nmany,1,1\n", "line 2: input_tokens 'many' is not a token count"),
        ("input_tokens,output_tokens,share\n1,1,half\n", "line 2: the share 'half' is not a number"),
        ("input_tokens,output_tokens,share\n1,1\n", "line 2: the share 'None' is not a number"),
        ("input_tokens,output_tokens,share\n1,1,0\n", "share 0"),
    ],
)
def test_a_broken_table_is_named_with_its_line_when_read(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        read_mix(written(tmp_path / "t.csv", text))


def test_a_missing_table_is_named_when_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        read_mix(tmp_path / "none.csv")
