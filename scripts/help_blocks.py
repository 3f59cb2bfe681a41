"""The commands' own --help texts inside the documentation: compared, or written again.

    python scripts/help_blocks.py            exit 1 and a diff where a page shows another text than the command prints
    python scripts/help_blocks.py --write    writes the texts into the pages

A block is a ``console`` fence that begins with ``$ longproof … --help``; the rest of it is the command's output.
"""

from __future__ import annotations

import difflib
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WIDTH_COLUMNS = "100"
BLOCK = re.compile(
    r"^```console\n\$ (?P<command>longproof(?: [a-z]+)* --help)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)


def pages() -> Iterator[Path]:
    """README and every page of the documentation."""
    yield ROOT / "README.md"
    yield from sorted((ROOT / "docs").rglob("*.md"))


def printed(command: str) -> str:
    """What a command prints now, at a fixed width."""
    program, *arguments = shlex.split(command)
    ran = subprocess.run(
        [str(Path(sys.executable).parent / program), *arguments],
        env={**os.environ, "COLUMNS": WIDTH_COLUMNS, "NO_COLOR": "1", "TERM": "dumb"},
        capture_output=True,
        text=True,
        check=True,
    )
    return "".join(line.rstrip() + "\n" for line in ran.stdout.splitlines())


def renewed(page_text: str) -> str:
    """A page's text with every --help block as the command prints it now."""
    return BLOCK.sub(
        lambda found: f"```console\n$ {found['command']}\n{printed(found['command'])}```",
        page_text,
    )


def main(arguments: list[str]) -> int:
    stale = 0
    for page in pages():
        before = page.read_text(encoding="utf-8")
        after = renewed(before)
        if before == after:
            continue
        stale += 1
        if "--write" in arguments:
            page.write_text(after, encoding="utf-8")
        name = str(page.relative_to(ROOT))
        sys.stdout.writelines(
            difflib.unified_diff(before.splitlines(True), after.splitlines(True), name, f"{name} now")
        )
    return 1 if stale and "--write" not in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
