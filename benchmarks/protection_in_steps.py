"""What `gateway_protection.py` measures on a real vLLM, on engines modelled in steps and in virtual time.

    python benchmarks/protection_in_steps.py [--seeds 12] [--json FILE]

Nothing else that the machine does is in the figures, and a dozen loads take half a minute: it shows what the rules are
worth, not what an engine does. By load: p99 of the chats' time per token over that of the same chats alone on the same
engines, p99 of their time to the first, and the longest of the giants'. With one replica, and with one for the short
and one for the long (without the gateway: alternating).
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path

from longproof.testing.chats_and_giants import chats, gateway_of, giants, p99, run
from longproof.testing.controllers import S

TARGET = 1.3
ARMS = ("idle", "without", "itl alone", "tpot 1.25 x idle", "tpot 1.6 x idle")


def one_load(replicas: int, seed: int) -> dict[str, tuple[float, float, float]]:
    """By arm: time per token over idle, seconds to the first, seconds to the giants' first."""
    idle = run(replicas, chats(seed), None)
    pace, load = p99(idle, "tpot_ns"), chats(seed) + giants(seed)
    answered = {"idle": idle, "without": run(replicas, load, None)}
    for arm, tpot_ns in zip(ARMS[2:], (None, int(1.25 * pace), int(1.6 * pace)), strict=True):
        answered[arm] = run(replicas, load, gateway_of(replicas, tpot_ns))
    found: dict[str, tuple[float, float, float]] = {}
    for arm, every in answered.items():
        longest_ns = max((one.ttft_ns for name, one in every.items() if name.startswith("giant")), default=0)
        found[arm] = p99(every, "tpot_ns") / pace, p99(every, "ttft_ns") / S, longest_ns / S
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=12)
    parser.add_argument("--json", type=Path, dest="json_file")
    options = parser.parse_args()
    told: list[dict[str, object]] = []
    print(f"{'replicas':<10}{'':<18}{'tpot p99 / idle':>24}{f'over {TARGET}':>10}{'ttft p99, s':>20}{'giants, s':>11}")
    for replicas in (1, 2):
        loads = [one_load(replicas, seed) for seed in range(options.seeds)]
        for arm in ARMS:
            paces, waits, longest = zip(*(load[arm] for load in loads), strict=True)
            over = sum(pace > TARGET for pace in paces)
            cells = (f"{statistics.mean(values):.2f} (at most {max(values):.2f})" for values in (paces, waits))
            pace, wait = cells
            print(f"{replicas:<10}{arm:<18}{pace:>24}{f'{over}/{len(paces)}':>10}{wait:>24}{max(longest):>8.0f}")
            told.append({"replicas": replicas, "arm": arm, "tpot_p99_over_idle": paces, "ttft_p99_s": waits})
    if options.json_file:
        options.json_file.write_text(json.dumps(told), encoding="utf-8")


if __name__ == "__main__":
    main()
