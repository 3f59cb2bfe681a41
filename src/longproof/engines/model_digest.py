"""sha256 of model files, computed once: remembered by path, size and modification time in the user's cache."""

from __future__ import annotations

import contextlib
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

import platformdirs
from pydantic import TypeAdapter, ValidationError

from longproof.errors import ModelFileError


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stamp:
    """One remembered digest. It holds as long as size and modification time are the same."""

    path: str
    size_bytes: int
    mtime_ns: int
    sha256: str


_STAMPS = TypeAdapter(_Stamp)


def cache_directory() -> Path:
    """Where longproof keeps what it can fetch or compute again (XDG_CACHE_HOME moves it)."""
    return platformdirs.user_cache_path("longproof")


def model_sha256(path: Path, *, cache: Path | None = None) -> str:
    """sha256 (hex) of a file; not read again while its size and modification time stay. Raises ModelFileError."""
    resolved = path.resolve()
    key = hashlib.sha256(os.fsencode(resolved)).hexdigest()[:32]
    stamp_path = (cache or cache_directory()) / "digests" / f"{key}.json"
    try:
        state = resolved.stat()
        with contextlib.suppress(OSError, ValidationError):
            stamp = _STAMPS.validate_json(stamp_path.read_bytes())
            if (stamp.path, stamp.size_bytes, stamp.mtime_ns) == (str(resolved), state.st_size, state.st_mtime_ns):
                return stamp.sha256
        with resolved.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as problem:
        raise ModelFileError(
            f"{path} cannot be read: {problem.strerror}", advice="check the path and its permissions"
        ) from problem
    stamp = _Stamp(path=str(resolved), size_bytes=state.st_size, mtime_ns=state.st_mtime_ns, sha256=digest)
    with contextlib.suppress(OSError):  # not remembered = computed again next time
        stamp_path.parent.mkdir(parents=True, exist_ok=True)
        half = stamp_path.with_suffix(f".{os.getpid()}")
        half.write_bytes(_STAMPS.dump_json(stamp))
        half.replace(stamp_path)
    return digest
