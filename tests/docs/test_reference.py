"""The reference pages name everything there is: what the code has and a page lacks is an error here."""

from __future__ import annotations

import ast
import importlib.util
import re
import shutil
import tomllib
from dataclasses import fields
from pathlib import Path
from types import ModuleType

import pytest

from longproof import errors
from longproof.evidence import records

ROOT = Path(__file__).resolve().parents[2]
STORED = (
    records.Header,
    records.Protocol,
    records.Record,
    records.SessionBody,
    records.RequestBody,
    records.CountBody,
    records.SamplesBody,
    records.WindowBody,
    records.Lag,
    records.NoteBody,
    records.ItemBody,
    records.Placed,
    records.Seal,
)


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def refresh_docs() -> ModuleType:
    spec = importlib.util.spec_from_file_location("refresh_docs", ROOT / "scripts" / "refresh_docs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_pages_say_what_the_code_says_when_they_take_it_over() -> None:
    """Help texts, cards of the kept evidence, metric definitions."""
    script = refresh_docs()
    stale = [p.name for p in script.pages() if (text := p.read_text(encoding="utf-8")) != script.renewed(text)]
    assert stale == [], "run: make docs-refresh"


def test_every_command_has_its_help_when_the_command_page_is_read() -> None:
    from longproof.cli.main import cli

    shown = set(re.findall(r"^\$ longproof ([a-z-]+) --help$", page("reference/cli.md"), re.MULTILINE))
    assert shown == set(cli.commands)
    assert shown >= {"plan", "demo", "prove", "derive", "report", "gate", "inspect"}


def test_every_metric_is_defined_when_the_metrics_page_is_read() -> None:
    from longproof.claim.metrics import METRICS

    defined = re.findall(r"^### `([a-z0-9_]+)`$", page("reference/metrics.md"), re.MULTILINE)
    assert defined == list(METRICS)


def test_every_key_of_a_fleet_file_is_explained_when_its_section_is_read() -> None:
    from longproof.gateway import config

    script = refresh_docs()
    sections = {kind for name, kind in vars(config).items() if name.endswith("Section") and kind is not config.Section}
    assert set(script.SECTIONS.values()) == sections
    silent: list[str] = []
    for name, section in script.SECTIONS.items():
        meaning, _, table = script.fleet_section(name, section).partition("| Key |")
        keys = re.findall(r"^\| `(\w+)`", table, re.MULTILINE)
        assert keys
        silent += [f"{name} {key}" for key in keys if f"`{key}`" not in meaning]
    assert silent == []


def test_every_exit_code_is_listed_when_the_code_defines_one() -> None:
    defined = {value for name, value in vars(errors).items() if name.startswith("EXIT_")}
    listed = {int(code) for code in re.findall(r"^\| (\d+) \|", page("reference/exit-codes.md"), re.MULTILINE)}
    assert listed == defined


@pytest.mark.parametrize("record", STORED)
def test_every_stored_field_is_explained_when_a_record_has_it(record: type) -> None:
    text = page("reference/evidence.md")
    assert [item.name for item in fields(record) if f"`{item.name}`" not in text] == []


def test_every_dependency_has_its_reason_when_the_project_names_it() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    groups = [entry for group in project["dependency-groups"].values() for entry in group]
    names = [re.split(r"[<>=~!\[ ]", entry, maxsplit=1)[0] for entry in project["project"]["dependencies"] + groups]
    text = page("dependencies.md")
    assert len(names) > 20
    assert [
        name for name in names if not re.search(rf"^\|[^|\n]*(\|[^|\n]*)?\b{re.escape(name)}\b", text, re.MULTILINE)
    ] == []


def test_every_example_can_be_meant_when_the_gate_page_gives_one() -> None:
    from longproof.claim.requirement import parse_requirement

    section = page("reference/gate.md").partition("## Examples")[2].partition("## ")[0]
    examples = re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE)
    assert len(examples) >= 10
    for example in examples:
        parse_requirement(example)


READ = (
    *("accounting", "boundary", "speed", "warmth", "stream"),
    *("reclaim", "restart", "disaggregated"),
    *("busy", "overload", "sustained", "conversation", "sweep"),
    "quality",
)
FINDING = re.compile(rf"({'|'.join(READ)})\.[a-z_0-9]*[a-z0-9]")


def finding_ids() -> set[str]:
    """Every name a reader can give a finding: its string constants of that shape, less those that name statements."""
    named: set[str] = set()
    statements: set[str] = set()
    for source in (ROOT / "src/longproof/claim/findings").glob("*.py"):
        for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                named.add(node.value)
            elif isinstance(node, ast.JoinedStr) and ast.unparse(node).endswith("_{place}'"):
                named |= {ast.unparse(node)[2:-1].replace("{place}", place) for place in ("head", "middle", "tail")}
            elif isinstance(node, ast.Call) and ast.unparse(node.func) == "Statement":
                statements |= {ast.literal_eval(item.value) for item in node.keywords if is_constant_id(item)}
    return {name for name in named if FINDING.fullmatch(name)} - statements


def is_constant_id(keyword: ast.keyword) -> bool:
    return keyword.arg == "id" and isinstance(keyword.value, ast.Constant)


def test_every_finding_is_explained_when_a_reader_can_make_it() -> None:
    listed = set(re.findall(r"^\| `([a-z]+\.[a-z_0-9]+)` \|", page("reference/findings.md"), re.MULTILINE))
    assert listed == finding_ids()


def test_kept_evidence_gives_the_kept_claim_when_it_is_derived(tmp_path: Path) -> None:
    from longproof.claim.derive import write_claim

    shutil.copytree(ROOT / "examples" / "demo", tmp_path / "demo")
    assert write_claim(tmp_path / "demo") == (ROOT / "examples" / "demo" / "claim.json").read_bytes()
