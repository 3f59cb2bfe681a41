"""How well the gateway routes: its own controller and router before modelled replicas, on generated and public traces.

    python benchmarks/routing_traces.py                              # multi-turn, long among short
    python benchmarks/routing_traces.py --traces DIR                 # and the Mooncake traces and the overload replay

DIR holds mooncake_conversation.jsonl and mooncake_synthetic.jsonl (Mooncake, FAST'25, Apache-2.0). Nothing here is
measured on a clock: replicas are models (`routing/engines.py`), time is simulated, and every figure is the same on
every machine. What decides is the code that serves: `policy.controller` and `policy.routing` with the defaults that
`longproof serve` has, so a change to either moves these figures.

    hit        cached over prompt tokens          imb     uncached tokens of the busiest replica over the mean
    TTFT       from arrival at the gateway to the first token, waiting included
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from routing.baselines import Baseline
from routing.engines import Engine, FifoEngine, LruCache, SteppedEngine
from routing.kernel import Kernel
from routing.requests import Job, Outcome
from routing.workloads import long_short, mooncake, multi_turn

from longproof.domain.units import NS_PER_MS, NS_PER_S
from longproof.policy.admission import AdmissionRule
from longproof.policy.controller import Controller
from longproof.policy.controller_config import ControllerConfig, QueueRule, ReplicaRule
from longproof.policy.ledger import Pool
from longproof.policy.need import BlockNeed
from longproof.policy.prefill_cost import PrefillCost
from longproof.policy.routing import PrefixRouter

REPLICAS = ("r1", "r2", "r3", "r4")
WINDOW_TOKENS = 8_192
"""Uncached tokens that may be in prefill at a replica: the rest waits where its order can still change."""
UNBOUNDED = 1 << 30
NEVER_NS = 1_000_000 * NS_PER_S
EVENTS, TRAFFIC = "longproof, told by events", "longproof, from its own traffic"
RULES = (EVENTS, TRAFFIC, "sticky", "longest match", "round robin")


@dataclass(frozen=True)
class Fleet:
    """Four equal replicas. `blocks` of `block_tokens` (as arrivals name them) are both KV pool and prefix cache."""

    blocks: int
    block_tokens: int
    prefill: PrefillCost
    make: Callable[[str, Kernel], Engine]
    queue: QueueRule = field(default_factory=QueueRule)

    def run(self, workload: Iterable[tuple[int, Job]], known: str = EVENTS) -> Outcome:
        """One run of the gateway as served, or of another rule that sends everything on at once."""
        ours = known in (EVENTS, TRAFFIC)
        router = PrefixRouter() if ours else Baseline(known)
        rules: list[ReplicaRule] = []
        for name in REPLICAS:
            router.follow(name, block_tokens=self.block_tokens, cache_blocks=self.blocks, events=known != TRAFFIC)
            need = BlockNeed(block_tokens=self.block_tokens)
            rules.append(
                ReplicaRule(
                    name=name,
                    models=("m",),
                    pools=(Pool(stage="kv", capacity_blocks=self.blocks if ours else UNBOUNDED, need=need),),
                    admission=AdmissionRule(limit_tokens=None),
                    prefill=self.prefill,
                    block_tokens=self.block_tokens,
                    prefill_window_tokens=WINDOW_TOKENS if ours else None,
                )
            )
        config = ControllerConfig(replicas=tuple(rules), queue=self.queue)
        kernel = Kernel(Controller(config, router), tell_events=known != TRAFFIC)
        return kernel.run([self.make(name, kernel) for name in REPLICAS], workload)


def fifo(blocks: int, block_tokens: int, tokens_per_s: float, answer_ms: int, *, tail_first: bool = True) -> Fleet:
    """One prefill at a time, at a constant rate."""

    def make(name: str, kernel: Kernel) -> Engine:
        return FifoEngine(
            name,
            kernel,
            cache=LruCache(blocks, tail_first=tail_first),
            block_tokens=block_tokens,
            tokens_per_s=tokens_per_s,
            answer_ns=answer_ms * NS_PER_MS,
        )

    return Fleet(blocks, block_tokens, PrefillCost.at_rate(tokens_per_s), make)


def conversations(seeds: range) -> None:
    """64 conversations of 8 turns on caches that hold them (roomy) and that do not (tight)."""
    print("\n## Multi-turn: 64 conversations of 8 turns, 7,000 to 11,300 tokens, one system prompt of 1,026\n")
    print("| cache per replica | rule | hit (least) | TTFT p50 / p99 ms | imb (most) |\n|---|---|---|---|---|")
    for name, blocks, tail_first in (
        ("roomy, 262k tokens", 16_384, True),
        ("tight, 98k tokens", 6_144, True),
        ("tight, heads go first", 6_144, False),
    ):
        for rule in RULES:
            outcomes = [
                fifo(blocks, 16, 200_000, 32, tail_first=tail_first).run(multi_turn(seed), rule) for seed in seeds
            ]
            hits = [outcome.hit_share for outcome in outcomes]
            imbalances = [outcome.imbalance for outcome in outcomes]
            p50, p99 = (statistics.mean(outcome.ttft_ms(q) for outcome in outcomes) for q in (0.5, 0.99))
            print(
                f"| {name} | {rule} | {statistics.mean(hits):.3f} ({min(hits):.3f}) | {p50:.0f} / {p99:.0f} |"
                f" {statistics.mean(imbalances):.2f} ({max(imbalances):.2f}) |",
                flush=True,
            )


def longs_among_shorts(seeds: range) -> None:
    """4 % of the requests are two hundred times as long as the rest."""
    print("\n## Long among short: 40 requests/s, 4 % of 200,000 tokens (1 s of prefill), the rest of 1,000 (5 ms)\n")
    print("| long requests | rule | shorts' TTFT p50 / p99 / worst ms | longs' TTFT p50 / p99 ms |\n|---|---|---|---|")
    for name, every in (("every 25th", 25), ("4 % by chance", None)):
        for rule in (EVENTS, "round robin"):
            outcomes = [fifo(65_536, 16, 200_000, 32).run(long_short(seed, every=every), rule) for seed in seeds]
            figures = [
                statistics.mean(outcome.ttft_ms(q, kind) for outcome in outcomes)
                for kind, q in (("short", 0.5), ("short", 0.99), ("short", 1.0), ("long", 0.5), ("long", 0.99))
            ]
            print("| {} | {} | {:.0f} / {:.0f} / {:.0f} | {:.0f} / {:.0f} |".format(name, rule, *figures), flush=True)


def traces(directory: Path) -> None:
    """The Mooncake traces on small caches."""
    print("\n## Mooncake traces, 4 x 4,000 blocks of 512 tokens, 10,000 tokens/s each\n")
    print("| trace | rule | hit | imb | TTFT p50 / p99 / worst s |\n|---|---|---|---|---|")
    for name in ("conversation", "synthetic"):
        for rule in (EVENTS, TRAFFIC, "longest match", "round robin"):
            outcome = fifo(4_000, 512, 10_000, 0).run(mooncake(directory / f"mooncake_{name}.jsonl"), rule)
            times = [outcome.ttft_ms(q) / 1e3 for q in (0.5, 0.99, 1.0)]
            print(
                f"| {name} | {rule} | {outcome.hit_share:.3f} | {outcome.imbalance:.2f} |"
                f" {times[0]:.2f} / {times[1]:.1f} / {times[2]:.1f} |",
                flush=True,
            )


def overload(directory: Path, speed: float) -> None:
    """The conversation trace at a rate the replicas cannot keep up with."""
    print(
        f"\n## Overload: conversation trace x{speed:g}, 4 x 8,192 blocks of 64 tokens, batched steps of 8,192 tokens\n"
    )
    print("| queue | answered | refused | hit | TTFT p50 / p90 / p99 s | oldest wait s | lasted s |")
    print("|---|---|---|---|---|---|---|")

    def make(name: str, kernel: Kernel) -> Engine:
        return SteppedEngine(name, kernel, kv_blocks=8_192, block_tokens=64, step_tokens=8_192, name_tokens=512)

    for title, queue in (
        ("the engines' own: round robin", QueueRule()),
        ("shortest first", QueueRule(age_bound_ns=NEVER_NS, longest_wait_ns=NEVER_NS)),
        ("as served by default", QueueRule()),
        ("as served, no wait above a minute", QueueRule(longest_wait_ns=60 * NS_PER_S)),
        ("as served, no wait above three", QueueRule(longest_wait_ns=180 * NS_PER_S)),
        ("as served, half for the overdue", QueueRule(overdue_share=0.5)),
    ):
        # the mocker's formula, made linear at a step of 8,192 tokens
        fleet = Fleet(1_024, 512, PrefillCost(ns_per_token=18_600, fixed_ns=16_500_000), make, queue)
        workload = mooncake(directory / "mooncake_conversation.jsonl", speed=speed)
        outcome = fleet.run(workload, "round robin" if title.endswith("round robin") else EVENTS)
        times = [outcome.ttft_ms(q) / 1e3 for q in (0.5, 0.9, 0.99, 1.0)]
        print(
            f"| {title} | {len(outcome.answered()):,} | {len(outcome.refused()):,} | {outcome.hit_share:.3f} |"
            f" {times[0]:.2f} / {times[1]:.1f} / {times[2]:.1f} | {times[3]:.0f} | {outcome.ended_ns / 1e9:.0f} |",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path, help="directory with the Mooncake traces")
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--only", default="", help="conversations, shorts, traces, overload")
    parser.add_argument("--speed", type=float, default=3, help="overload: how many times the trace's own rate")
    given = parser.parse_args()
    seeds = range(7, 7 + given.seeds)
    wanted = given.only.split(",") if given.only else ["conversations", "shorts", "traces", "overload"]
    if "conversations" in wanted:
        conversations(seeds)
    if "shorts" in wanted:
        longs_among_shorts(seeds)
    if given.traces is not None:
        if "traces" in wanted:
            traces(given.traces)
        if "overload" in wanted:
            overload(given.traces, given.speed)


if __name__ == "__main__":
    main()
