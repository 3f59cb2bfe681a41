"""The journal: what is appended stays, in order, once; a second writer is kept out; a torn end is cut."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from longproof.clock import SystemClock
from longproof.errors import EvidenceError
from longproof.evidence.reading import holds_run, read
from longproof.evidence.records import NoteBody, SessionBody
from longproof.evidence.store import Journal
from longproof.testing.builders import build_header, build_request

HEADER = build_header()


def note(text: str) -> NoteBody:
    return NoteBody(probe="test", what=text, detail={"length": len(text)})


def run_of(directory: Path, *texts: str) -> Path:
    with Journal.create(directory, HEADER) as journal:
        for text in texts:
            journal.append(text, note(text))
    return directory


def writer(code: str, *arguments: str) -> subprocess.Popen[str]:
    """A process of its own that has `journal` open and runs `code`."""
    script = """
        import sys, time
        from pathlib import Path
        from longproof.evidence.records import NoteBody
        from longproof.evidence.store import Journal
        from longproof.testing.builders import build_header
        directory = Path(sys.argv[1])
        journal = Journal.create(directory, build_header())
        """
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script) + textwrap.dedent(code), *arguments],
        stdout=subprocess.PIPE,
        text=True,
    )


def test_records_come_back_in_order_when_read(tmp_path: Path) -> None:
    run_of(tmp_path, "a", "b", "c")
    stored = read(tmp_path)
    assert [record.key for record in stored.records] == ["a", "b", "c"]
    assert [record.seq for record in stored.records] == [0, 1, 2]
    assert stored.records[1].body == note("b")
    assert stored.header == HEADER
    assert (stored.seal, stored.complete, stored.chain.torn_bytes) == (None, False, 0)


def test_get_answers_what_stands_on_disk_when_asked_before_and_after_resume(tmp_path: Path) -> None:
    body = build_request("speed", {"tokens": 512})
    with Journal.create(tmp_path, HEADER) as journal:
        record = journal.append("speed/512/0", body)
        assert journal.get("speed/512/0") == body
        assert journal.get("speed/512/1") is None
        assert journal.records == (record,)
    with Journal.resume(tmp_path) as journal:
        assert journal.get("speed/512/0") == body
        assert journal.header == HEADER
        assert journal.records == (record,)


def test_header_is_on_disk_before_the_first_record_when_created(tmp_path: Path) -> None:
    directory = tmp_path / "deep" / "run"
    assert not holds_run(directory)
    with Journal.create(directory, HEADER):
        assert holds_run(directory)
        assert read(directory).records == ()


def test_value_error_when_a_key_is_appended_twice(tmp_path: Path) -> None:
    with Journal.create(tmp_path, HEADER) as journal:
        journal.append("a", note("a"))
        with pytest.raises(ValueError, match="already has a record under 'a'"):
            journal.append("a", note("b"))
    assert len(read(tmp_path).records) == 1


def test_runtime_error_when_appended_after_seal_or_close(tmp_path: Path) -> None:
    journal = Journal.create(tmp_path, HEADER)
    journal.seal(complete=False)
    with pytest.raises(RuntimeError, match="sealed"):
        journal.append("a", note("a"))
    with pytest.raises(RuntimeError, match="already sealed"):
        journal.seal(complete=True)
    journal.close()
    journal = Journal.resume(tmp_path)
    journal.close()
    journal.close()
    with pytest.raises(RuntimeError, match="closed"):
        journal.append("a", note("a"))


def test_each_session_has_its_own_salt_when_resumed(tmp_path: Path) -> None:
    with Journal.create(tmp_path, HEADER) as journal:
        first = journal.start_session(SystemClock())
    with Journal.resume(tmp_path) as journal:
        second = journal.start_session(SystemClock())
    assert [record.key for record in read(tmp_path).records] == ["session.0", "session.1"]
    assert isinstance(first, SessionBody)
    assert first.salt != second.salt
    assert len(bytes.fromhex(first.salt)) == 16


def test_host_facts_name_no_machine_user_or_path_when_recorded(tmp_path: Path) -> None:
    import getpass
    import platform

    with Journal.create(tmp_path, HEADER) as journal:
        facts = journal.start_session(SystemClock()).host
    assert set(facts) == {"cpu", "cpus", "memory", "os", "python"}
    said = " ".join(facts.values())
    names = {platform.node(), str(Path.home()), f"/{getpass.getuser()}"} - {"", "/"}  # a container may have none
    assert [name for name in names if name in said] == []
    assert int(facts["cpus"]) >= 1


def test_error_when_directory_already_holds_a_run(tmp_path: Path) -> None:
    run_of(tmp_path)
    with pytest.raises(EvidenceError, match="already holds a run"):
        Journal.create(tmp_path, HEADER)


def test_error_when_records_stand_without_a_header(tmp_path: Path) -> None:
    run_of(tmp_path, "a")
    (tmp_path / "header.json").unlink()
    with pytest.raises(EvidenceError, match="records without a header"):
        Journal.create(tmp_path, HEADER)


def test_error_when_directory_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(EvidenceError, match="cannot be written"):
        Journal.create(tmp_path / "file", HEADER)


def test_run_begins_when_a_crash_left_everything_but_the_header(tmp_path: Path) -> None:
    (tmp_path / "records.jsonl").touch()
    (tmp_path / ".header.json.new").write_text("{")
    run_of(tmp_path, "a")
    assert len(read(tmp_path).records) == 1


def test_whole_lines_stay_and_nothing_doubles_when_cut_at_any_byte(tmp_path: Path) -> None:
    texts = ["first", "zwei – ü", "third 🙂"]
    run_of(tmp_path, *texts)
    whole = (tmp_path / "records.jsonl").read_bytes()
    ends = [place + 1 for place, byte in enumerate(whole) if byte == ord("\n")]
    assert len(ends) == 3
    for cut in range(len(whole) + 1):
        (tmp_path / "records.jsonl").write_bytes(whole[:cut])
        kept = sum(end <= cut for end in ends)
        assert read(tmp_path).chain.torn_bytes == cut - max([0, *(end for end in ends if end <= cut)])
        with Journal.resume(tmp_path) as journal:
            assert [record.key for record in journal.records] == texts[:kept]
            for text in texts:
                if journal.get(text) is None:
                    journal.append(text, note(text))
        assert (tmp_path / "records.jsonl").read_bytes() == whole  # the same steps again give the same bytes


def test_nothing_acknowledged_is_lost_when_the_writer_is_killed(tmp_path: Path) -> None:
    code = """
        for number in range(100_000):
            journal.append(f"key/{number}", NoteBody(probe="p", what="x" * (number % 700), detail={}))
            print(number, flush=True)
        """
    for round_ in range(4):
        directory = tmp_path / str(round_)
        process = writer(code, str(directory))
        assert process.stdout is not None
        acknowledged = -1
        for line in process.stdout:
            acknowledged = int(line)
            if acknowledged == 5 + 17 * round_:
                process.send_signal(signal.SIGKILL)
                break
        acknowledged = max([acknowledged, *(int(line) for line in process.stdout.read().split())])
        assert process.wait() == -signal.SIGKILL
        process.stdout.close()
        with Journal.resume(directory) as journal:
            keys = [record.key for record in journal.records]
            assert keys == [f"key/{number}" for number in range(len(keys))]
            assert len(keys) in (acknowledged + 1, acknowledged + 2)  # the last may be on disk and not yet acknowledged
            journal.append("after", note("after"))
            journal.seal(complete=True)
        assert read(directory).complete


def test_second_writer_is_named_the_first_when_both_want_the_directory(tmp_path: Path) -> None:
    process = writer("print('open', flush=True); time.sleep(600)", str(tmp_path))
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        with pytest.raises(EvidenceError, match=f"written by process {process.pid}"):
            Journal.resume(tmp_path)
        assert read(tmp_path).records == ()  # readers need no lock
    finally:
        process.kill()
        process.communicate()
    assert (tmp_path / "lock").exists()  # left by the kill, and locks nothing
    with Journal.resume(tmp_path) as journal:
        assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"
        with pytest.raises(EvidenceError, match=f"written by process {os.getpid()}"):
            Journal.resume(tmp_path)
        journal.append("a", note("a"))
    assert not (tmp_path / "lock").exists()


def test_half_a_line_is_taken_back_when_the_disk_is_full(tmp_path: Path) -> None:
    # A file size limit stands in for a full disk: the write stops in the middle of a line, then fails.
    code = """
        import resource
        from longproof.errors import EvidenceError
        journal.append("a", NoteBody(probe="p", what="small", detail={}))
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, resource.RLIM_INFINITY))
        try:
            journal.append("b", NoteBody(probe="p", what="x" * 5_000, detail={}))
        except EvidenceError as problem:
            print(problem, "|", problem.advice)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        assert journal.get("b") is None
        journal.append("b", NoteBody(probe="p", what="again", detail={}))
        """
    process = writer(code, str(tmp_path))
    said, _ = process.communicate()
    assert process.returncode == 0
    assert "cannot be written" in said
    assert "free space" in said
    stored = read(tmp_path)
    assert [record.key for record in stored.records] == ["a", "b"]
    assert stored.chain.torn_bytes == 0


def test_interrupted_run_goes_on_when_it_was_sealed_incomplete(tmp_path: Path) -> None:
    (tmp_path / "engine.log").write_text("started\n")
    with Journal.create(tmp_path, HEADER) as journal:
        journal.append("a", note("a"))
        assert not journal.seal(complete=False).complete
    (tmp_path / "engine.log").write_text("started\nstarted again\n")  # the engine is up before the journal is resumed
    with Journal.resume(tmp_path) as journal:
        journal.append("b", note("b"))
        assert read(tmp_path).seal is None
        journal.seal(complete=True)
    stored = read(tmp_path)
    assert stored.complete
    assert [record.key for record in stored.records] == ["a", "b"]


def test_error_when_a_complete_run_is_resumed(tmp_path: Path) -> None:
    with Journal.create(tmp_path, HEADER) as journal:
        journal.seal(complete=True)
    before = (tmp_path / "seal.json").read_bytes()
    with pytest.raises(EvidenceError, match="complete and sealed"):
        Journal.resume(tmp_path)
    assert (tmp_path / "seal.json").read_bytes() == before
    assert not (tmp_path / "lock").exists()


def test_error_when_there_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(EvidenceError, match="there is no directory"):
        Journal.resume(tmp_path / "nowhere")
    with pytest.raises(EvidenceError, match=r"header.json is missing"):
        Journal.resume(tmp_path)
    assert list(tmp_path.iterdir()) == []
