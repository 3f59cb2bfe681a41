"""The user's own folder as a corpus: its prose or its source code, and a list of everything that was left out."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from longproof.errors import CorpusError
from longproof.quality.corpora.corpus import Document, Kind, Skipped, TextCorpus, manifest_of
from longproof.quality.corpora.reading import kind_of, read_text
from longproof.quality.corpora.unreadable import Unreadable

MOST_BYTES = 128 * 2**20
"""Files beyond this sum are skipped: 128 MiB of text are about 30M tokens."""

_NOT_OURS = frozenset(("__pycache__", "node_modules", "site-packages", "dist-packages", "venv"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A file that was read: its path, its name within the folder, what it holds, and the hash of its bytes."""

    path: Path
    name: str
    kind: Kind
    text: str
    sha256: str
    bytes: int


def directory_corpus(directory: Path, *, kind: Kind, name: str | None = None, licence: str = "") -> TextCorpus:
    """All files of that kind below a folder, in the order of their names. Raises CorpusError when there are none.

    Hidden folders, installed packages, binary, huge and unreadable files are skipped and listed; links are followed,
    each folder once. The manifest is over everything that was read, of either kind.
    """
    skipped: list[Skipped] = []
    found = list(read_directory(directory, skipped))
    documents = [Document(name=file.name, text=file.text) for file in found if file.kind == kind]
    if not documents:
        raise nothing_there(directory, kind, skipped)
    return TextCorpus(
        name=name or directory.resolve().name,
        kind=kind,
        licence=licence or "not stated: the user's own",
        documents=documents,
        manifest_sha256=manifest_of((file.name, file.sha256) for file in found),
        skipped=skipped,
    )


def read_directory(directory: Path, skipped: list[Skipped], *, most_bytes: int = MOST_BYTES) -> Iterator[Found]:
    """Reads what can be read; the rest goes into `skipped`. Raises CorpusError when it is no folder."""
    if not directory.is_dir():
        raise CorpusError(
            f"{directory} is {'not a folder' if directory.exists() else 'not there'}",
            advice="name a folder with text, Markdown, HTML, PDF or source files",
        )
    left_bytes = most_bytes
    for path in _walk(directory, skipped):
        name = path.relative_to(directory).as_posix()
        kind = kind_of(path)
        if kind is None:
            skipped.append(Skipped(name=name, why="not a kind of file that is read"))
            continue
        try:
            text, data = read_text(path)
        except Unreadable as reason:
            skipped.append(Skipped(name=name, why=str(reason)))
            continue
        if len(data) > left_bytes:
            skipped.append(Skipped(name=name, why=f"beyond the first {most_bytes:,} bytes of the folder"))
            continue
        left_bytes -= len(data)
        yield Found(
            path=path,
            name=_printable(name),
            kind=kind,
            text=text,
            sha256=hashlib.sha256(data).hexdigest(),
            bytes=len(data),
        )


def nothing_there(directory: Path, kind: Kind, skipped: list[Skipped]) -> CorpusError:
    """The refusal of a folder without a file of the kind, with the most frequent reasons."""
    reasons: dict[str, int] = {}
    for entry in skipped:
        reasons[entry.why] = reasons.get(entry.why, 0) + 1
    most = sorted(reasons.items(), key=lambda item: -item[1])[:3]
    why = "; ".join(f"{count} skipped: {reason}" for reason, count in most) or "no file of another kind was skipped"
    return CorpusError(
        f"{directory} holds no {kind} that can be read ({why})",
        advice="prose is .txt, .md, .rst, .html, .pdf and the like; code is source files by their suffix",
    )


def _walk(directory: Path, skipped: list[Skipped]) -> Iterator[Path]:
    """Regular files below a folder, sorted by name; folders that are reached twice (links, loops) only once."""

    def unreadable(problem: OSError) -> None:
        name = os.path.relpath(problem.filename or directory, directory)
        skipped.append(Skipped(name=_printable(name), why=problem.strerror or "unreadable folder"))

    visited: set[tuple[int, int]] = set()
    for here, folders, files in os.walk(directory, onerror=unreadable, followlinks=True):
        place = Path(here)
        status = place.stat()
        if (status.st_dev, status.st_ino) in visited:
            skipped.append(Skipped(name=place.relative_to(directory).as_posix(), why="a folder that was read already"))
            folders.clear()
            continue
        visited.add((status.st_dev, status.st_ino))
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in _NOT_OURS)
        for name in sorted(files):
            path = place / name
            try:
                mode = path.stat().st_mode
            except OSError as problem:
                skipped.append(Skipped(name=_printable(path.relative_to(directory).as_posix()), why=_reason(problem)))
                continue
            if stat.S_ISREG(mode):
                yield path
            else:
                skipped.append(
                    Skipped(name=_printable(path.relative_to(directory).as_posix()), why="not a regular file")
                )


def _reason(problem: OSError) -> str:
    return f"a link that leads nowhere ({problem.strerror})" if problem.errno else str(problem)


def _printable(name: str) -> str:
    """File names are bytes; what is no UTF-8 is written out, so that a name can be stored and printed."""
    return name.encode("utf-8", "backslashreplace").decode("utf-8")
