"""Named corpora in the user's cache: a copy of the files, with a manifest of their hashes and a licence line.

    CACHE/corpora/NAME/corpus.json      what it is (`Kept`)
    CACHE/corpora/NAME/files/...        the files, as they were

A copy is written beside its place and moved there whole: a half-written corpus is never seen. Every use checks every
hash.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import platformdirs
from pydantic import TypeAdapter, ValidationError

from longproof.errors import CorpusError, UsageError
from longproof.quality.corpora.corpus import Kind, Skipped, TextCorpus, manifest_of
from longproof.quality.corpora.directory import directory_corpus, nothing_there, read_directory

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_RESERVED = frozenset(("generated", "python"))
_LICENCE_FILE = re.compile(r"(licen[cs]e|copying|copyright|unlicense)(\.(txt|md|rst))?", re.IGNORECASE)
_LICENCE_CHARS = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptFile:
    """One file of a kept corpus: its name below ``files``, size and hash, and what it holds."""

    name: str
    bytes: int
    sha256: str
    kind: Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A kept corpus. `source`: where its files came from. `skipped`: what the source had besides."""

    name: str
    source: str
    licence: str
    manifest_sha256: str
    files: tuple[KeptFile, ...]
    skipped: tuple[Skipped, ...] = ()


_KEPT = TypeAdapter(Kept)


def corpora_folder() -> Path:
    """Where kept corpora lie."""
    return Path(platformdirs.user_cache_dir("longproof")) / "corpora"


def keep_corpus(
    name: str, directory: Path, *, licence: str = "", source: str = "", replace: bool = False, cache: Path | None = None
) -> Kept:
    """Copies what can be read of a folder into the cache. The licence line defaults to the first line of its licence
    file.

    Raises UsageError for a name that cannot be used; CorpusError for a folder without text, a name that is taken by
    other files (unless `replace`), or a cache that cannot be written.
    """
    folder = cache or corpora_folder()
    _check_name(name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _scratch(folder) as scratch:
            kept = _copied(name, directory, scratch, licence=licence, source=source or str(directory.resolve()))
            (scratch / "corpus.json").write_bytes(_KEPT.dump_json(kept, indent=1))
            _move(scratch, folder / name, kept, replace=replace)
    except OSError as problem:
        raise CorpusError(
            f"the corpus cannot be kept in {folder}: {problem.strerror or problem}",
            advice="free some space there, or set XDG_CACHE_HOME to another place",
        ) from problem
    return kept


def kept_corpora(*, cache: Path | None = None) -> list[Kept]:
    """All kept corpora by name. Raises CorpusError where a description is damaged."""
    folder = cache or corpora_folder()
    return [
        _described(place) for place in sorted(folder.glob("*/corpus.json")) if not place.parent.name.startswith(".")
    ]


def kept_named(name: str, *, cache: Path | None = None) -> Kept | None:
    """The description of a kept corpus; None when there is none of that name."""
    place = (cache or corpora_folder()) / name / "corpus.json"
    return _described(place) if _NAME.fullmatch(name) and place.is_file() else None


def remove_kept(name: str, *, cache: Path | None = None) -> None:
    """Takes a kept corpus out of the cache, a damaged one too. Evidence that names it keeps its manifest hash.

    Raises UsageError when none is kept by that name, CorpusError when the cache cannot be written.
    """
    folder = cache or corpora_folder()
    place = folder / name
    if not _NAME.fullmatch(name) or not place.is_dir():
        raise UsageError(f"no corpus is kept by the name {name}", advice="see 'longproof corpus list'")
    try:
        with _scratch(folder) as scratch:  # out of sight at once, whole or not at all
            place.rename(scratch / name)
    except OSError as problem:
        raise CorpusError(
            f"corpus {name} cannot be removed from {folder}: {problem.strerror or problem}",
            advice="see that the folder can be written to",
        ) from problem


def open_kept(name: str, *, kind: Kind, cache: Path | None = None) -> TextCorpus:
    """A kept corpus, every file checked against its hash. Raises CorpusError when it is missing or damaged."""
    kept = kept_named(name, cache=cache)
    if kept is None:
        known = ", ".join(entry.name for entry in kept_corpora(cache=cache)) or "none"
        raise CorpusError(
            f"no corpus is kept by the name {name} (kept: {known})",
            advice="add it with 'longproof corpus add NAME DIR', or name a folder",
        )
    files = (cache or corpora_folder()) / name / "files"
    for file in kept.files:
        if _sha256(files / file.name) != file.sha256:
            raise CorpusError(
                f"corpus {name} is damaged: {file.name} is missing or has changed since it was added",
                advice=f"add it again: longproof corpus add {name} DIR --replace",
            )
    return directory_corpus(files, kind=kind, name=name, licence=kept.licence)


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"'{name}' cannot be the name of a corpus",
            advice="use up to 64 lower-case letters, digits, dots, dashes and underscores, a letter or digit first",
        )
    if name in _RESERVED:
        raise UsageError(f"'{name}' names a corpus that comes with longproof", advice="choose another name")


def _copied(name: str, directory: Path, scratch: Path, *, licence: str, source: str) -> Kept:
    skipped: list[Skipped] = []
    files: list[KeptFile] = []
    for found in read_directory(directory, skipped):
        target = scratch / "files" / found.name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(found.path.read_bytes())
        if _sha256(target) != found.sha256:
            raise CorpusError(
                f"{found.path} changed while it was copied", advice="run it again when nobody writes there"
            )
        files.append(KeptFile(name=found.name, bytes=found.bytes, sha256=found.sha256, kind=found.kind))
    if not files:
        raise nothing_there(directory, "prose", skipped)
    return Kept(
        name=name,
        source=source,
        licence=licence or _licence_line(directory) or "not stated",
        manifest_sha256=manifest_of((file.name, file.sha256) for file in files),
        files=tuple(files),
        skipped=tuple(skipped),
    )


def _licence_line(directory: Path) -> str:
    for path in sorted(directory.iterdir()):
        if path.is_file() and _LICENCE_FILE.fullmatch(path.name):
            lines = (line.strip() for line in path.read_text(encoding="utf-8", errors="replace").splitlines())
            first = next((line for line in lines if line), "")
            return f"{path.name}: {first[:_LICENCE_CHARS]}"
    return ""


def _move(scratch: Path, place: Path, kept: Kept, *, replace: bool) -> None:
    if (place / "corpus.json").is_file():
        if not replace and _described(place / "corpus.json").manifest_sha256 != kept.manifest_sha256:
            raise CorpusError(
                f"a corpus named {kept.name} is kept already, with other files",
                advice="choose another name, or add --replace: evidence that names it keeps its old manifest hash",
            )
        shutil.rmtree(place)
    scratch.rename(place)


def _described(place: Path) -> Kept:
    try:
        return _KEPT.validate_json(place.read_bytes())
    except (OSError, ValidationError) as problem:
        raise CorpusError(
            f"{place} cannot be read: {str(problem).splitlines()[0]}",
            advice=f"run 'longproof corpus remove {place.parent.name}' and add it again",
        ) from problem


def _sha256(path: Path) -> str | None:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return None


@contextmanager
def _scratch(folder: Path) -> Generator[Path]:
    scratch = folder / f".adding-{os.getpid()}-{secrets.token_hex(4)}"
    scratch.mkdir()
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
