"""Corpora kept by name: copied, hashed, checked at every use, and fetched by the package clients where they are
well known."""

from __future__ import annotations

import hashlib
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from longproof.errors import CorpusError, UsageError
from longproof.quality.corpora.kept import keep_corpus, kept_corpora, kept_named, open_kept
from longproof.quality.corpora.opening import open_corpus
from longproof.quality.corpora.packages import KNOWN, SourceArchive, keep_known

BACKEND = """
def prepare_metadata_for_build_wheel(place, settings=None):
    import pathlib
    folder = pathlib.Path(place) / "tinydocs-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\\nName: tinydocs\\nVersion: 1.0\\n")
    return folder.name
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "source" / "handbook"
    (place / "sub").mkdir(parents=True)
    (place / "a.txt").write_text("The night desk closes at nine.")
    (place / "sub" / "m.py").write_text("def f():\n    return 1\n")
    (place / "photo.jpg").write_bytes(b"\xff")
    (place / "LICENSE").write_text("\n  MIT License\n\nmore\n")
    return place


def test_a_copy_is_kept_with_hashes_and_licence_when_a_folder_is_added(folder: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    kept = keep_corpus("handbook", folder, cache=cache)
    assert kept == kept_named("handbook", cache=cache) == kept_corpora(cache=cache)[0]
    assert [(file.name, file.kind) for file in kept.files] == [("a.txt", "prose"), ("sub/m.py", "code")]
    assert kept.files[0].sha256 == hashlib.sha256(b"The night desk closes at nine.").hexdigest()
    assert kept.licence == "LICENSE: MIT License"
    assert {entry.name for entry in kept.skipped} == {"photo.jpg", "LICENSE"}
    (folder / "a.txt").write_text("Changed since.")
    corpus = open_corpus("handbook", kind="prose", seed=0, tokens=1, cache=cache)
    assert corpus.units() == ("The night desk closes at nine.",)
    assert (corpus.licence, corpus.manifest_sha256) == (kept.licence, kept.manifest_sha256)
    assert open_kept("handbook", kind="code", cache=cache).units() == ("def f():\n    return 1",)


def test_a_kept_corpus_is_refused_when_a_file_has_changed(folder: Path, tmp_path: Path) -> None:
    keep_corpus("handbook", folder, cache=tmp_path)
    (tmp_path / "handbook" / "files" / "a.txt").write_text("Another text.")
    with pytest.raises(CorpusError, match=r"a\.txt is missing or has changed"):
        open_kept("handbook", kind="prose", cache=tmp_path)


def test_a_kept_corpus_is_refused_when_its_description_is_damaged(folder: Path, tmp_path: Path) -> None:
    keep_corpus("handbook", folder, cache=tmp_path)
    (tmp_path / "handbook" / "corpus.json").write_text("{")
    with pytest.raises(CorpusError, match="cannot be read"):
        kept_corpora(cache=tmp_path)


def test_a_taken_name_is_refused_when_the_files_differ(folder: Path, tmp_path: Path) -> None:
    first = keep_corpus("handbook", folder, cache=tmp_path)
    assert keep_corpus("handbook", folder, cache=tmp_path) == first
    (folder / "b.txt").write_text("One more.")
    with pytest.raises(CorpusError, match="kept already, with other files"):
        keep_corpus("handbook", folder, cache=tmp_path)
    assert open_kept("handbook", kind="prose", cache=tmp_path).manifest_sha256 == first.manifest_sha256
    assert len(keep_corpus("handbook", folder, cache=tmp_path, replace=True).files) == 3
    assert {entry.name for entry in tmp_path.iterdir()} == {"source", "handbook"}


@pytest.mark.parametrize("name", ["generated", "python", "", "Up", "a/b", "..", "a" * 65, ".hidden"])
def test_a_name_is_refused_when_it_cannot_be_used(name: str, folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        keep_corpus(name, folder, cache=tmp_path)
    assert kept_named(name, cache=tmp_path) is None


def test_a_missing_name_is_refused_with_what_is_kept(folder: Path, tmp_path: Path) -> None:
    keep_corpus("handbook", folder, cache=tmp_path)
    with pytest.raises(CorpusError, match="kept: handbook"):
        open_kept("other", kind="prose", cache=tmp_path)


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SourceArchive:
    """A source distribution that the real pip fetches from a folder."""
    top = tmp_path / "tinydocs-1.0"
    (top / "docs").mkdir(parents=True)
    (top / "docs" / "a.txt").write_text("The ferry runs until dusk.")
    (top / "backend.py").write_text(BACKEND)
    (top / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
        '[project]\nname = "tinydocs"\nversion = "1.0"\n'
    )
    (top / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: tinydocs\nVersion: 1.0\n")
    index = tmp_path / "index"
    index.mkdir()
    with tarfile.open(index / "tinydocs-1.0.tar.gz", "w:gz") as packed:
        packed.add(top, "tinydocs-1.0")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    return SourceArchive(
        about="tiny",
        project="tinydocs",
        version="1.0",
        sha256=hashlib.sha256((index / "tinydocs-1.0.tar.gz").read_bytes()).hexdigest(),
        megabytes=1,
        folder="docs",
        licence="ours",
    )


def test_a_well_known_text_is_kept_when_pip_fetches_it(
    archive: SourceArchive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(KNOWN, "tiny-docs", archive)
    kept = keep_known("tiny-docs", cache=tmp_path / "cache")
    assert (kept.source, kept.licence) == ("tinydocs==1.0, docs/", "ours")
    assert open_kept("tiny-docs", kind="prose", cache=tmp_path / "cache").units() == ("The ferry runs until dusk.",)


def test_a_well_known_text_is_refused_when_it_is_not_the_pinned_one(archive: SourceArchive, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with pytest.raises(CorpusError, match="does not have the pinned sha256"):
        replace(archive, sha256="0" * 64).fetch(scratch)


def test_pips_own_words_are_told_when_it_finds_nothing(archive: SourceArchive, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with pytest.raises(CorpusError, match=r"pip could not fetch tinydocs==2\.0: .*tinydocs==2\.0"):
        replace(archive, version="2.0").fetch(scratch)


def test_debian_is_named_when_its_programs_are_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CorpusError, match="comes with Debian"):
        keep_known("python-docs", cache=tmp_path)
