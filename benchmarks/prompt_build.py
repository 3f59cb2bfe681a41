"""How long it takes to build a long prompt, and whether it then has the length it was asked for.

    python benchmarks/prompt_build.py [--quick]

longproof against what a user would pick instead: the synthetic prompts of GuideLLM and AIPerf, each in an environment
of its own (made at the first run in the user's cache directory, about 1.5 GB each; GuideLLM requires torch). All
three get the tokenizer of the demo model. They take turns, prompt by prompt, each prompt from another seed; a cell is
the median of its rounds. Imports, tokenizers, corpora and longproof's questions about words are over before the clock
starts.

longproof's time includes the server's own count of the finished prompt; the others do not ask the server. Their lengths
are counted here, off the clock, by the same server, as text and as a chat, as longproof's are.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import platformdirs

from longproof.asking.prompts import PromptBuilder
from longproof.domain.request import ChatMessage, ChatPrompt, Route
from longproof.engines.base import Engine
from longproof.engines.embedded import EmbeddedOptions, start_embedded
from longproof.engines.model_files import resolve_model
from longproof.engines.registry import connect

HERE = Path(__file__).parent
LENGTHS = {1_000: 9, 32_000: 7, 1_000_000: 3}
"""Tokens, and how many rounds of turns are taken at that length."""
IDS_TOKENS = 1_000_000
IDS_LIMIT_S, TEXT_LIMIT_S = 2.0, 10.0
RIVALS = {
    "guidellm": ("guidellm==0.8.1", "torch==2.13.0", "gguf==0.19.0"),
    "aiperf": ("aiperf==0.13.0",),
}

Build = Callable[[int, int], Awaitable[tuple[float, ChatPrompt]]]
"""(tokens, seed) → (seconds, the prompt)."""


@dataclass
class Cell:
    """What one tool did at one length: seconds per prompt, and by how many tokens it missed, as text and as a chat."""

    seconds: list[float] = field(default_factory=list)
    text_off: list[int] = field(default_factory=list)
    chat_off: list[int] = field(default_factory=list)


class Rival:
    """A tool in a process of its own, asked for one prompt at a time."""

    def __init__(self, name: str, python: Path, tokenizer: Path, output: Path) -> None:
        command = [str(python), str(HERE / "rivals" / f"{name}_prompts.py"), str(tokenizer), str(output)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self._ask(None)

    async def build(self, tokens: int, seed: int) -> tuple[float, ChatPrompt]:
        answer = await asyncio.to_thread(self._ask, {"tokens": tokens, "seed": seed})
        text = await asyncio.to_thread(Path(answer["file"]).read_text, encoding="utf-8")
        return answer["seconds"], ChatPrompt(messages=(ChatMessage(role="user", content=text),))

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()

    def _ask(self, question: dict[str, int] | None) -> dict:
        if question is not None:
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError("it ended without an answer")
        return json.loads(answer)


def environment(name: str) -> Path:
    """The interpreter of a rival's environment, made and filled when it is not there yet. Raises CalledProcessError."""
    home = platformdirs.user_cache_path("longproof") / "benchmarks" / f"{name}-{RIVALS[name][0].partition('==')[2]}"
    python, ready = home / "bin" / "python", home / ".ready"
    if not ready.exists():
        print(f"installing {', '.join(RIVALS[name])} into {home}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
        subprocess.run(
            [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *RIVALS[name]],
            check=True,
            stdout=sys.stderr,
        )
        ready.touch()
    return python


def tokenizer_directory(python: Path, model: Path) -> Path:
    """The demo model's tokenizer as a Hugging Face directory, which is what the rivals read."""
    target = platformdirs.user_cache_path("longproof") / "benchmarks" / f"{model.stem}-tokenizer"
    if not (target / "tokenizer.json").exists():
        script = str(HERE / "rivals" / "guidellm_prompts.py")
        subprocess.run([str(python), script, "--export", str(model), str(target)], check=True, stdout=sys.stderr)
    return target


def rivals(model: Path, output: Path) -> tuple[dict[str, Rival], dict[str, str]]:
    """The tools that could be started, and why the others could not."""
    started: dict[str, Rival] = {}
    missing: dict[str, str] = {}
    try:
        tokenizer = tokenizer_directory(environment("guidellm"), model)
    except (subprocess.CalledProcessError, OSError) as problem:
        return started, dict.fromkeys(RIVALS, f"not installed: {problem}")
    for name in RIVALS:
        try:
            started[name] = Rival(name, environment(name), tokenizer, output)
        except (subprocess.CalledProcessError, OSError, RuntimeError) as problem:
            missing[name] = f"not installed or not running: {problem}"
    return started, missing


async def measure(engine: Engine, tools: dict[str, Build], tokens: int, rounds: int) -> dict[str, Cell]:
    """Turns at one length; counting is off the clock."""
    cells = {name: Cell() for name in tools}
    for turn in range(rounds):
        for name, build in tools.items():
            seconds, prompt = await build(tokens, turn)
            cells[name].seconds.append(seconds)
            cells[name].chat_off.append((await engine.count(prompt)).total - tokens)
            text = "\n\n".join(message.content for message in prompt.messages)
            cells[name].text_off.append(len(await engine.tokenize(text)) - tokens)
    return cells


async def build_ids(prompts: PromptBuilder, rounds: int) -> list[float]:
    """Seconds for prompts of a million ids."""
    seconds: list[float] = []
    for turn in range(rounds):
        began = time.perf_counter()
        built = await prompts.ids(IDS_TOKENS, nonce=prompts.nonce(f"ids {turn}"))
        seconds.append(time.perf_counter() - began)
        assert built.count.total == IDS_TOKENS
    return seconds


def report(tokens: int, cells: dict[str, Cell]) -> None:
    """One length of the table."""
    own = statistics.median(cells["longproof"].seconds)
    for name, cell in cells.items():
        median = statistics.median(cell.seconds)
        spread = f"{min(cell.seconds):.3g} to {max(cell.seconds):.3g}"
        print(
            f"{tokens:>9,}  {name:<10}{median:>9.3g}  {spread:<18}{median / own:>6.2f}x  "
            f"{_off(cell.text_off):<20}{_off(cell.chat_off)}"
        )


def _off(missed: list[int]) -> str:
    low, high = min(missed), max(missed)
    return "exact" if low == high == 0 else f"{low:+,}" if low == high else f"{low:+,} to {high:+,}"


async def compare(engine: Engine, others: dict[str, Rival]) -> bool:
    """Prints the table. Whether longproof kept its limits."""
    prompts = PromptBuilder(engine, route=Route.CHAT, seed=1, salt=os.urandom(8).hex())

    async def longproof(tokens: int, seed: int) -> tuple[float, ChatPrompt]:
        began = time.perf_counter()
        built = await prompts.exact(tokens, nonce=prompts.nonce(f"{tokens}/{seed}"))
        assert isinstance(built.prompt, ChatPrompt)
        return time.perf_counter() - began, built.prompt

    tools: dict[str, Build] = {"longproof": longproof, **{name: rival.build for name, rival in others.items()}}
    for build in tools.values():
        await build(500, 0)
    print(f"{'tokens':>9}  {'tool':<10}{'median s':>9}  {'range':<18}{'ratio':>7}  {'text alone':<20}as a chat")
    results: dict[int, dict[str, Cell]] = {}
    for tokens, rounds in LENGTHS.items():
        results[tokens] = await measure(engine, tools, tokens, rounds)
        report(tokens, results[tokens])
    ids = statistics.median(await build_ids(prompts, 5))
    print(f"{IDS_TOKENS:>9,}  longproof {ids:>9.3g}  as token ids (the others make text only)")
    million = statistics.median(results[1_000_000]["longproof"].seconds)
    exact = not any(off for cells in results.values() for off in cells["longproof"].chat_off)
    return exact and million < TEXT_LIMIT_S and ids < IDS_LIMIT_S


async def main(quick: bool) -> int:
    """0 when longproof kept its limits, else 1."""
    model = resolve_model()
    print(f"{platform.platform()}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}; model {model.name}")
    with tempfile.TemporaryDirectory() as scratch:
        server = await start_embedded(EmbeddedOptions(model=model, context_tokens=512), Path(scratch) / "engine.log")
        engine = await connect(server.url)
        others, missing = ({}, dict.fromkeys(RIVALS, "left out by --quick")) if quick else rivals(model, Path(scratch))
        try:
            kept = await compare(engine, others)
        finally:
            for rival in others.values():
                rival.close()
            await engine.aclose()
            await server.process.stop()
    for name, why in missing.items():
        print(f"{'':>9}  {name:<10}{'-':>9}  {why}")
    print("ratio: to longproof's median. text alone, as a chat: tokens by the server's count, less those asked for.")
    print(f"limits: 1M ids < {IDS_LIMIT_S:g} s, 1M tokens of text < {TEXT_LIMIT_S:g} s, every chat exact: ", end="")
    print("kept" if kept else "BROKEN")
    return 0 if kept else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="longproof alone")
    sys.exit(asyncio.run(main(parser.parse_args().quick)))
