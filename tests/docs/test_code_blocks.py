"""README and documentation are executed: every python block, and every command in a console block.

All blocks of a page run in order, in one empty folder (`follow_page.py`). The server at http://127.0.0.1:8000 that the
pages speak of is here the honest engine of `longproof.testing` on a free port: a real server on a real socket, and
quick. What cannot run here stands in `ELSEWHERE`, with where it does run. Pages know nothing of each other and mostly
wait for their server, so some are followed at a time.

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
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from follow_page import ROOT, Block, commands, slug

from longproof.testing import HONEST, LyingEngine
from longproof.testing.behaviour import Behaviour
from longproof.testing.solver import Solver, items_of

AT_A_TIME = 2
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
Followed = Future["subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def server() -> Behaviour:
    """The server the pages speak of: honest and quick, and its model answers the questions of one family."""
    return HONEST.but(answers=Solver(items_of(("literal",), seed=0, longest_tokens=512, n=128)))


@pytest.fixture(scope="module")
def evidence(server: Behaviour, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small complete proof of that server, for pages that begin after one."""
    directory = tmp_path_factory.mktemp("proof") / "evidence"
    only = "accounting,boundary,speed,warmth"
    options = ["--lengths", "512,4096", "--repeats", "3", "--only", only, "--out", str(directory)]
    program = Path(sys.executable).parent / "longproof"
    with LyingEngine(server) as url:
        ran = subprocess.run([str(program), "prove", url, *options], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return directory


@pytest.fixture(scope="module")
def followed(
    server: Behaviour, evidence: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[dict[Path, Followed]]:
    """The pages that were asked for, being followed."""
    items = [item for item in request.session.items if isinstance(item, pytest.Function) and item.path == request.path]
    asked = [item.callspec.params["page"] for item in items if hasattr(item, "callspec")]
    folders = [tmp_path_factory.mktemp("page") for _ in asked]
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        yield {page: pool.submit(follow, page, server, evidence, at) for page, at in zip(asked, folders, strict=True)}
        pool.shutdown(cancel_futures=True)


def follow(page: Path, server: Behaviour, evidence: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Follows one page in a process of its own, with a server of its own, in a folder that holds what pages take for
    granted."""
    place = folder / "work"
    place.mkdir()
    shutil.copytree(ROOT / "examples", place / "examples")
    (place / "config.json").write_text(json.dumps(CONFIG))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with LyingEngine(server) as url:
        if not re.search(r"^\$ longproof prove http", page.read_text(encoding="utf-8"), re.MULTILINE):
            (place / "longproof-evidence").mkdir()
            shutil.copytree(evidence, place / "longproof-evidence" / f"{slug(url)}-001")
        return subprocess.run(
            [sys.executable, "-W", "error", str(Path(__file__).parent / "follow_page.py"), str(page), url],
            capture_output=True,
            text=True,
            check=False,
            cwd=place,
            env={**os.environ, "PATH": path, "NO_COLOR": "1"},
        )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_block_runs_when_a_page_is_followed(page: Path, followed: dict[Path, Followed]) -> None:
    ran = followed[page].result()
    assert ran.returncode == 0, ran.stderr


def test_commands_are_found_when_a_block_holds_some() -> None:
    block = Block(
        language="console", text="$ longproof gate x \\\n    --require 'a'\nfail\n$ echo $?\n1\n$ ls\n", line=1
    )
    assert [(shlex.split(c.text), c.exit_code) for c in commands(block)] == [
        (["longproof", "gate", "x", "--require", "a"], 1),
        (["ls"], 0),
    ]
