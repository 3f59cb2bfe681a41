"""Downloads one pinned file over HTTP: resumes what is there, survives cut connections, trusts only the sha256."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import httpx

OnBytes: TypeAlias = Callable[[int], None]
"""Told how many bytes of the file are there now."""

_PATIENCE = 4  # attempts in a row that bring no byte
_OK, _PARTIAL, _RANGE_NOT_SATISFIABLE, _TOO_MANY_REQUESTS = 200, 206, 416, 429


class DownloadFailed(Exception):  # noqa: N818 - an internal signal; the caller turns it into a ModelFileError
    """The file could not be had. `kept_bytes` wait for the next attempt; 0 = another attempt would end the same way."""

    def __init__(self, why: str, *, kept_bytes: int = 0) -> None:
        super().__init__(why)
        self.kept_bytes = kept_bytes


class _RefusedError(Exception):
    """The server answered, and the answer will not change by asking again."""


def download(
    url: str, part: Path, *, size_bytes: int, sha256: str, on_bytes: OnBytes = lambda _: None, pause_s: float = 1.0
) -> None:
    """Completes `part` from `url` until it has `size_bytes` and this sha256.

    A `part` that is there already is continued with a Range request. Raises DownloadFailed when the server refuses,
    when several attempts in a row bring nothing, or when the whole file has another sha256 (then `part` is removed).
    OSErrors are the disk's.
    """
    while True:
        resumed = part.exists()
        _complete(url, part, size_bytes=size_bytes, on_bytes=on_bytes, pause_s=pause_s)
        if file_sha256(part) == sha256:
            return
        part.unlink()
        if not resumed:  # else the beginning may have been damaged: once more, from the first byte
            raise DownloadFailed("what the server sends has another sha256 than the pinned one")


def file_sha256(path: Path) -> str:
    """sha256 (hex) of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _complete(url: str, part: Path, *, size_bytes: int, on_bytes: OnBytes, pause_s: float) -> None:
    idle_attempts = 0
    timeout = httpx.Timeout(60.0, connect=20.0)
    with httpx.Client(timeout=timeout, follow_redirects=True) as client:
        while (have_bytes := _size(part)) != size_bytes:
            if have_bytes > size_bytes:
                part.unlink()
                have_bytes = 0
            try:
                _stream(client, url, part, have_bytes, size_bytes, on_bytes)
                why = "the connection ended early"
            except _RefusedError as refusal:
                raise DownloadFailed(str(refusal)) from None
            except httpx.HTTPError as problem:
                why = str(problem) or type(problem).__name__
            idle_attempts = 0 if _size(part) > have_bytes else idle_attempts + 1
            if idle_attempts == _PATIENCE:
                raise DownloadFailed(why, kept_bytes=_size(part))
            if _size(part) != size_bytes:
                time.sleep(pause_s * 2**idle_attempts)


def _stream(client: httpx.Client, url: str, part: Path, have_bytes: int, size_bytes: int, on_bytes: OnBytes) -> None:
    headers = {"Accept-Encoding": "identity"}
    if have_bytes:
        headers["Range"] = f"bytes={have_bytes}-"
    with client.stream("GET", url, headers=headers) as response:
        if response.status_code >= 500 or response.status_code == _TOO_MANY_REQUESTS:
            response.raise_for_status()  # an HTTPError: worth another attempt
        if response.status_code == _RANGE_NOT_SATISFIABLE:
            part.unlink(missing_ok=True)  # what we have is no beginning of what is served
            return
        if response.status_code not in (_OK, _PARTIAL):
            raise _RefusedError(f"the server answers {response.status_code} {response.reason_phrase}")
        resumed = response.status_code == _PARTIAL
        if resumed and not response.headers.get("Content-Range", "").startswith(f"bytes {have_bytes}-"):
            raise _RefusedError(f"asked for bytes from {have_bytes} on, got {response.headers.get('Content-Range')!r}")
        written_bytes = have_bytes if resumed else 0
        with part.open("ab" if resumed else "wb") as file:
            on_bytes(written_bytes)
            for chunk in response.iter_raw():
                written_bytes += len(chunk)
                if written_bytes > size_bytes:
                    raise _RefusedError(f"the file is longer than the pinned {size_bytes:,} bytes")
                file.write(chunk)
                file.flush()  # what has arrived is kept, also through a kill -9
                on_bytes(written_bytes)


def _size(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0
