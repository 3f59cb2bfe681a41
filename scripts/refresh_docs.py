"""What the documentation takes from the code: compared, or written again.

    python scripts/refresh_docs.py            exit 1 and a diff where a page says something else than the code
    python scripts/refresh_docs.py --write    writes the pages again

Five kinds of text are taken over:

- a ``console`` fence that begins with ``$ longproof … --help``: the rest of it is the command's output;
- one that begins with ``$ longproof … examples/…``: likewise, over the evidence kept in examples/;
- what stands between ``<!-- metrics -->`` and ``<!-- end -->``: the definitions in `longproof.claim.metrics`;
- likewise ``<!-- gateway metrics -->``: the table of `longproof.gateway.metric_names`;
- likewise ``<!-- fleet.toml -->``: every section and key of `longproof.gateway.config`.

Writing also derives the claims of that evidence anew.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields
from inspect import getdoc
from pathlib import Path

from longproof.claim.derive import write_claim
from longproof.claim.metrics import METRICS, Metric
from longproof.gateway import config
from longproof.gateway.metric_names import METRICS as GATEWAY_METRICS

ROOT = Path(__file__).resolve().parent.parent
WIDTH_COLUMNS = "100"
FORCED = ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE")
"""What makes rich write for a terminal where there is none: some CI systems set it."""
OUTPUT = re.compile(
    r"^```console\n\$ (?P<command>longproof [^\n]*?(?:--help|examples/[^\n]*))\n(?P<text>.*?)^```$", re.M | re.S
)
DEFINITIONS = re.compile(r"(?<=^<!-- metrics -->\n).*?(?=^<!-- end -->$)", re.M | re.S)

GATEWAY_TABLE = re.compile(r"(?<=^<!-- gateway metrics -->\n).*?(?=^<!-- end -->$)", re.M | re.S)
FLEET_OPTIONS = re.compile(r"(?<=^<!-- fleet.toml -->\n).*?(?=^<!-- end -->$)", re.M | re.S)
SECTIONS: dict[str, type[config.Section]] = {
    "[gateway]": config.GatewaySection,
    "[gateway.tls]": config.TlsSection,
    "[[replica]]": config.ReplicaSection,
    "[[engine]]": config.EngineSection,
    "[[replica]], [[engine]]": config.ServedSection,
    "[pools]": config.PoolsSection,
    "[queue]": config.QueueSection,
    "[watermark]": config.WatermarkSection,
    "[slo]": config.SloSection,
    "[[tenant]]": config.TenantSection,
    "[[key]]": config.KeySection,
    "[[price]]": config.PriceSection,
    "[[claim]]": config.ClaimSection,
    "[shared]": config.SharedSection,
}
WRITTEN = {
    "Tokens": "tokens",
    "SomeTokens": "tokens",
    "Duration": "duration",
    "Patience": "duration",
    "Bytes": "size",
    "Count": "whole number",
    "int": "whole number",
    "float": "number",
    "Amount": "number",
    "Share": "0 to 1",
    "Path": "path",
    "str": "text",
    "bool": "true or false",
    "date": "date",
    "OnExcess": '"reject", "warn" or "route"',
    "tuple[str, ...]": "list of texts",
    "dict[str, str]": "table of texts",
    "dict[str, float]": "table of numbers",
    "TlsSection": "section",
}
"""What each annotation of `longproof.gateway.config` is to whoever writes the file."""


def pages() -> Iterator[Path]:
    """README and every page of the documentation."""
    yield ROOT / "README.md"
    yield from sorted((ROOT / "docs").rglob("*.md"))


def renewed(page_text: str) -> str:
    """A page's text with everything it takes from the code as the code says it now."""
    text = OUTPUT.sub(
        lambda found: f"```console\n$ {found['command']}\n{printed(found['command'])}```",
        page_text,
    )
    text = DEFINITIONS.sub(lambda _: "\n" + "\n".join(map(definition, METRICS.values())), text)
    text = GATEWAY_TABLE.sub(lambda _: gateway_table(), text)
    return FLEET_OPTIONS.sub(lambda _: "\n" + "\n".join(map(fleet_section, SECTIONS, SECTIONS.values())), text)


def printed(command: str) -> str:
    """What a command line prints now, at a fixed width, in a folder that holds a copy of examples/ and nothing else."""
    here = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {name: value for name, value in os.environ.items() if name not in FORCED}
    with tempfile.TemporaryDirectory() as place:
        shutil.copytree(ROOT / "examples", Path(place) / "examples")
        ran = subprocess.run(
            ["/bin/bash", "-o", "pipefail", "-c", command],
            cwd=place,
            env={**environment, "PATH": here, "COLUMNS": WIDTH_COLUMNS, "NO_COLOR": "1", "TERM": "dumb"},
            capture_output=True,
            text=True,
            check=True,
        )
    return "\n".join(line.rstrip() for line in ran.stdout.splitlines()).rstrip() + "\n"


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


def gateway_table() -> str:
    """Every metric of the gateway as a row."""
    rows = [
        f"| `{metric.full_name}` | {metric.kind.value} | {', '.join(f'`{label}`' for label in metric.labels)}"
        f" | {metric.help} |"
        for metric in GATEWAY_METRICS.values()
    ]
    return "\n".join(["", "| Metric | Type | Labels | What it is |", "|---|---|---|---|", *rows, "", ""])


def fleet_section(name: str, section: type[config.Section]) -> str:
    """One section of a fleet.toml: what its keys mean, and how each is written."""
    bases = section.__mro__[1:]
    rows = [
        f"| `{item.name}` | {written_as(item)} | {default_of(item)} |"
        for item in fields(section)
        if not any(item.name in vars(base).get("__annotations__", {}) for base in bases)
    ]
    meaning = getdoc(section) or ""
    return "\n".join([f"## `{name}`", "", meaning, "", "| Key | Written as | Default |", "|---|---|---|", *rows, ""])


def written_as(item: Field) -> str:
    """An annotation in the words of the file."""
    kinds = re.sub(r"Annotated\[(\w+), .*\]", r"\1", str(item.type)).removesuffix(" | None").split(" | ")
    said = [WRITTEN.get(kind) or re.sub(r"Literal\[(.*)\]", r"\1", kind).replace(", ", " or ") for kind in kinds]
    return " or ".join(said).replace("'", '"')


def default_of(item: Field) -> str:
    """What stands there where nothing is written; "required" where something must be."""
    if item.default is MISSING:
        return "required" if item.default_factory is MISSING else "none"
    kind = WRITTEN.get(str(item.type).partition(" | ")[0], "")
    if item.default in (None, (), ""):
        return "none"
    if kind == "duration":
        return f'`"{item.default / 10**9:g}s"`'
    if kind == "size":
        return f'`"{item.default >> 20}MiB"`'
    return f"`{json.dumps(item.default)}`"


def main(arguments: list[str]) -> int:
    write = "--write" in arguments
    stale = 0
    for example in sorted((ROOT / "examples").iterdir()):
        if write:
            write_claim(example)
    for page in pages():
        before = page.read_text(encoding="utf-8")
        after = renewed(before)
        if before == after:
            continue
        stale += 1
        if write:
            page.write_text(after, encoding="utf-8")
        name = str(page.relative_to(ROOT))
        sys.stdout.writelines(
            difflib.unified_diff(before.splitlines(True), after.splitlines(True), name, f"{name} now")
        )
    return 1 if stale and not write else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
