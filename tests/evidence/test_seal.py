"""Damage is found and named: by the chain alone while a run is unsealed, to the last byte once it is sealed."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longproof.errors import EvidenceError
from longproof.evidence.codec import encode
from longproof.evidence.reading import read
from longproof.evidence.records import NoteBody
from longproof.evidence.store import Journal
from longproof.testing.builders import build_header, build_request

RECORDS = 5


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("sealed")
    (directory / "engine.log").write_text("engine: loaded\nengine: stopped\n")
    with Journal.create(directory, build_header()) as journal:
        for number in range(RECORDS - 1):
            journal.append(f"speed/{number}", build_request("speed", {"tokens": 512, "repeat": number}))
        journal.append("run/note", NoteBody(probe="run", what="a note", detail={"n": 1}))
        journal.seal(complete=True)
    read(directory)
    return directory


@pytest.fixture
def run(sealed: Path, tmp_path: Path) -> Path:
    shutil.copytree(sealed, tmp_path / "run")
    return tmp_path / "run"


def lines(directory: Path) -> list[bytes]:
    return (directory / "records.jsonl").read_bytes().splitlines(keepends=True)


def write_lines(directory: Path, new: list[bytes]) -> None:
    (directory / "records.jsonl").write_bytes(b"".join(new))


@pytest.mark.parametrize("with_seal", [True, False])
@pytest.mark.parametrize("number", range(RECORDS))
def test_error_names_the_line_when_a_record_is_deleted(run: Path, number: int, with_seal: bool) -> None:
    if not with_seal:
        (run / "seal.json").unlink()
    write_lines(run, [line for at, line in enumerate(lines(run)) if at != number])
    if number < RECORDS - 1:
        with pytest.raises(EvidenceError, match=rf"records.jsonl line {number + 1} .* does not follow"):
            read(run)
    elif with_seal:
        with pytest.raises(EvidenceError, match=r"holds 4 records, sealed were 5"):
            read(run)
    else:
        assert len(read(run).records) == RECORDS - 1  # what a chain cannot hold: its own end


@pytest.mark.parametrize("with_seal", [True, False])
@pytest.mark.parametrize("number", range(RECORDS))
def test_error_when_a_record_is_edited(run: Path, number: int, with_seal: bool) -> None:
    if not with_seal:
        (run / "seal.json").unlink()
    new = lines(run)
    old, edit = (b'"max_tokens":16', b'"max_tokens":17') if number < RECORDS - 1 else (b"a note", b"a vote")
    assert old in new[number]
    new[number] = new[number].replace(old, edit)
    write_lines(run, new)
    if number < RECORDS - 1:
        with pytest.raises(
            EvidenceError, match=rf"records.jsonl line {number + 2} .* does not follow line {number + 1}"
        ):
            read(run)
    elif with_seal:
        with pytest.raises(EvidenceError, match=r"records.jsonl was changed after the run was sealed"):
            read(run)


@pytest.mark.parametrize("number", range(RECORDS - 1))
def test_error_when_two_records_change_places(run: Path, number: int) -> None:
    (run / "seal.json").unlink()
    new = lines(run)
    new[number], new[number + 1] = new[number + 1], new[number]
    write_lines(run, new)
    with pytest.raises(EvidenceError, match=rf"line {number + 1} .* does not follow"):
        read(run)


@pytest.mark.parametrize("number", range(RECORDS))
def test_error_when_a_record_is_doubled(run: Path, number: int) -> None:
    (run / "seal.json").unlink()
    new = lines(run)
    write_lines(run, [*new[: number + 1], *new[number:]])
    with pytest.raises(EvidenceError, match=rf"line {number + 2} .* does not follow"):
        read(run)


def test_error_when_a_key_stands_twice_in_a_sound_chain(tmp_path: Path) -> None:
    from longproof.evidence.chain import link, make_line

    with Journal.create(tmp_path, build_header()) as journal:
        journal.append("a", NoteBody(probe="p", what="one", detail={}))
    first = (tmp_path / "records.jsonl").read_bytes()
    second = make_line(1, "a", link(first[:-1]), NoteBody(probe="p", what="two", detail={}))
    (tmp_path / "records.jsonl").write_bytes(first + second)
    with pytest.raises(EvidenceError, match=r"line 2: key 'a' already stands in line 1"):
        read(tmp_path)


def test_error_when_a_number_is_skipped_in_a_sound_chain(tmp_path: Path) -> None:
    from longproof.evidence.chain import link, make_line

    with Journal.create(tmp_path, build_header()):
        pass
    header = (tmp_path / "header.json").read_bytes()
    (tmp_path / "records.jsonl").write_bytes(make_line(1, "a", link(header), NoteBody(probe="p", what="w", detail={})))
    with pytest.raises(EvidenceError, match=r"line 1 \(record 1, 'a'\) does not follow header.json"):
        read(tmp_path)


@pytest.mark.parametrize("with_seal", [True, False])
def test_error_when_the_header_is_changed(run: Path, with_seal: bool) -> None:
    if not with_seal:
        (run / "seal.json").unlink()
    header = replace(build_header(), target="http://another:1")
    (run / "header.json").write_bytes(encode(header, indent=True) + b"\n")
    with pytest.raises(EvidenceError, match=r"line 1 .* does not follow header.json"):
        read(run)


def test_error_when_the_engine_log_is_changed_added_or_missing(run: Path) -> None:
    log = run / "engine.log"
    text = log.read_text()
    log.write_text(text + "engine: one more line\n")
    with pytest.raises(EvidenceError, match=r"engine.log was changed after"):
        read(run)
    log.unlink()
    with pytest.raises(EvidenceError, match=r"engine.log is missing"):
        read(run)
    log.write_text(text)
    assert read(run).complete


def test_error_when_a_log_appears_that_the_seal_does_not_know(tmp_path: Path) -> None:
    with Journal.create(tmp_path, build_header()) as journal:
        journal.seal(complete=True)
    (tmp_path / "engine.log").write_text("x")
    with pytest.raises(EvidenceError, match=r"engine.log was added after"):
        read(tmp_path)


@pytest.mark.parametrize("name", ["header.json", "records.jsonl"])
def test_error_says_what_to_do_when_a_file_is_missing(run: Path, name: str) -> None:
    (run / name).unlink()
    with pytest.raises(EvidenceError, match=f"{name} is missing") as caught:
        read(run)
    assert "prove --out" in caught.value.advice


def test_error_when_the_seal_names_no_header(run: Path) -> None:
    seal = (run / "seal.json").read_text()
    (run / "seal.json").write_text(seal.replace('"header.json"', '"other.json"'))
    with pytest.raises(EvidenceError, match=r"header.json is not named by the seal"):
        read(run)


@pytest.mark.parametrize("name", ["header.json", "seal.json"])
def test_error_names_both_formats_when_written_by_another_version(run: Path, name: str) -> None:
    path = run / name
    path.write_text(path.read_text().replace('"format": 1', '"format": 2'))
    with pytest.raises(EvidenceError, match=f"{name} has format 2; this longproof reads format 1"):
        read(run)


def test_any_changed_byte_is_found_when_sealed(sealed: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(sealed, copy)

    @settings(max_examples=150, deadline=None)
    @given(st.sampled_from(["header.json", "records.jsonl", "engine.log"]), st.floats(0, 1), st.integers(1, 255))
    def check(name: str, where: float, change: int) -> None:
        whole = (sealed / name).read_bytes()
        place = min(int(where * len(whole)), len(whole) - 1)
        (copy / name).write_bytes(whole[:place] + bytes([whole[place] ^ change]) + whole[place + 1 :])
        with pytest.raises(EvidenceError):
            read(copy)
        (copy / name).write_bytes(whole)

    check()
    assert read(copy).complete


def test_derived_files_are_no_evidence_when_they_change(run: Path) -> None:
    digest = read(run).digest
    (run / "claim.json").write_text("{}")
    (run / "report.html").write_text("<p>")
    assert read(run).digest == digest


def test_digest_differs_when_evidence_does_and_is_the_same_when_read_twice(run: Path) -> None:
    sealed_digest = read(run).digest
    assert read(run).digest == sealed_digest
    (run / "seal.json").unlink()
    unsealed = read(run).digest
    assert unsealed != sealed_digest
    with (run / "records.jsonl").open("ab") as records:
        records.write(b'{"half": ')
    assert read(run).digest == unsealed  # what a killed writer left is not evidence
    write_lines(run, lines(run)[:-2])
    assert read(run).digest != unsealed
