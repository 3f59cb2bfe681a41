"""Files that survive a crash: written whole or not at all, and synced to the disk."""

from __future__ import annotations

import os
from pathlib import Path

from longproof.errors import EvidenceError


def write_whole(path: Path, data: bytes) -> None:
    """Replaces a file: after a crash either the old one or the new one is there, never half of it."""
    draft = path.with_name(f".{path.name}.new")
    with draft.open("wb") as target:
        target.write(data)
        target.flush()
        os.fsync(target.fileno())
    draft.replace(path)
    sync_directory(path.parent)


def cut(path: Path, length_bytes: int) -> None:
    """Shortens a file to its first `length_bytes`."""
    with path.open("r+b") as target:
        target.truncate(length_bytes)
        os.fsync(target.fileno())


def sync_directory(directory: Path) -> None:
    """Makes names created or removed in a directory last."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def read_whole(directory: Path, name: str) -> bytes:
    """A file's bytes. EvidenceError where the directory or the file is not there or cannot be read."""
    path = directory / name
    try:
        return path.read_bytes()
    except FileNotFoundError as problem:
        what = f"{path} is missing" if directory.is_dir() else f"there is no directory {directory}"
        raise EvidenceError(what, advice="name the directory that 'longproof prove --out' wrote") from problem
    except OSError as problem:
        raise EvidenceError(
            f"{path} cannot be read: {problem.strerror}", advice="check path and permissions"
        ) from problem


def not_writable(directory: Path, problem: OSError) -> EvidenceError:
    """The error to raise for an operating system's refusal to write."""
    return EvidenceError(
        f"{directory} cannot be written: {problem.strerror or problem}",
        advice="free space or fix permissions, or name a new directory with --out",
    )
