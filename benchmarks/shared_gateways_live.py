"""Two real `longproof serve` before two engines, with one Valkey: bookings, kill -9 of a gateway and of the store.

    python benchmarks/shared_gateways_live.py            # half a minute
    python benchmarks/shared_gateways_live.py --json

The engines are `longproof.testing.lying_engine` (honest, with KV events), each with room for a dozen prompts. Shown
are: how many of 60 requests at once were answered, the most that both gateways had booked of a stage (each says what it
holds, at the same scrape), how long a killed gateway's bookings stay, and what happens while the store is dead.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import aiohttp

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "gateway"))
from valkey_server import Valkey

ENGINE = [
    *(sys.executable, "-m", "longproof.testing.lying_engine", "--dialect", "vllm", "--kv-events"),
    *("--kv-capacity", "20000", "--window", "8192", "--prefill-rate", "20000", "--token-time", "0.01"),
]
LEASE_S = 3.0
BLOCKS = 1_250


@dataclass(slots=True)
class Gateway:
    """A process, and where it listens."""

    process: subprocess.Popen[str]
    url: str


def engine() -> tuple[subprocess.Popen[str], list[str]]:
    """Its process, and its URL, events and replay."""
    process = subprocess.Popen(ENGINE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    places: list[str] = []
    while len(places) < 3:
        places += re.findall(r"(?:http|tcp)://\S+", process.stdout.readline())
    return process, places


def gateway(name: str, folder: Path, store: str, engines: list[list[str]]) -> Gateway:
    """Waits until it serves."""
    text = f'[gateway]\nport = 0\nname = "{name}"\nstate = "{folder / name}"\n'
    text += f'[shared]\nurl = "{store}"\nlease = "{LEASE_S:g}s"\n'
    for number, (url, events, replay) in enumerate(engines):
        text += f'[[replica]]\nname = "r{number}"\nurl = "{url}"\nprefill_rate = 20000\n'
        text += f'kv_events = "{events}"\nkv_replay = "{replay}"\n'
    file = folder / f"{name}.toml"
    file.write_text(text)
    command = [sys.executable, "-m", "longproof", "serve", str(file)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if "serving at " in line:
            return Gateway(process, line.partition("serving at ")[2].strip().removesuffix("/v1"))
    raise SystemExit(f"gateway {name} did not start")


async def figures(session: aiohttp.ClientSession, one: Gateway) -> dict[str, float]:
    """Its metrics by name and labels."""
    async with session.get(f"{one.url}/metrics") as response:
        lines = (await response.text()).splitlines()
    return {key: float(value) for key, _, value in (line.rpartition(" ") for line in lines if line[:1] not in "#")}


def held(found: dict[str, float], replica: str, *by: str) -> float:
    """Blocks of the first stage."""
    return sum(found[f'longproof_kv_held_blocks{{by="{b}",replica="{replica}",stage="kv"}}'] for b in by)


async def ask(session: aiohttp.ClientSession, one: Gateway, model: str, text: str, tokens: int) -> int:
    """Status of a streamed answer, read to its end; 0 where the connection broke."""
    body = {"model": model, "stream": True, "max_tokens": tokens, "messages": [{"role": "user", "content": text}]}
    try:
        async with session.post(f"{one.url}/v1/chat/completions", json=body) as response:
            await response.read()
            return response.status
    except aiohttp.ClientError:
        return 0


async def watched(session: aiohttp.ClientSession, pair: list[Gateway]) -> float:
    """The most that both have booked of one stage, until cancelled."""
    most = 0.0
    try:
        while True:
            both = await asyncio.gather(*(figures(session, one) for one in pair))
            for replica in ("r0", "r1"):
                most = max(most, sum(held(found, replica, "private", "shared") for found in both))
            await asyncio.sleep(0.05)
    except asyncio.CancelledError:
        return most


async def until(session: aiohttp.ClientSession, one: Gateway, key: str, value: float) -> float:
    """Seconds until a metric has a value."""
    began = time.monotonic()
    while (await figures(session, one)).get(key) != value:
        assert time.monotonic() - began < 60, f"{key} is not {value}"
        await asyncio.sleep(0.02)
    return time.monotonic() - began


async def measure(store: Valkey, pair: list[Gateway]) -> dict[str, object]:
    """Everything, in turn."""
    found: dict[str, object] = {"blocks": BLOCKS, "lease_s": LEASE_S}
    async with aiohttp.ClientSession() as session:
        async with session.get(f"{pair[0].url}/v1/models") as response:
            model = (await response.json())["data"][0]["id"]
        for one in pair:
            await until(session, one, "longproof_shared_gateways", 2)
        watch = asyncio.create_task(watched(session, pair))
        texts = [f"{number} " + "word " * 1_500 for number in range(60)]
        asked = [ask(session, pair[at % 2], model, text, 60) for at, text in enumerate(texts)]
        found["answered"] = sum(status == 200 for status in await asyncio.gather(*asked))
        watch.cancel()
        found["most_booked_blocks"] = await watch
        long = [asyncio.create_task(ask(session, pair[1], model, f"long {number}", 3_000)) for number in range(6)]
        await asyncio.sleep(1.5)
        before = await figures(session, pair[0])
        found["held_by_the_killed"] = sum(held(before, replica, "peers") for replica in ("r0", "r1"))
        pair[1].process.kill()
        found["released_after_s"] = await until(session, pair[0], "longproof_shared_gateways", 1)
        await asyncio.gather(*long)
        store.kill()
        found["store_missed_after_s"] = await until(session, pair[0], "longproof_shared_ok", 0)
        found["status_without_store"] = await ask(session, pair[0], model, "Hi", 8)
        store.start()
        found["store_found_after_s"] = await until(session, pair[0], "longproof_shared_ok", 1)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        store, processes = Valkey(Path(name)), list[subprocess.Popen[str]]()
        store.start()
        try:
            engines = [engine() for _ in range(2)]
            processes += [process for process, _ in engines]
            pair = [gateway(one, Path(name), store.url, [places for _, places in engines]) for one in "ab"]
            processes += [one.process for one in pair]
            found = asyncio.run(measure(store, pair))
        finally:
            for process in processes:
                process.kill()
                process.wait()
            store.kill()
    print(json.dumps(found) if given.json else "\n".join(f"{key:22} {value}" for key, value in found.items()))


if __name__ == "__main__":
    main()
