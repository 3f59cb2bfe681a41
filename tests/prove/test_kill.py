"""kill -9 in the middle, the same command again: nothing lost, nothing doubled, the same claim byte for byte."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from proof import view_of

from longproof.evidence.records import RequestBody, SessionBody
from longproof.testing.behaviour import Behaviour
from longproof.testing.lies import SlowPrefill
from longproof.testing.lying_engine import lying_engine

WINDOW = 1024


def command(url: str, directory: Path) -> list[str]:
    options = [
        "--lengths",
        "300,600",
        "--repeats",
        "2",
        "--only",
        "boundary,speed",
        "--timeout",
        "120s",
        "--resolution",
        "64",
    ]
    return [sys.executable, "-m", "longproof", "prove", url, "--out", str(directory), "--json", *options]


def lines(directory: Path) -> list[bytes]:
    path = directory / "records.jsonl"
    return path.read_bytes().splitlines(keepends=True) if path.exists() else []


def kill_when(process: subprocess.Popen[bytes], directory: Path, at_least: int) -> list[bytes]:
    """Kills the process once that many whole records stand on disk; returns them as they stood."""
    while process.poll() is None and len(lines(directory)) < at_least:
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    return [line for line in lines(directory) if line.endswith(b"\n")]


SLOW = Behaviour(window_tokens=WINDOW, prefill_tokens_per_s=20_000.0, token_s=0.003)
"""Honest, and slow enough to be killed between two tokens."""


def answering(requests: int) -> Behaviour:
    """So many requests are answered, and the next one waits: a run that wants more cannot be over before it is ended,
    however late that comes."""
    return SLOW.lying(SlowPrefill(delay_s=600.0, skip=requests))


@dataclass(frozen=True)
class Killed:
    """A run that was killed three times and then ended, and the server it goes on to speak of. `kept`: the whole
    records after the last kill; `torn`: whether one that stood before a kill was not there after the next."""

    url: str
    directory: Path
    kept: list[bytes]
    torn: bool
    told: str


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Killed]:
    directory = tmp_path_factory.mktemp("killed") / "evidence"
    engine = lying_engine(SLOW)
    with engine as url:
        before: list[bytes] = []
        torn = False
        for at_least in (2, 6, 9):
            engine.behave(answering(3))  # eleven are asked in all
            process = subprocess.Popen(command(url, directory), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            after = kill_when(process, directory, at_least)
            torn = torn or after[: len(before)] != before
            before = after
        engine.behave(SLOW)
        done = subprocess.run(command(url, directory), capture_output=True, check=False)
        assert done.returncode == 0, done.stderr.decode()
        yield Killed(url=url, directory=directory, kept=before, torn=torn, told=done.stdout.decode())


def test_nothing_is_lost_or_doubled_when_the_run_is_killed_three_times(killed: Killed) -> None:
    assert not killed.torn  # every whole record was still there, byte for byte
    view = view_of(killed.directory)
    assert view.complete
    keys = Counter(record.key for record in view.records)
    assert max(keys.values()) == 1
    assert sum(isinstance(record.body, SessionBody) for record in view.records) == 4
    assert lines(killed.directory)[: len(killed.kept)] == killed.kept
    # Every request that was recorded before the kills was sent once: its prompt is not among the later ones.
    prompts = Counter(record.body.prompt_sha256 for record in view.records if isinstance(record.body, RequestBody))
    assert max(prompts.values()) == 1


def test_a_finished_run_is_not_repeated(killed: Killed) -> None:
    stored = (killed.directory / "records.jsonl").read_bytes()
    again = subprocess.run(command(killed.url, killed.directory), capture_output=True, check=True)
    assert (killed.directory / "records.jsonl").read_bytes() == stored
    assert b"nothing is repeated" in again.stderr
    assert json.loads(again.stdout) == json.loads(killed.told)
    assert json.loads(again.stdout)["complete"] is True


def test_derive_gives_the_same_bytes_and_notices_a_missing_record(killed: Killed, tmp_path: Path) -> None:
    directory = Path(shutil.copytree(killed.directory, tmp_path / "evidence"))
    derive = [sys.executable, "-m", "longproof", "derive", str(directory), "--json"]
    claims = []
    for _ in range(2):
        claims.append(subprocess.run(derive, capture_output=True, check=True).stdout)
        claims.append((directory / "claim.json").read_bytes() + b"\n")
    assert len(set(claims)) == 1
    kept = lines(directory)
    (directory / "records.jsonl").write_bytes(b"".join(kept[:3] + kept[4:]))
    broken = subprocess.run(derive, capture_output=True, check=False)
    assert broken.returncode == 2
    assert b"records.jsonl" in broken.stderr
    assert b"Traceback" not in broken.stderr


def test_ctrl_c_leaves_usable_evidence(tmp_path: Path) -> None:
    directory = tmp_path / "evidence"
    with lying_engine(answering(5)) as url:
        process = subprocess.Popen(
            command(url, directory), stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path
        )
        while process.poll() is None and len(lines(directory)) < 6:
            time.sleep(0.005)
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=120)
    assert process.returncode == 130, told.decode()
    assert b"goes on from here" in told
    assert b"Traceback" not in told
    derived = subprocess.run(
        [sys.executable, "-m", "longproof", "derive", str(directory), "--json"], capture_output=True, check=True
    )
    assert json.loads(derived.stdout)["complete"] is False


def test_a_server_that_goes_away_ends_the_run_in_order(tmp_path: Path) -> None:
    directory = tmp_path / "evidence"
    engine = lying_engine(answering(5))
    with engine:
        process = subprocess.Popen(
            command(engine.url, directory), stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path
        )
        while process.poll() is None and len(lines(directory)) < 6:
            time.sleep(0.005)
        engine.crash()
        out, told = process.communicate(timeout=120)
    assert process.returncode == 3, told.decode()
    assert b"stopped early" in told
    assert b"Traceback" not in told
    claim = json.loads(out)
    assert claim["complete"] is False
