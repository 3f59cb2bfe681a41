"""The order of waiting: by size while fresh, by age once late, between tenants by service."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from longproof.policy.controller_config import QueueRule, TenantRule
from longproof.policy.queue import FairQueue, Ticket
from longproof.policy.tenants import Tenant

S = 1_000_000_000
RULE = QueueRule(age_bound_ns=30 * S, overdue_share=0.5)


class Waiting:
    """A queue and tickets that are numbered as they come."""

    def __init__(self, rule: QueueRule = RULE) -> None:
        self.queue = FairQueue(rule)
        self.number = 0

    def add(
        self, name: str, tenant: Tenant, work_ns: int, at_ns: int = 0, priority: int = 0, tokens: int = 0
    ) -> Ticket:
        self.number += 1
        ticket = Ticket(name, tenant, priority, work_ns, at_ns, self.number, tokens)
        self.queue.add(ticket)
        return ticket

    def fresh(self) -> list[str]:
        return [ticket.id for ticket in self.queue.fresh()]

    def late(self) -> list[str]:
        return [ticket.id for ticket in self.queue.late()]

    def take(self, ticket: Ticket) -> None:
        self.queue.served(ticket)
        self.queue.remove(ticket)


def tenant(weight: float = 1.0, virtual_ns: float = 0.0) -> Tenant:
    return Tenant(TenantRule(name="", weight=weight), virtual_ns=virtual_ns)


def finish(ticket: Ticket) -> float:
    """When it would be done, by its tenant's share of service."""
    return ticket.tenant.virtual_ns + ticket.work_ns / ticket.tenant.rule.weight


def test_the_least_work_goes_first_when_all_are_fresh() -> None:
    waiting, one = Waiting(), tenant()
    waiting.add("giant", one, 60 * S)
    waiting.add("short", one, S)
    waiting.add("middle", one, 5 * S)
    assert waiting.fresh() == ["short", "middle", "giant"]


def test_a_smaller_priority_goes_first_when_it_is_larger_work() -> None:
    waiting, one = Waiting(), tenant()
    waiting.add("later", one, S, priority=1)
    waiting.add("first", one, 60 * S, priority=0)
    assert waiting.fresh() == ["first", "later"]


def test_age_counts_and_size_no_longer_when_the_bound_is_passed() -> None:
    waiting, one = Waiting(), tenant()
    waiting.add("giant", one, 60 * S, at_ns=0)
    waiting.add("low", one, S, at_ns=1, priority=9)
    waiting.add("young", one, S, at_ns=20 * S)
    waiting.queue.promote(30 * S + 1)
    assert (waiting.late(), waiting.fresh()) == (["giant", "low"], ["young"])
    assert waiting.queue.late_turn


def test_the_late_get_their_share_and_no_more_when_others_wait() -> None:
    waiting, one = Waiting(), tenant()
    first = waiting.add("giant 1", one, 60 * S)
    waiting.add("giant 2", one, 60 * S)
    shorts = [waiting.add(f"short {i}", one, 10 * S, at_ns=29 * S) for i in range(9)]
    waiting.queue.promote(31 * S)
    assert waiting.queue.late_turn
    waiting.take(first)
    served = 0
    while not waiting.queue.late_turn:
        waiting.take(shorts[served])
        served += 1
    assert served == 6  # 6 · 10 s of shorts after 60 s of a giant: half each


def test_the_late_go_on_when_nobody_else_waits() -> None:
    waiting, one = Waiting(), tenant()
    giants = [waiting.add(f"giant {i}", one, 60 * S) for i in range(3)]
    waiting.queue.promote(30 * S)
    for giant in giants:
        assert waiting.queue.late_turn
        waiting.take(giant)
    assert not waiting.queue.late_turn


def test_a_flood_delays_its_own_tenant_when_another_asks_for_little() -> None:
    waiting, flood, modest = Waiting(), tenant(), tenant()
    for i in range(100):
        waiting.add(f"flood {i}", flood, S)
    flood.serve(10 * S)  # it has had ten seconds already
    waiting.add("modest", modest, 2 * S)
    assert waiting.fresh()[0] == "modest"  # 0 + 2 s against 10 s + 1 s


def test_a_larger_weight_gets_more_when_both_wait() -> None:
    waiting, heavy, light = Waiting(), tenant(weight=3.0), tenant()
    tickets = {}
    for name, who in (("h", heavy), ("l", light)):
        for i in range(40):
            ticket = waiting.add(f"{name}{i}", who, S)
            tickets[ticket.id] = ticket
    taken: list[str] = []
    for _ in range(40):
        ticket = tickets[waiting.fresh()[0]]
        ticket.tenant.serve(ticket.work_ns)
        waiting.take(ticket)
        taken.append(ticket.id[0])
    assert abs(taken.count("h") - 30) <= 1  # three in four


def test_a_tenant_that_runs_all_it_may_is_passed_by_in_every_order() -> None:
    waiting, one = Waiting(), tenant()
    capped = Tenant(TenantRule(name="", most_running=1), running=1)
    for number in range(20):
        waiting.add(f"c{number}", capped, 1)
    waiting.add("mine", one, S)
    assert waiting.fresh() == ["mine"]
    waiting.queue.promote(30 * S)
    assert waiting.late() == ["mine"] == [ticket.id for ticket in waiting.queue.late_small()]
    capped.running = 0
    assert len(waiting.late()) == 21


def test_the_small_among_the_late_are_known_when_the_first_of_them_fit_nowhere() -> None:
    waiting, one = Waiting(), tenant()
    for number, work in enumerate((60, 50, 2, 40, 1)):
        waiting.add(f"a{number}", one, work * S)
    waiting.queue.promote(30 * S)
    assert waiting.late() == ["a0", "a1", "a2", "a3", "a4"]
    assert [ticket.id for ticket in waiting.queue.late_small()] == ["a4", "a2", "a3", "a1", "a0"]


def test_a_request_keeps_its_place_when_an_engine_sent_it_back() -> None:
    waiting, one = Waiting(), tenant()
    first = waiting.add("first", one, S, at_ns=0)
    waiting.queue.remove(first)
    waiting.add("second", one, S, at_ns=1)
    waiting.queue.add(first)
    waiting.queue.promote(30 * S + 5)
    assert waiting.late() == ["first", "second"]


def test_what_is_ahead_grows_with_those_that_are_no_larger() -> None:
    waiting, one = Waiting(), tenant()
    for _ in range(10):
        waiting.add("short", one, S, tokens=100)
    waiting.add("giant", one, 500 * S, tokens=50_000)
    ahead = waiting.queue.ahead_of(60 * S)
    assert (ahead.requests, ahead.work_ns, ahead.tokens, ahead.late_work_ns) == (10, 10 * S, 1_000, 0)
    assert waiting.queue.ahead_of(S).work_ns == 10 * S  # its equals came before it
    assert waiting.queue.ahead_of(S // 2).work_ns == 0


def test_the_late_are_ahead_with_their_share_when_there_are_many() -> None:
    waiting, one = Waiting(QueueRule(age_bound_ns=30 * S, overdue_share=0.25)), tenant()
    for _ in range(4):
        waiting.add("giant", one, 100 * S, tokens=1_000)
    waiting.queue.promote(30 * S)
    waiting.add("short", one, 5 * S, at_ns=30 * S, tokens=10)
    # 5 s before it and 7 s of its own are three quarters: 4 s of the late's 400 s and 40 of their 4,000 tokens
    ahead = waiting.queue.ahead_of(7 * S)
    assert (ahead.work_ns, ahead.late_work_ns, ahead.tokens) == (9 * S, 4 * S, 10 + 40)
    assert waiting.queue.ahead_of(3 * S).work_ns == S  # the 5 s are larger than it


@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["add", "remove", "promote", "take"]), st.integers(0, 40), st.integers(0, 3)),
        max_size=60,
    )
)
def test_everybody_stands_in_exactly_one_lane_after_any_history(steps: list[tuple[str, int, int]]) -> None:
    waiting, tenants = Waiting(QueueRule(age_bound_ns=10)), [tenant(), tenant(2.0), tenant(0.5, 9.0), tenant()]
    here: list[Ticket] = []
    now = 0
    for what, number, who in steps:
        now += number % 7
        if what == "add":
            here.append(waiting.add(f"r{len(here)}", tenants[who], number * 3, at_ns=now, priority=who % 2))
        elif what == "promote":
            waiting.queue.promote(now)
        elif here:
            ticket = here[number % len(here)]
            here.remove(ticket)
            (waiting.take if what == "take" else waiting.queue.remove)(ticket)
            waiting.queue.remove(ticket)  # a second time changes nothing
        fresh = list(waiting.queue.fresh())
        assert fresh == sorted(fresh, key=lambda t: (t.priority, finish(t), t.number))
        assert len(waiting.queue._lines) == len({id(ticket.tenant) for ticket in here})
        found = [ticket.number for ticket in [*fresh, *waiting.queue.late()]]
        assert sorted(found) == sorted(ticket.number for ticket in here)
        assert {t.number for t in waiting.queue.late_small()} == {t.number for t in waiting.queue.late()}
        assert len(waiting.queue) == len(here)
        assert [t.number for t in waiting.queue.in_order_of_arrival()] == sorted(t.number for t in here)
        everything = waiting.queue.ahead_of(1 << 62)
        assert everything.late_work_ns == sum(t.work_ns for t in here if t.late)
        assert everything.work_ns == sum(t.work_ns for t in here)
        assert everything.requests == len(here)
