"""What a decision costs: Python time of the controller and its router per request, without any I/O.

    python benchmarks/controller_cost.py

Processor time; each figure is the best of many short rounds, since a busy machine only ever adds to it.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable

from longproof.domain.events import EngineSample
from longproof.domain.kv_event import KvStored
from longproof.domain.units import NS_PER_S
from longproof.policy.actions import Dispatch
from longproof.policy.admission import MEASURED
from longproof.policy.arrivals import Arrival, Ended, EndKind
from longproof.policy.controller import Controller
from longproof.policy.controller_config import ControllerConfig, QueueRule
from longproof.policy.routing import PrefixRouter
from longproof.testing.controllers import arrival, replica_rule

BLOCK_TOKENS = 16
ROUNDS, PER_ROUND = 40, 200
DONE = Ended(kind=EndKind.COMPLETED, output_tokens=64)


def gateway(replicas: int, *, capacity_blocks: int = 1 << 20, events: bool = False) -> Controller:
    """A fleet that has room."""
    router = PrefixRouter()
    rules = [
        replica_rule(
            f"r{n}",
            capacity_blocks=capacity_blocks,
            block_tokens=BLOCK_TOKENS,
            limit_tokens=2_000_000,
            reservation=MEASURED,
            tokens_per_s=50_000,
        )
        for n in range(replicas)
    ]
    for rule in rules:
        router.follow(rule.name, block_tokens=BLOCK_TOKENS, cache_blocks=capacity_blocks, events=events)
    return Controller(ControllerConfig(replicas=tuple(rules), queue=QueueRule(most_waiting=100_000)), router)


def best_us(work: Callable[[int], None], *, rounds: int = ROUNDS, per_round: int = PER_ROUND) -> float:
    """Microseconds per call: the best round."""
    number, best = 0, float("inf")
    for _ in range(rounds):
        started = time.process_time_ns()
        for _ in range(per_round):
            work(number)
            number += 1
        best = min(best, (time.process_time_ns() - started) / per_round)
    return best / 1_000


def whole_requests(controller: Controller, tokens: int, *, streamed: bool) -> Callable[[int], None]:
    """Arrival to end; with `streamed`, its first token and two reports of output between."""
    blocks = tuple(range(tokens // BLOCK_TOKENS))

    def work(number: int) -> None:
        request: Arrival = arrival(f"a{number}", tokens, 100, blocks=blocks)
        now_ns = number * 100_000
        controller.on_arrival(request, now_ns)
        if streamed:
            controller.on_first_token(request.id, now_ns + 1_000)
            controller.on_output(request.id, 16, now_ns + 2_000)
            controller.on_output(request.id, 64, now_ns + 3_000)
        controller.on_finish(request.id, DONE, now_ns + 4_000)

    return work


def long_prompts(*, events: bool, rounds: int = 15) -> None:
    """What each call takes for a prompt of a million tokens (62,500 blocks) before four replicas, among others like it:
    one that nobody knows, and then the same again. `events`: the replica tells of it, 512 blocks at a time."""
    controller, chance, now_ns = gateway(4, capacity_blocks=1 << 19, events=events), random.Random(1), 0
    spent: dict[str, list[float]] = {}
    prompt: list[int] = []
    for number in range(2 * rounds):
        known = number % 2
        if not known:
            prompt = [chance.getrandbits(64) for _ in range(62_500)]
        blocks = tuple(name + 0 for name in prompt)  # equal names, other objects
        bounded = arrival(f"l{number}", 1_100_000, 100, exact=False)
        to = ""
        for name, call in (
            ("arrival", lambda at, bounded=bounded: controller.on_arrival(bounded, at)),
            ("counted", lambda at, own=bounded.id, blocks=blocks: controller.on_counted(own, 1_000_000, blocks, at)),
            ("first token", lambda at, own=bounded.id: controller.on_first_token(own, at)),
            ("finish", lambda at, own=bounded.id: controller.on_finish(own, DONE, at)),
        ):
            now_ns += NS_PER_S
            started = time.thread_time_ns()
            answer = call(now_ns)
            spent.setdefault(f"{name}, {'known' if known else 'cold'}", []).append(time.thread_time_ns() - started)
            if name == "counted":
                to = next(action.replica for action in answer if isinstance(action, Dispatch))
            for start in range(0, 62_500 if events and name == "counted" and not known else 0, 512):
                controller.on_kv_event(to, KvStored(blocks=blocks[start : start + 512]), now_ns)
    for name, times in spent.items():
        source = "told" if events else "guessed"
        print(f"| {name}, 1,000,000 tokens, {source}: median | {statistics.median(times) / 1e3:,.0f} |", flush=True)


def main() -> None:
    print("| | us |\n|---|---|")
    for replicas in (1, 4, 16):
        for tokens in (64, 600, 16_000):
            cost = best_us(whole_requests(gateway(replicas), tokens, streamed=False))
            print(f"| arrival + finish, {replicas} replicas, {tokens:,} tokens | {cost:.0f} |", flush=True)
    cost = best_us(whole_requests(gateway(4), 600, streamed=True))
    print(f"| … 4 replicas, 600 tokens, with first token and two outputs | {cost:.0f} |")
    million = best_us(whole_requests(gateway(4), 1_000_000, streamed=True), rounds=5, per_round=3)
    print(f"| … 4 replicas, 1,000,000 tokens (62,500 blocks) | {million:,.0f} |")

    for events in (False, True):
        long_prompts(events=events)

    full = gateway(4, capacity_blocks=100)
    for number in range(10_000):
        full.on_arrival(arrival(f"w{number}", 1_000 + number % 500, 0, tenant=f"t{number % 50}"), number)
    cost = best_us(lambda n: full.cancel(f"w{n + 100}", 10_000_000 + n) and None, rounds=10)
    print(f"| one leaves a queue of 10,000 (50 tenants), nothing fits | {cost:.0f} |")
    cost = best_us(lambda n: full.on_tick(20_000_000 + n) and None, rounds=10, per_round=20)
    print(f"| a tick, 8,000 waiting | {cost:.0f} |")
    sample = EngineSample(at_ns=0, running=1, waiting=0, kv_usage=0.5)
    cost = best_us(lambda n: full.on_sample("r0", sample, 30_000_000 + n) and None, rounds=10, per_round=20)
    print(f"| a sample, 8,000 waiting | {cost:.0f} |")


if __name__ == "__main__":
    main()
