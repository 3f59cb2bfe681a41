"""How fast a replica prefills, as its first tokens show: from what it may be learned, and what must not move it."""

from __future__ import annotations

import random

import pytest

from longproof.domain.fleet import PrefillSource
from longproof.policy.actions import Dispatch
from longproof.policy.arrivals import Ended, EndKind
from longproof.policy.controller import Controller
from longproof.policy.controller_config import ControllerConfig
from longproof.policy.prefill_cost import PrefillCost
from longproof.policy.prefill_pace import PrefillPace
from longproof.testing.controllers import MS, LeastBacklog, S, arrival, replica_rule

RUN_SEED = 20261130


@pytest.mark.parametrize(("streamed", "predicted_s"), [(True, 4), (False, 1)])
def test_only_streams_teach_how_fast_a_replica_prefills(streamed: bool, predicted_s: int) -> None:
    rule = replica_rule(capacity_blocks=100_000, tokens_per_s=1_000, learn_prefill=True)
    gateway = Controller(ControllerConfig(replicas=(rule,)), LeastBacklog())
    for number in range(3):
        at_ns = number * 10 * S
        gateway.on_arrival(arrival(str(number), 1_000, 10, streamed=streamed), at_ns)
        gateway.on_first_token(str(number), at_ns + 4 * S)  # without a stream, that is the whole answer
        gateway.on_finish(str(number), Ended(kind=EndKind.COMPLETED), at_ns + 4 * S)
    sent = gateway.on_arrival(arrival("next", 1_000, 10), 40 * S)
    assert isinstance(sent, Dispatch)
    assert sent.predicted_ttft_ns == predicted_s * S  # assumed: 1,000 tokens a second


def pace() -> PrefillPace:
    return PrefillPace(PrefillCost.at_rate(10_000))


def rate(learned: PrefillPace) -> float:
    return 1e9 / learned.cost.ns_per_token


def alone(learned: PrefillPace, count: int, *, tokens: int, ns: int, from_ns: int) -> int:
    """Prompts one after the other, a second between them; returns when the last was done."""
    for _ in range(count):
        learned.first_token(tokens, from_ns, from_ns + ns)
        from_ns += ns + S
    return from_ns


def test_the_assumption_holds_until_three_prefills_were_seen() -> None:
    learned = pace()
    at_ns = alone(learned, 2, tokens=1_000, ns=S, from_ns=0)
    assert not learned.learned
    assert rate(learned) == pytest.approx(10_000)
    alone(learned, 1, tokens=1_000, ns=S, from_ns=at_ns)
    assert learned.learned
    assert rate(learned) == pytest.approx(1_000)


def test_time_in_the_engines_queue_is_no_prefill() -> None:
    learned = pace()
    for number in range(8):  # all sent at once, prefilled one after the other at 2,000 tokens/s
        learned.first_token(1_000, 0, (number + 1) * S // 2)
    assert rate(learned) == pytest.approx(2_000)


def test_prompts_that_come_out_together_count_as_one() -> None:
    learned, at_ns = pace(), 0
    for _ in range(5):  # steps of 8 prompts of 1,000 tokens in 2 s: 4,000 tokens/s, though the first took 2 s alone
        for number in range(8):
            learned.first_token(1_000, at_ns, at_ns + 2 * S + number * MS)
        at_ns += 2 * S + 7 * MS
    assert rate(learned) == pytest.approx(4_000, rel=0.01)


def test_a_minute_that_hung_and_hits_that_nobody_knew_of_do_not_move_it() -> None:
    learned = pace()
    at_ns = alone(learned, 20, tokens=1_000, ns=S // 5, from_ns=0)
    learned.first_token(1_000, at_ns, at_ns + 60 * S)  # the mean would be 310 tokens/s now
    at_ns = alone(learned, 4, tokens=4_000, ns=10 * MS, from_ns=at_ns + 61 * S)  # cached: 400,000 "tokens/s"
    assert rate(learned) == pytest.approx(5_000)


def test_it_follows_an_engine_that_became_slower() -> None:
    learned = pace()
    at_ns = alone(learned, 60, tokens=1_000, ns=S // 5, from_ns=0)
    alone(learned, 30, tokens=1_000, ns=S, from_ns=at_ns)  # more than half of the latest 48
    assert rate(learned) == pytest.approx(1_000)


def test_short_prompts_teach_nothing() -> None:
    learned = pace()
    alone(learned, 20, tokens=63, ns=20 * MS, from_ns=0)
    assert not learned.learned


def test_a_long_prefill_does_not_swallow_the_short_ones_behind_it() -> None:
    learned = pace()
    learned.first_token(100_000, 0, 10 * S)
    stretches = [learned.first_token(1_000, 0, 10 * S + number * S // 10) for number in range(1, 400)]
    assert len({id(stretch) for stretch in stretches}) > 100  # at most as much again as the long one took


def test_the_engines_own_count_of_hits_corrects_what_was_thought() -> None:
    """10,000 tokens in a second, of which 8,000 were cached although nobody knew: 2,000 tokens/s, not 10,000."""
    rule = replica_rule(capacity_blocks=1_000_000, tokens_per_s=500, learn_prefill=True)
    gateway = Controller(ControllerConfig(replicas=(rule,)), LeastBacklog())
    for number in range(4):
        at_ns = number * 10 * S
        gateway.on_arrival(arrival(str(number), 10_000, 10), at_ns)
        gateway.on_first_token(str(number), at_ns + S)
        gateway.on_finish(str(number), Ended(kind=EndKind.COMPLETED, cached_tokens=8_000), at_ns + 2 * S)
    (replica,) = gateway.snapshot(50 * S).replicas
    assert replica.prefill_tokens_per_s == pytest.approx(2_000)
    assert replica.prefill_source is PrefillSource.LEARNED


@pytest.mark.parametrize(("learn", "source"), [(True, PrefillSource.ASSUMED), (False, PrefillSource.GIVEN)])
def test_the_snapshot_says_what_a_rate_rests_on(learn: bool, source: PrefillSource) -> None:
    rule = replica_rule(tokens_per_s=1_234, learn_prefill=learn)
    (replica,) = Controller(ControllerConfig(replicas=(rule,)), LeastBacklog()).snapshot(0).replicas
    assert replica.prefill_tokens_per_s == pytest.approx(1_234)
    assert replica.prefill_source is source


def test_a_rate_is_found_within_a_tenth_among_mixed_traffic() -> None:
    """One server at 7,500 tokens/s, prompts of 70 to 20,000 tokens, some in a queue, 5 % stalls of a second."""
    source, learned = random.Random(RUN_SEED), pace()
    free_ns = sent_ns = 0
    for _ in range(300):
        sent_ns += int(source.expovariate(1 / 1.5) * S)
        tokens = int(source.lognormvariate(8, 1.2)) + 70
        done_ns = max(sent_ns, free_ns) + int(tokens / 7_500 * S) + (S if source.random() < 0.05 else 0)
        free_ns = done_ns
        learned.first_token(tokens, sent_ns, done_ns)
    assert rate(learned) == pytest.approx(7_500, rel=0.1)
