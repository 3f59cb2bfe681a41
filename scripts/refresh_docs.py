"""What the documentation takes from the code: compared, or written again.

    python scripts/refresh_docs.py            exit 1 and a diff where a page says something else than the code
    python scripts/refresh_docs.py --write    writes the pages again

Two kinds of text are taken over:

- a ``console`` fence that begins with ``$ longproof … --help``: the rest of it is the command's output;
- what stands between ``<!-- metrics -->`` and ``<!-- end -->``: the definitions in `longproof.claim.metrics`.
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

from longproof.claim.metrics import METRICS, Metric

ROOT = Path(__file__).resolve().parent.parent
WIDTH_COLUMNS = "100"
HELP = re.compile(r"^```console\n\$ (?P<command>longproof(?: [a-z]+)* --help)\n(?P<text>.*?)^```$", re.M | re.S)
DEFINITIONS = re.compile(r"(?<=^<!-- metrics -->\n).*?(?=^<!-- end -->$)", re.M | re.S)


def pages() -> Iterator[Path]:
    """README and every page of the documentation."""
    yield ROOT / "README.md"
    yield from sorted((ROOT / "docs").rglob("*.md"))


def renewed(page_text: str) -> str:
    """A page's text with everything it takes from the code as the code says it now."""
    text = HELP.sub(
        lambda found: f"```console\n$ {found['command']}\n{printed(found['command'])}```",
        page_text,
    )
    return DEFINITIONS.sub(lambda _: "\n" + "\n".join(map(definition, METRICS.values())), text)


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


def definition(metric: Metric) -> str:
    """One metric as a section."""
    better = "" if metric.better == "neither" else f", {metric.better} is better"
    length = ", one statement per prompt length" if metric.by_length else ""
    return (
        f"### `{metric.id}`\n\n"
        f"{metric.definition}\n\n"
        f"- Unit: {metric.unit}{better}{length}\n"
        f"- Formula: {metric.formula}\n"
        f"- From: {', '.join(metric.inputs)}\n"
        f"- No value when: {metric.undefined}\n"
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
