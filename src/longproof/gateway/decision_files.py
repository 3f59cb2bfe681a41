"""The files of decision logs that stand beside each other: which there are, in what order, and which may go.

    decisions.part-0001.jsonl  decisions.part-0002.jsonl  decisions.jsonl        one gateway's life, oldest part first
    decisions-2.part-0001.jsonl  decisions-2.jsonl                               the next one's

The file that is being written never has a part's number. Older lives and older parts go first.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_CURRENT = 1 << 40
"""Sorts behind every part."""


@dataclass(frozen=True, slots=True, order=True)
class LogFile:
    """One file: which life it is of, and which part of it."""

    life: int
    part: int
    path: Path


def part_path(path: Path, part: int) -> Path:
    """What the log at `path` becomes when it is full."""
    return path.with_name(f"{path.stem}.part-{part:04}{path.suffix}")


def family(path: Path) -> list[LogFile]:
    """Every file of every life of a log that is configured as `path`, oldest first."""
    shape = re.compile(rf"{re.escape(path.stem)}(?:-(\d+))?(?:\.part-(\d+))?{re.escape(path.suffix)}")
    found: list[LogFile] = []
    if not path.parent.is_dir():
        return found
    for one in path.parent.iterdir():
        match = shape.fullmatch(one.name)
        if match is not None:
            found.append(LogFile(int(match[1] or 1), int(match[2] or _CURRENT), one))
    return sorted(found)


def parts_of(path: Path) -> list[Path]:
    """The parts of the log at `path` in order, itself last. A part that is named itself is read alone."""
    shape = re.compile(rf"{re.escape(path.stem)}\.part-(\d+){re.escape(path.suffix)}")
    older = [(int(match[1]), one) for one in _beside(path) if (match := shape.fullmatch(one.name))]
    return [*(one for _, one in sorted(older)), path]


def next_life(path: Path) -> Path:
    """The name of a new log: `path` where there is none yet, else the next number (decisions-2.jsonl …). A log is
    never continued."""
    lives = [one.life for one in family(path)]
    return path.with_stem(f"{path.stem}-{max(lives) + 1}") if lives else path


def drop_oldest(path: Path, keep: int) -> None:
    """Delete what is older than the newest `keep` files. A file that cannot be deleted stays."""
    found = family(path)
    for one in found[: max(0, len(found) - keep)]:
        try:
            one.path.unlink()
        except OSError:
            continue


def _beside(path: Path) -> Iterator[Path]:
    if path.parent.is_dir():
        yield from path.parent.iterdir()
