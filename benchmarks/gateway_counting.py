"""What it costs to count long prompts exactly, and what the event loop notices of it.

    python benchmarks/gateway_counting.py [--model DIR_OR_GGUF] [--bytes 4194304] [--together 4]

Python's own library serves as text. "cold": a prompt nobody sent before. "next turn": the same and a question more.
"known": the very same. "together": several cold ones at once. Lag: how much later than asked a timer of 5 ms fires.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import sysconfig
import time
from pathlib import Path

import orjson

from longproof.domain.request import Route
from longproof.engines.model_files import resolve_model
from longproof.gateway.ask import Ask
from longproof.gateway.counting import FleetCounting, ModelCounting
from longproof.gateway.local_count import LocalCount
from longproof.gateway.model_tokenizer import load_model_tokenizer
from longproof.gateway.text_memory import TextMemory

TICK_S = 0.005


def library_text(size: int) -> str:
    """Source files of the standard library, cut to a number of ASCII characters."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    text = "".join(file.read_text("utf-8", "ignore") for file in files)
    return text.encode("ascii", "ignore").decode()[:size]


def chat(text: str) -> Ask:
    """A chat of one message."""
    body = orjson.dumps({"model": "m", "messages": [{"role": "user", "content": text}]})
    return Ask(id="1", route=Route.CHAT, model="m", body=body, fields=orjson.loads(body))


class Lag:
    """A timer that notes how late it is."""

    def __init__(self) -> None:
        self.late_s: list[float] = []

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            began_s = time.monotonic()
            await asyncio.sleep(TICK_S)
            self.late_s.append(time.monotonic() - began_s - TICK_S)

    def taken(self) -> str:
        """p50, p99 and the worst since the last call, in ms."""
        late, self.late_s = sorted(self.late_s), []
        if not late:
            return "-"
        p50, p99 = late[len(late) // 2], late[int(len(late) * 0.99)]
        return f"{p50 * 1e3:.1f} / {p99 * 1e3:.1f} / {late[-1] * 1e3:.1f}"


async def measure(model: Path, size: int, together: int) -> None:
    """All rows."""
    began_s = time.process_time()
    local = LocalCount(load_model_tokenizer(model), TextMemory())
    print(f"{local.name}: read in {time.process_time() - began_s:.2f} s of CPU")
    counting = ModelCounting(model="m", block_tokens=16, local=local)
    for trust in counting.trust.values():
        trust.compare(1, 1)
    fleet, lag = FleetCounting({"m": counting}), Lag()
    ticking = asyncio.create_task(lag.run())
    text = library_text(size)
    rows: list[tuple[str, list[Ask]]] = [
        ("cold", [chat("first " + text)]),
        ("known", [chat("first " + text)]),
        ("next turn", [chat("first " + text + " And what does it do?")]),
        (f"{together} together", [chat(f"{number} {text}") for number in range(together)]),
    ]
    print("| prompt | tokens | wall s each | CPU s each | loop lag p50 / p99 / worst ms |\n|---|---|---|---|---|")
    for name, asks in rows:
        await asyncio.sleep(0.1)
        lag.taken()
        wall_s, cpu_s = time.monotonic(), time.process_time()
        counted = await asyncio.gather(*(fleet.count(ask) for ask in asks))
        each = ((time.monotonic() - wall_s) / len(asks), (time.process_time() - cpu_s) / len(asks))
        print(f"| {name} | {counted[0].input_tokens:,} | {each[0]:.3f} | {each[1]:.3f} | {lag.taken()} |", flush=True)
    ticking.cancel()
    fleet.close()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"remembered: {local.memory.held_bytes / 2**20:.1f} MiB; peak memory of the process: {peak:.0f} MiB")


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=None, help="directory, tokenizer.json or GGUF")
    parser.add_argument("--bytes", type=int, default=4 << 20)
    parser.add_argument("--together", type=int, default=4)
    options = parser.parse_args()
    asyncio.run(measure(options.model or resolve_model(), options.bytes, options.together))


if __name__ == "__main__":
    main()
