"""README and documentation are executed: every python block, and every command in a console block.

All blocks of a page run in order, in one empty folder, and the python blocks share their names. The server at
http://127.0.0.1:8000 that the pages speak of is here the honest engine of `longproof.testing` on a free port: a real
server on a real socket, and quick. What cannot run here stands in `ELSEWHERE`, with where it does run.

A collector of our own: a library for this would still need our rules for commands, exit codes and the server.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from longproof.testing import HONEST, LyingEngine
from longproof.testing.solver import Solver, items_of

ROOT = Path(__file__).resolve().parents[2]
URL_IN_PAGES = "http://127.0.0.1:8000"
SLUG_IN_PAGES = "http-127.0.0.1-8000"
BUDGET_IN_PAGES = re.compile(r"--budget \d+m\b")
"""What readers give a real server. Here a fake one answers in milliseconds, and what the smaller budget does not hold
is left out in the same way."""
FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\w*)\n(?P<body>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL)
ELSEWHERE = {
    "make": "its targets are checked against the Makefile; .ci/run runs them",
    "git": "needs the repository's address",
    "vllm": "tests/vllm starts a real one",
    "pip": "the environment is there already",
}
SHELL = {"longproof", "cp", "cmp"}
CONFIG = {
    "model_type": "llama", "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    "hidden_size": 4096, "vocab_size": 128_256, "intermediate_size": 14_336, "torch_dtype": "bfloat16",
    "max_position_embeddings": 131_072,
}  # fmt: skip
"""The model that pages plan: what its config.json says."""
PAGES = [
    page
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    if re.search(r"^ *```(python|console)$", page.read_text(encoding="utf-8"), re.MULTILINE)
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One fence. `line`: where its first line stands in the page."""

    language: str
    text: str
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One command of a console block, with the exit code that the page gives for it (``$ echo $?``), else 0."""

    text: str
    exit_code: int = 0


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(
            language=found["language"],
            text=re.sub(f"^{found['indent']}", "", found["body"], flags=re.MULTILINE),
            line=text.count("\n", 0, found.start("body")) + 1,
        )
        for found in FENCE.finditer(text)
    ]


def commands(block: Block) -> list[Command]:
    """The lines after ``$ ``, continued ones joined; what stands between them is output and may differ."""
    lines = block.text.replace("\\\n", " ").splitlines()
    found: list[Command] = []
    for number, line in enumerate(lines):
        if line == "$ echo $?":
            found[-1] = Command(text=found[-1].text, exit_code=int(lines[number + 1]))
        elif line.startswith("$ "):
            found.append(Command(text=line[2:]))
    return found


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """The server the pages speak of. Its model answers the questions of one family."""
    items = items_of(("literal",), seed=0, longest_tokens=512, n=128)
    with LyingEngine(HONEST.but(answers=Solver(items))) as address:
        yield address


@pytest.fixture(scope="module")
def evidence(url: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small complete proof of that server, for pages that begin after one."""
    directory = tmp_path_factory.mktemp("proof") / "evidence"
    only = "accounting,boundary,speed,warmth"
    options = ["--lengths", "512,4096", "--repeats", "3", "--only", only, "--out", str(directory)]
    longproof("prove", url, *options)
    return directory


def longproof(*arguments: str) -> None:
    program = Path(sys.executable).parent / "longproof"
    ran = subprocess.run([str(program), *arguments], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_block_runs_when_a_page_is_followed(
    page: Path, url: str, evidence: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "work"
    place.mkdir()
    monkeypatch.chdir(place)
    here = {URL_IN_PAGES: url, SLUG_IN_PAGES: f"http-127.0.0.1-{url.rpartition(':')[2]}"}
    if not re.search(r"^\$ longproof prove http", page.read_text(encoding="utf-8"), re.MULTILINE):
        (place / "longproof-evidence").mkdir()
        shutil.copytree(evidence, place / "longproof-evidence" / f"{here[SLUG_IN_PAGES]}-001")
    shutil.copytree(ROOT / "examples", place / "examples")
    (place / "config.json").write_text(json.dumps(CONFIG))
    names: dict[str, object] = {"__name__": "__page__"}
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("NO_COLOR", "1")
    for block in blocks(page):
        text = block.text
        for said, meant in here.items():
            text = text.replace(said, meant)
        text = BUDGET_IN_PAGES.sub("--budget 20s", text)
        if block.language == "python":
            code = compile("\n" * (block.line - 1) + text, str(page), "exec", dont_inherit=True)
            exec(code, names)
        elif block.language == "console":
            for command in commands(Block(language=block.language, text=text, line=block.line)):
                run(command, f"{page.name}:{block.line}", monkeypatch)


def run(command: Command, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs one command line in a shell, where it can run here. What it exports holds for the rest of the page."""
    program, *arguments = shlex.split(command.text)
    if program == "make":
        makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
        assert re.search(rf"^{arguments[0]}:", makefile, re.MULTILINE), f"{where}: no such target"
        return
    if program in ELSEWHERE:
        return
    if program == "export":
        name, _, value = arguments[0].partition("=")
        monkeypatch.setenv(name, os.path.expandvars(value))
        return
    assert program in SHELL, f"{where}: '{program}' is neither run nor named in ELSEWHERE"
    ran = subprocess.run(["bash", "-c", command.text], capture_output=True, text=True, check=False)
    assert ran.returncode == command.exit_code, f"{where}: {command.text}\n{ran.stdout}{ran.stderr}"


def test_commands_are_found_when_a_block_holds_some() -> None:
    block = Block(
        language="console", text="$ longproof gate x \\\n    --require 'a'\nfail\n$ echo $?\n1\n$ ls\n", line=1
    )
    assert [(shlex.split(c.text), c.exit_code) for c in commands(block)] == [
        (["longproof", "gate", "x", "--require", "a"], 1),
        (["ls"], 0),
    ]
