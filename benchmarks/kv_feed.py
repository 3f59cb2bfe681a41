"""KV events from a publisher in another process into the gateway's index: how fast, and whether memory stays flat.

    python benchmarks/kv_feed.py [--blocks 10000000] [--capacity 100000]

The publisher stores chains of 500 blocks of 16 tokens in vLLM's form and removes the oldest beyond its capacity, as
fast as ZeroMQ takes them. The index is the gateway's own; every block goes through decoding, naming and the event loop.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import time
from collections import deque
from multiprocessing.connection import Connection
from typing import Any

import psutil

from longproof.domain.kv_event import KvEvent
from longproof.gateway.kv_feed import KvFeed
from longproof.gateway.kv_inbox import KvInbox
from longproof.gateway.kv_stream import KvSource
from longproof.policy.prefix import PrefixIndex
from longproof.testing.kv_publisher import KvEvents, KvPublisher

CHAIN = 500


def publish(blocks: int, capacity: int, told: Connection) -> None:
    """The other process. Waits for the word to begin; keeps a little ahead of what was taken."""
    publisher = KvPublisher(KvEvents(replay=True, buffer_messages=64))
    publisher.open()
    told.send((publisher.endpoint, publisher.replay))
    told.recv()
    kept: deque[list[int]] = deque()
    ahead = 0
    for chain in range(blocks // CHAIN):
        keys = [(chain << 20) + number for number in range(1, CHAIN + 1)]
        events: list[Any] = [
            {
                "type": "BlockStored",
                "block_hashes": keys,
                "parent_block_hash": None,
                "token_ids": [(chain * 7919 + number) % 150_000 for number in range(16 * CHAIN)],
                "block_size": 16,
                "lora_id": None,
                "medium": "GPU",
                "lora_name": None,
            }
        ]
        kept.append(keys)
        if len(kept) * CHAIN > capacity:
            events.append({"type": "BlockRemoved", "block_hashes": kept.popleft(), "medium": "GPU"})
        publisher.publish(events)
        ahead += 1
        while ahead > 200:
            told.recv()
            ahead -= 100
    told.recv()
    publisher.close()


async def measure(blocks: int, capacity: int) -> None:
    """Prints a row per tenth."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=publish, args=(blocks, capacity, theirs), daemon=True)
    process.start()
    endpoint, replay = await asyncio.to_thread(ours.recv)
    index, me = PrefixIndex(), psutil.Process()
    index.add("a")

    def apply(replica: str, event: KvEvent) -> None:
        index.apply(replica, event)

    inbox = KvInbox(apply)
    feed = KvFeed([KvSource(replica="a", endpoint=endpoint, replay=replay)], inbox.put)
    feed.start()
    (state,) = feed.states
    while not state.connected:  # noqa: ASYNC110 - known in the feed's thread
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.5)
    ours.send("begin")
    print(
        "| blocks stored | blocks/s of CPU | known keys | index blocks | index MB | process MiB | gaps |\n"
        "|---|---|---|---|---|---|---|"
    )
    acknowledged, row, cpu_s = 0, 0, time.process_time()
    while row < 10:
        await asyncio.sleep(0.01)
        while state.messages - acknowledged >= 100:
            ours.send("more")
            acknowledged += 100
        stored = state.translator.figures.stored
        if stored >= (row + 1) * blocks // 10 // CHAIN * CHAIN:
            row += 1
            rate = stored / max(time.process_time() - cpu_s, 1e-9)
            memory = me.memory_info().rss / 2**20
            known = index.known_blocks("a")
            cells = (stored, rate, len(state.translator), known, index.bytes / 1e6, memory, state.gaps)
            print("| {:,} | {:,.0f} | {:,} | {:,} | {:.1f} | {:.0f} | {} |".format(*cells), flush=True)
    feed.close()
    inbox.close()
    ours.send("end")
    process.join(10)


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=10_000_000)
    parser.add_argument("--capacity", type=int, default=100_000)
    options = parser.parse_args()
    asyncio.run(measure(options.blocks, options.capacity))


if __name__ == "__main__":
    main()
