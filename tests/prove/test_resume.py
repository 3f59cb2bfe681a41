"""Where evidence goes, and when a directory holds another run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from longproof.errors import EvidenceError
from longproof.evidence.store import Journal
from longproof.prove.resume import evidence_directory, is_complete, require_same
from longproof.testing.builders import build_deployment, build_header

LABEL = "http://localhost:8000"


def begin(directory: Path, *, seal: bool | None) -> None:
    with Journal.create(directory, build_header()) as journal:
        if seal is not None:
            journal.seal(complete=seal)


def test_the_first_run_gets_number_one(tmp_path: Path) -> None:
    assert evidence_directory(tmp_path, LABEL).name == "http-localhost-8000-001"


def test_an_unfinished_run_is_found_again(tmp_path: Path) -> None:
    begin(tmp_path / "http-localhost-8000-001", seal=None)
    assert evidence_directory(tmp_path, LABEL).name == "http-localhost-8000-001"


def test_a_run_that_stopped_early_is_found_again(tmp_path: Path) -> None:
    begin(tmp_path / "http-localhost-8000-001", seal=False)
    assert evidence_directory(tmp_path, LABEL).name == "http-localhost-8000-001"


def test_a_finished_run_is_left_alone(tmp_path: Path) -> None:
    begin(tmp_path / "http-localhost-8000-001", seal=True)
    assert is_complete(tmp_path / "http-localhost-8000-001")
    assert evidence_directory(tmp_path, LABEL).name == "http-localhost-8000-002"


def test_another_target_gets_its_own_name(tmp_path: Path) -> None:
    begin(tmp_path / "http-localhost-8000-001", seal=None)
    assert evidence_directory(tmp_path, "http://localhost:80").name == "http-localhost-80-001"


def test_the_same_run_is_accepted(tmp_path: Path) -> None:
    require_same(build_header(), build_header(), tmp_path)


def test_another_server_is_named_with_the_field_that_differs(tmp_path: Path) -> None:
    other = build_header(deployment=build_deployment(limit_tokens=4096))
    with pytest.raises(EvidenceError, match="configured_limit_tokens was 8192, is 4096"):
        require_same(build_header(), other, tmp_path)


def test_other_options_are_named(tmp_path: Path) -> None:
    header = build_header()
    with pytest.raises(EvidenceError, match=r"other options \(repeats\)"):
        require_same(header, replace(header, protocol=replace(header.protocol, repeats=7)), tmp_path)


def test_another_target_is_refused(tmp_path: Path) -> None:
    header = build_header()
    with pytest.raises(EvidenceError, match="not http://elsewhere"):
        require_same(header, replace(header, target="http://elsewhere"), tmp_path)
