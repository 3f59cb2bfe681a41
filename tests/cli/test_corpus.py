"""`longproof corpus`: what it prints, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from longproof.cli.main import run
from longproof.errors import EXIT_USER_ERROR


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of this test's own, and a folder to work in."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "handbook").mkdir()
    (tmp_path / "handbook" / "desk.md").write_text("The night desk closes at nine.")
    (tmp_path / "handbook" / "photo.jpg").write_bytes(b"\xff")
    return tmp_path / "cache"


def test_a_folder_is_kept_and_shown_when_it_is_added(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["corpus", "add", "handbook", "--licence", "ours alone"]) == 0
    added = capsys.readouterr().out
    assert added.startswith("handbook: 1 prose files and 0 of code, 30 B\n")
    assert "licence   ours alone" in added
    assert "photo.jpg: not a kind of file that is read" in added
    assert (cache / "longproof" / "corpora" / "handbook" / "files" / "desk.md").is_file()
    assert run(["corpus", "show", "handbook"]) == 0
    assert capsys.readouterr().out == added


def test_the_name_is_the_users_when_one_is_given(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["corpus", "add", "desk", "handbook", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["name"], shown["bytes"], [file[0] for file in shown["files"]]) == ("desk", 30, ["desk.md"])
    assert run(["corpus", "list", "--json"]) == 0
    assert [entry["name"] for entry in json.loads(capsys.readouterr().out)] == ["desk"]


def test_it_is_gone_when_it_is_removed(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("handbook", "desk"):
        assert run(["corpus", "add", name, "handbook"]) == 0
    corpora = cache / "longproof" / "corpora"
    (corpora / "handbook" / "corpus.json").write_text("{}")  # what cannot be read can be removed
    assert run(["corpus", "remove", "handbook"]) == 0
    assert [place.name for place in corpora.iterdir()] == ["desk"]
    assert (Path("handbook") / "desk.md").is_file()  # the source stays
    capsys.readouterr()
    assert run(["corpus", "remove", "handbook"]) == EXIT_USER_ERROR
    assert "no corpus is kept by the name handbook" in capsys.readouterr().err


def test_all_sources_are_named_when_they_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["corpus", "add", "handbook"]) == 0
    capsys.readouterr()
    assert run(["corpus", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["generated", "python", "handbook", "django-docs", "python-docs"]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["add", "nowhere"], "nowhere is not there"),
        (["add", "Bad", "handbook"], "'Bad' cannot be the name"),
        (["add", "python", "handbook"], "comes with longproof"),
        (["remove", "../corpora"], "no corpus is kept by the name ../corpora"),
        (["show", "nothing"], "no corpus is kept by the name nothing"),
    ],
)
def test_a_mistake_is_refused_with_the_next_step(
    arguments: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["corpus", *arguments]) == 2
    told = capsys.readouterr()
    assert problem in told.err
    assert "next: " in told.err
    assert told.out == ""
