"""Follows one page: every block runs in order, in the folder it is started in, and the python blocks share their names.

    python follow_page.py PAGE URL

The server that pages speak of is the one at URL. Says what failed and where on standard error, exit code 1.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
URL_IN_PAGES = "http://127.0.0.1:8000"
SLUG_IN_PAGES = "http-127.0.0.1-8000"
BUDGET_IN_PAGES = re.compile(r"--budget \d+m\b")
"""What readers give a real server. What a smaller budget does not hold is left out in the same way. It is one of tokens
here, which leaves out the same on every machine: what stands under load, and reclaim."""
WINDOWS_IN_PAGES = re.compile(r"--only busy\b(?!.*--load-window)")
"""Likewise: a tenth of the time is enough of a server that answers ten times as fast."""
FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\w*)\n(?P<body>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL)
ELSEWHERE = {
    "make": "its targets are checked against the Makefile; .ci/run runs them",
    "git": "needs the repository's address",
    "vllm": "tests/vllm starts a real one",
    "pip": "the environment is there already",
}
SHELL = {"longproof", "cp", "cmp"}


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


class Failed(Exception):  # noqa: N818 - what a page says is not so
    """A command did something else than its page says."""


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


def slug(url: str) -> str:
    """How evidence about the server at `url` is called, as pages call that about theirs."""
    return f"http-127.0.0.1-{url.rpartition(':')[2]}"


def follow(page: Path, url: str) -> None:
    """Runs the blocks of a page, against the server at `url`. Raises Failed, or what a python block raises."""
    names: dict[str, object] = {"__name__": "__page__"}
    for block in blocks(page):
        text = block.text.replace(URL_IN_PAGES, url).replace(SLUG_IN_PAGES, slug(url))
        text = BUDGET_IN_PAGES.sub("--budget 240ktok", text)
        text = WINDOWS_IN_PAGES.sub("--load-window 1s --only busy", text)
        if block.language == "python":
            exec(compile("\n" * (block.line - 1) + text, str(page), "exec", dont_inherit=True), names)
        elif block.language == "console":
            for command in commands(Block(language=block.language, text=text, line=block.line)):
                run(command, f"{page.name}:{block.line}")


def run(command: Command, where: str) -> None:
    """Runs one command line in a shell, where it can run here. What it exports holds for the rest of the page."""
    program, *arguments = shlex.split(command.text)
    if program == "make":
        makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
        if not re.search(rf"^{arguments[0]}:", makefile, re.MULTILINE):
            raise Failed(f"{where}: make has no target {arguments[0]}")
        return
    if program in ELSEWHERE:
        return
    if program == "export":
        name, _, value = arguments[0].partition("=")
        os.environ[name] = os.path.expandvars(value)
        return
    if program not in SHELL:
        raise Failed(f"{where}: '{program}' is neither run nor named in ELSEWHERE")
    ran = subprocess.run(["bash", "-c", command.text], capture_output=True, text=True, check=False)
    if ran.returncode != command.exit_code:
        raise Failed(f"{where}: {command.text}\nexit code {ran.returncode}\n{ran.stdout}{ran.stderr}")


if __name__ == "__main__":
    try:
        follow(Path(sys.argv[1]), sys.argv[2])
    except Exception:
        traceback.print_exc()
        sys.exit(1)
