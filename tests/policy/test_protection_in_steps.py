"""What chats get beside giants on engines that work in steps: their time per token, and to the first."""

from __future__ import annotations

import pytest

from longproof.testing.chats_and_giants import chats, gateway_of, giants, p99, run
from longproof.testing.controllers import MS, S, arrival
from longproof.testing.stepping_fleet import SteppingFleet


@pytest.mark.parametrize("seed", range(4))
def test_chats_keep_their_pace_beside_giants_when_a_time_per_token_is_promised(seed: int) -> None:
    idle = p99(run(1, chats(seed), None), "tpot_ns")
    without = run(1, chats(seed) + giants(seed), None)
    protected = run(1, chats(seed) + giants(seed), gateway_of(1, int(1.25 * idle)))
    assert p99(without, "tpot_ns") > 3 * idle
    assert p99(protected, "tpot_ns") <= 1.4 * idle
    assert p99(protected, "tpot_ns") < p99(without, "tpot_ns") / 2
    assert max(one.ttft_ns for one in protected.values()) < 60 * S  # giants too


@pytest.mark.parametrize("seed", range(4))
def test_chats_hardly_wait_for_their_first_token_when_giants_have_a_replica(seed: int) -> None:
    idle = run(2, chats(seed), None)
    without = run(2, chats(seed) + giants(seed), None)
    pooled = run(2, chats(seed) + giants(seed), gateway_of(2, None))
    assert p99(pooled, "tpot_ns") < p99(without, "tpot_ns") / 2
    assert p99(pooled, "ttft_ns") <= 4 * p99(idle, "ttft_ns")
    assert p99(pooled, "ttft_ns") < p99(without, "ttft_ns")
    assert {one.replica for name, one in pooled.items() if name.startswith("giant")} == {"long"}
    assert max(one.ttft_ns for one in pooled.values()) < 60 * S


def test_steps_take_as_long_as_what_is_done_in_them() -> None:
    """9 ms and 1.25 ms per prefilled token; then 9 + 2.6 ms and 3.6 µs per token of context."""
    load = [(0, arrival("chat0", 100, 3), 3)]
    exact = SteppingFleet(("a",), None, chance_of_more=0.0).run(load).answered["chat0"]
    assert exact.ttft_ns == 9 * MS + 125 * MS
    assert exact.tpot_ns == pytest.approx(11.6 * MS + 101.5 * 3_600, abs=2)
    assert exact.replica == "a"
