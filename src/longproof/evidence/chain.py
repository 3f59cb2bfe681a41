"""The chain through records.jsonl: each line names the hash of what stands before it.

    header.json ──sha256──▶ line 0 .prev
                            line 0 ──sha256──▶ line 1 .prev
                                               line 1 ──sha256──▶ line 2 .prev

A line that is removed, edited, moved or doubled breaks the next link; the last line is held by the seal.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from longproof.errors import EvidenceError
from longproof.evidence.codec import decode, encode
from longproof.evidence.records import Body, Record

_NEWLINE = b"\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """The whole lines of a records file. `length_bytes` ends after the last newline; `torn_bytes` is what a killed
    writer left behind it; `last` is the link the next record must carry."""

    records: tuple[Record, ...]
    length_bytes: int
    torn_bytes: int
    last: str


def link(data: bytes) -> str:
    """The link to what `data` holds: sha256, hex. For a line, without its newline."""
    return hashlib.sha256(data).hexdigest()


def make_line(seq: int, key: str, prev: str, body: Body) -> bytes:
    """One line of the records file, newline included."""
    return encode(Record(seq=seq, key=key, prev=prev, body=body)) + _NEWLINE


def read_chain(data: bytes, *, header: bytes, where: str) -> Chain:
    """The records of a file's bytes, every link checked. What follows the last newline is counted as torn, never read.

    Raises EvidenceError naming the line (counted from 1) for a broken link, a key that stands twice, or a line that is
    no record.
    """
    length = data.rfind(_NEWLINE) + 1
    records: list[Record] = []
    lines_by_key: dict[str, int] = {}
    last = link(header)
    for number, line in enumerate(data[:length].split(_NEWLINE)[:-1], start=1):
        record = decode(Record, line, where=f"{where} line {number}")
        _check(record, number, last, lines_by_key, where)
        records.append(record)
        last = link(line)
    return Chain(records=tuple(records), length_bytes=length, torn_bytes=len(data) - length, last=last)


def _check(record: Record, number: int, last: str, lines_by_key: dict[str, int], where: str) -> None:
    advice = "evidence cannot be mended: use an untouched copy of the directory, or prove again into a new one"
    if record.prev != last or record.seq != number - 1:
        before = "header.json" if number == 1 else f"line {number - 1}"
        raise EvidenceError(
            f"{where} line {number} (record {record.seq}, '{record.key}') does not follow {before}: "
            "a record was removed, edited, moved or doubled",
            advice=advice,
        )
    if record.key in lines_by_key:
        raise EvidenceError(
            f"{where} line {number}: key '{record.key}' already stands in line {lines_by_key[record.key]}",
            advice=advice,
        )
    lines_by_key[record.key] = number
