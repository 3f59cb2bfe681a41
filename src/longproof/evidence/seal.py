"""The seal: hashes of every file that a claim rests on, written when a run ends.

A seal detects damage and careless edits. It is not a signature: who rewrites all files can also rewrite the seal.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from longproof.errors import EvidenceError
from longproof.evidence.records import FORMAT, Seal

HEADER_NAME = "header.json"
RECORDS_NAME = "records.jsonl"
ENGINE_LOG_NAME = "engine.log"
SEAL_NAME = "seal.json"
_SEALED_NAMES = (HEADER_NAME, RECORDS_NAME, ENGINE_LOG_NAME)
_CHUNK_BYTES = 1 << 20


def make_seal(directory: Path, *, records: int, complete: bool) -> Seal:
    """Hashes of the files as they are now. The engine must have stopped writing its log."""
    files = {name: file_sha256(directory / name) for name in _SEALED_NAMES if (directory / name).exists()}
    return Seal(format=FORMAT, files=files, records=records, complete=complete)


def check_seal(directory: Path, seal: Seal, *, records: int, log_may_grow: bool = False) -> None:
    """Raises EvidenceError naming the first file that is missing, was added, or is not the one that was sealed.

    `log_may_grow` leaves the engine's log out.
    """
    if records != seal.records:
        raise _broken(directory / RECORDS_NAME, f"holds {records} records, sealed were {seal.records}")
    names = {HEADER_NAME, RECORDS_NAME, *seal.files}
    for name in sorted(names - {ENGINE_LOG_NAME} if log_may_grow else names):
        path = directory / name
        if name not in seal.files:
            raise _broken(path, "is not named by the seal")
        if not path.is_file():
            raise _broken(path, "is missing, and was there when the run was sealed")
        if file_sha256(path) != seal.files[name]:
            raise _broken(path, "was changed after the run was sealed")
    log = directory / ENGINE_LOG_NAME
    if ENGINE_LOG_NAME not in seal.files and log.exists() and not log_may_grow:
        raise _broken(log, "was added after the run was sealed")


def file_sha256(path: Path) -> str:
    """sha256 of a file's bytes, hex."""
    digest = hashlib.sha256()
    with path.open("rb") as source:
        while piece := source.read(_CHUNK_BYTES):
            digest.update(piece)
    return digest.hexdigest()


def _broken(path: Path, what: str) -> EvidenceError:
    return EvidenceError(
        f"{path} {what}", advice="restore the file from an untouched copy, or prove again into a new directory"
    )
