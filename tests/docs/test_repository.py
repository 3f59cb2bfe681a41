"""What the tracked files must not hold: they are the same on every machine and for every registry."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# In pieces, so that this file does not hold what it looks for.
REGISTRY_HOSTS = [
    "pypi" + ".org",
    "pythonhosted" + ".org",
    "npmjs" + ".org",
    "deb" + ".debian.org",
    "download." + "pytorch.org",
]
MACHINE_PATHS = [f"/{name}/" for name in ("work", "root", "home/runner", "tmp/w")]
if len(ROOT.parts) > 2:  # a checkout in /srv is no reason to forbid that word
    MACHINE_PATHS.append(f"{ROOT}/")


def tracked_files() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True).stdout
    return [ROOT / name for name in listed.split("\0") if name and (ROOT / name).is_file()]


def text_of(path: Path) -> str:
    return path.read_bytes().decode("utf-8", "replace")


def pattern_for(words: list[str]) -> re.Pattern[str]:
    """Any of the words; a path only where it begins: inside a longer one the same folder name is no match."""
    return re.compile("|".join((r"(?<![\w.])" if word.startswith("/") else "") + re.escape(word) for word in words))


def places(words: list[str]) -> list[str]:
    pattern = pattern_for(words)
    return [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}"
        for path in tracked_files()
        for number, line in enumerate(text_of(path).splitlines(), 1)
        if pattern.search(line)
    ]


def test_no_registry_host_is_named_when_files_are_tracked() -> None:
    assert places(REGISTRY_HOSTS) == []


def test_no_path_of_a_machine_is_named_when_files_are_tracked() -> None:
    assert places(MACHINE_PATHS) == []


@pytest.mark.parametrize("words", [REGISTRY_HOSTS, MACHINE_PATHS], ids=["hosts", "paths"])
def test_the_search_finds_each_word_when_it_is_there(words: list[str]) -> None:
    assert [word for word in words if pattern_for(words).search(f"see {word}x") is None] == []


def test_files_of_the_package_stay_small_when_tracked() -> None:
    too_long = {
        str(path.relative_to(ROOT)): lines
        for path in tracked_files()
        if path.suffix == ".py"
        and path.is_relative_to(ROOT / "src")
        and (lines := len(text_of(path).splitlines())) > 400
    }
    assert too_long == {}
