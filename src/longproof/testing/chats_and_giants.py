"""Short chats and a burst of giant prompts on engines that work in steps: loads, a gateway and what the chats get. In
virtual time, what `benchmarks/gateway_protection.py` does with a real vLLM."""

from __future__ import annotations

import random
from dataclasses import replace

from longproof.policy.admission import MEASURED
from longproof.policy.arrivals import Arrival
from longproof.policy.controller import Controller
from longproof.policy.controller_config import ControllerConfig, QueueRule, SloRule
from longproof.policy.pools import PoolRule
from longproof.policy.routing import PrefixRouter, RoutingRule
from longproof.testing.controllers import MS, S, arrival, replica_rule
from longproof.testing.stepping_fleet import Answered, SteppingFleet

_CHUNK = 128
POOLS = ("short", "long")
Load = list[tuple[int, Arrival, int]]


def gateway_of(replicas: int, tpot_ns: int | None) -> Controller:
    """One replica, or a pool for the short and one for the long, of 319 blocks of 32 tokens each."""
    rules = [
        replace(
            replica_rule(
                pool,
                capacity_blocks=319,
                block_tokens=32,
                limit_tokens=8_192,
                reservation=MEASURED,
                tokens_per_s=700,
                pool=pool,
                learn_prefill=True,
            ),
            step_tokens=_CHUNK,
            learn_decode=True,
            decode_ns_per_token=20 * MS,
        )
        for pool in POOLS[:replicas]
    ]
    router = PrefixRouter(
        RoutingRule(pools=PoolRule(long_from_tokens=1_000, long_pool="long" if replicas > 1 else None))
    )
    for rule in rules:
        router.follow(rule.name, block_tokens=32, cache_blocks=319, events=False)
    queue = QueueRule(age_bound_ns=8 * S, overdue_share=0.5)
    slo = SloRule(itl_ns=100 * MS, tpot_ns=tpot_ns)
    return Controller(ControllerConfig(replicas=tuple(rules), slo=slo, queue=queue), router)


def chats(seed: int, *, until_s: float = 100.0) -> Load:
    """1.2 a second, with a long tail of outputs."""
    draw, now_s, load = random.Random(seed), 0.0, Load()
    while (now_s := now_s + draw.expovariate(1.2)) < until_s:
        output = min(240, max(16, int(draw.lognormvariate(3.9, 0.7))))
        load.append((int(now_s * S), arrival(f"chat{len(load)}", draw.randint(30, 90), output), output))
    return load


def giants(seed: int) -> Load:
    """Four within a second."""
    draw = random.Random(seed)
    return [
        (24 * S + n * 200 * MS, arrival(f"giant{n}", int(2_800 * draw.uniform(0.85, 1.15)), 24), 24) for n in range(4)
    ]


def run(replicas: int, load: Load, gateway: Controller | None) -> dict[str, Answered]:
    """What becomes of them; without a gateway they alternate between the replicas."""
    return SteppingFleet(POOLS[:replicas], gateway).run(sorted(load, key=lambda one: one[0])).answered


def p99(answered: dict[str, Answered], figure: str) -> float:
    """Of the chats: of `ttft_ns` or `tpot_ns`."""
    values = sorted(getattr(one, figure) for name, one in answered.items() if name.startswith("chat"))
    return float(values[int(0.99 * len(values))])
