"""Bookings of other gateways before the same engines: counted like our own, and never far exceeded."""

from __future__ import annotations

import random

from longproof.domain.events import EngineSample
from longproof.domain.fleet import FleetSnapshot, StageSnapshot
from longproof.domain.kv_event import KvStored
from longproof.policy.actions import Dispatch, Wait
from longproof.policy.arrivals import Arrival, Ended, EndKind
from longproof.policy.controller import Controller
from longproof.policy.controller_config import ControllerConfig, SloRule, WatermarkRule
from longproof.policy.peers import FleetUse, ReplicaUse, StageUse, summed
from longproof.policy.routing import PrefixRouter
from longproof.testing.controllers import S, arrival, controller_of, replica_rule

DONE = Ended(kind=EndKind.COMPLETED)
RUN_SEED = 20261130


def booked(blocks: int, requests: int = 1, **more: int) -> FleetUse:
    return FleetUse(replicas={"r0": ReplicaUse(stages={"kv": StageUse(blocks=blocks, requests=requests)}, **more)})


def stage(snapshot: FleetSnapshot) -> StageSnapshot:
    return snapshot.replicas[0].stages[0]


def test_what_others_have_booked_is_not_free() -> None:
    gateway = controller_of(replica_rule(capacity_blocks=100, block_tokens=1))
    gateway.on_peers(booked(60), 2, 0, told=True)
    assert isinstance(gateway.on_arrival(arrival("a", 50), 0), Wait)
    seen = stage(gateway.snapshot(0))
    assert (seen.peer_blocks, seen.held_blocks, seen.free_blocks) == (60, 60, 40)
    (sent,) = gateway.on_peers(booked(0, 0), 2, S, told=True)  # theirs has ended
    assert isinstance(sent, Dispatch)
    assert stage(gateway.snapshot(S)).held_blocks == stage(gateway.snapshot(S)).private_blocks


def test_an_empty_stage_keeps_its_watermark_when_only_others_are_there() -> None:
    marks = WatermarkRule(stop=0.95, resume=0.9)
    beside, alone = (controller_of(replica_rule(capacity_blocks=100), watermark=marks) for _ in range(2))
    beside.on_peers(booked(10), 2, 0, told=True)
    assert isinstance(beside.on_arrival(arrival("a", 89), 0), Wait)  # 10 + 89 > 95
    assert isinstance(alone.on_arrival(arrival("a", 100), 0), Dispatch)


def test_bookings_that_met_are_taken_back_as_ours_leave() -> None:
    gateway = controller_of(replica_rule(capacity_blocks=100, block_tokens=1))
    gateway.on_arrival(arrival("a", 70), 0)
    gateway.on_peers(booked(80), 2, 0, told=True)  # both had seen an empty stage
    seen = stage(gateway.snapshot(0))
    assert (seen.private_blocks, seen.peer_blocks, seen.free_blocks) == (70, 30, 0)
    gateway.on_finish("a", DONE, S)
    seen = stage(gateway.snapshot(S))
    assert (seen.peer_blocks, seen.free_blocks) == (80, 20)  # no room appears that is not there


def test_no_more_than_a_share_is_booked_before_the_others_know_of_it() -> None:
    gateway = controller_of(replica_rule(capacity_blocks=1_000, block_tokens=1))
    gateway.on_peers(FleetUse(), 2, 0, told=True)  # 1,000 are free; this gateway's share of them is 500
    assert isinstance(gateway.on_arrival(arrival("a", 400), 0), Dispatch)
    assert isinstance(gateway.on_arrival(arrival("b", 100), 0), Dispatch)
    held_back = gateway.on_arrival(arrival("c", 50), 0)
    assert isinstance(held_back, Wait)
    assert gateway.on_peers(FleetUse(), 2, 0, told=False) == []  # heard from them, but they not from us
    (sent,) = gateway.on_peers(FleetUse(), 2, 0, told=True)
    assert (sent.id, isinstance(sent, Dispatch)) == ("c", True)


def test_one_request_may_always_be_on_its_way() -> None:
    gateway = controller_of(replica_rule(capacity_blocks=1_000, block_tokens=1))
    gateway.on_peers(booked(100), 2, 0, told=True)
    assert isinstance(gateway.on_arrival(arrival("giant", 800), 0), Dispatch)  # more than its share of 450


def test_being_held_back_for_a_moment_refuses_nobody_for_being_late() -> None:
    gateway = controller_of(replica_rule(capacity_blocks=1_000, block_tokens=1), slo=SloRule(ttft_ns=5 * S))
    gateway.on_peers(FleetUse(), 2, 0, told=True)
    gateway.on_arrival(arrival("a", 470), 0)
    assert isinstance(gateway.on_arrival(arrival("b", 470), 0), Wait)


def test_nothing_is_held_back_when_the_others_are_gone() -> None:
    gateway = controller_of(replica_rule(capacity_blocks=1_000, block_tokens=1))
    gateway.on_peers(booked(500), 2, 0, told=True)
    gateway.on_peers(FleetUse(), 1, 0, told=False)
    for number in range(9):
        assert isinstance(gateway.on_arrival(arrival(str(number), 100), 0), Dispatch)


def test_the_engines_figures_count_others_bookings_once() -> None:
    gateway = controller_of(replica_rule(capacity_blocks=1_000, block_tokens=1))
    gateway.on_peers(booked(300), 2, 0, told=True)
    for at_s in (1, 2):  # 500 in use, 300 of them the other gateway's: 200 are somebody else's
        gateway.on_sample("r0", EngineSample(at_ns=at_s * S, running=2, waiting=0, kv_usage=0.5), at_s * S)
    seen = stage(gateway.snapshot(2 * S))
    assert (seen.peer_blocks, seen.foreign_blocks, seen.held_blocks) == (300, 200, 500)


def test_others_prefills_and_streams_count_in_the_backlog() -> None:
    gateway = controller_of(replica_rule("r0"), replica_rule("r1"))
    gateway.on_peers(booked(0, 0, pending_prefill_tokens=9_000, prefilling=2, decoding=3), 2, 0, told=True)
    first, second = gateway.snapshot(0).replicas
    assert (first.pending_prefill_tokens, first.prefilling, first.decoding) == (9_000, 2, 3)
    assert (second.pending_prefill_tokens, second.prefilling, second.decoding) == (0, 0, 0)
    assert gateway.own_use().replicas["r0"] == ReplicaUse(stages={"kv": StageUse()})  # theirs are not told back


def test_uses_of_several_gateways_add_up() -> None:
    both = summed([booked(3, prefilling=1), FleetUse(replicas=booked(4, 2).replicas, short_age_ns=7)])
    assert both == FleetUse(
        replicas={"r0": ReplicaUse(stages={"kv": StageUse(blocks=7, requests=3)}, prefilling=1)}, short_age_ns=7
    )
    assert summed([]) == FleetUse()


def test_changes_rise_whenever_bookings_do() -> None:
    gateway = controller_of(replica_rule(capacity_blocks=1_000))
    known, use = gateway.changes, gateway.own_use()
    for step in (
        lambda: gateway.on_arrival(arrival("a", 100, 50), 0),
        lambda: gateway.on_first_token("a", S),
        lambda: gateway.on_finish("a", DONE, 2 * S),
    ):
        step()
        assert gateway.changes > known
        assert gateway.own_use() != use
        known, use = gateway.changes, gateway.own_use()


def test_gateways_that_book_at_once_exceed_a_stage_by_no_more_than_stated() -> None:
    """Three gateways, told of each other in random order and late: beyond capacity there is at most, of each other
    gateway, a share of what was free, or one request."""
    chance, capacity, longest = random.Random(RUN_SEED), 2_000, 300
    gateways = [controller_of(replica_rule(capacity_blocks=capacity)) for _ in range(3)]
    told = [FleetUse() for _ in gateways]
    running: list[list[str]] = [[] for _ in gateways]
    for gateway in gateways:
        gateway.on_peers(FleetUse(), 3, 0, told=True)
    worst, most = -capacity, max(longest, capacity // 3)
    for number in range(4_000):
        now_ns, at, what = number * S // 100, chance.randrange(3), chance.random()
        if what < 0.5:
            running[at].append(f"{at}-{number}")
            gateways[at].on_arrival(arrival(running[at][-1], chance.randint(1, longest)), now_ns)
        elif what < 0.75 and running[at]:
            gateways[at].on_finish(running[at].pop(chance.randrange(len(running[at]))), DONE, now_ns)
        elif what < 0.9:
            told[at] = gateways[at].own_use()
            gateways[at].on_peers(summed(told[other] for other in range(3) if other != at), 3, now_ns, told=True)
        held = sum(gateway.own_use().replicas["r0"].stages["kv"].blocks for gateway in gateways)
        worst = max(worst, held - capacity)
    print("worst", worst)
    assert 0 < worst <= 2 * most  # it does happen, and stays within the bound


def views_asked(controller: Controller, wanted: Arrival, now_ns: int) -> str | None:
    """Where a gateway would send it; nothing is changed by asking."""
    replicas = list(controller._replicas.values())
    for replica in replicas:
        replica.find_room(wanted.id, wanted.input_tokens, wanted.input_tokens, wanted.blocks, now_ns)
    return controller._router.choose(wanted, replicas, now_ns).replica


def test_two_gateways_on_one_event_stream_choose_alike() -> None:
    """Conversations over four replicas, each turn through one of two gateways by chance; every turn asks both first."""
    chance = random.Random(RUN_SEED)
    rules = tuple(
        replica_rule(f"r{n}", capacity_blocks=20_000, block_tokens=16, tokens_per_s=100_000) for n in range(4)
    )
    pair: list[Controller] = []
    for _ in range(2):
        router = PrefixRouter()
        for rule in rules:
            router.follow(rule.name, block_tokens=16, cache_blocks=20_000, events=True)
        pair.append(Controller(ControllerConfig(replicas=rules), router))
    told, now_ns, same, asked = [FleetUse(), FleetUse()], 0, 0, 0
    talks = [[hash((seed, n)) % 2**64 for n in range(40)] for seed in range(24)]
    for number in range(500):
        now_ns += S // 50
        talk = chance.choice(talks)
        talk.append(chance.randrange(2**64))
        wanted = arrival(f"q{number}", 16 * len(talk) + 3, 20, blocks=tuple(talk))
        one, two = (views_asked(controller, wanted, now_ns) for controller in pair)
        asked, same = asked + 1, same + (one == two)
        at = chance.randrange(2)
        sent = pair[at].on_arrival(wanted, now_ns)
        assert isinstance(sent, Dispatch)
        told[at] = pair[at]._router.with_work(pair[at].own_use(), now_ns)  # pyright: ignore[reportAttributeAccessIssue]
        pair[1 - at].on_peers(told[at], 2, now_ns, told=False)
        pair[at].on_first_token(wanted.id, now_ns + S // 100)
        for controller in pair:  # one engine tells both
            controller.on_kv_event(sent.replica, KvStored(blocks=tuple(talk)), now_ns + S // 100)
        pair[at].on_finish(wanted.id, DONE, now_ns + S // 60)
        told[at] = pair[at]._router.with_work(pair[at].own_use(), now_ns)  # pyright: ignore[reportAttributeAccessIssue]
        pair[1 - at].on_peers(told[at], 2, now_ns + S // 60, told=False)
    assert same >= 0.95 * asked, f"{same} of {asked}"
