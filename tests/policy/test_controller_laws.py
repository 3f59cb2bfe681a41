"""Conservation: whatever happens in whatever order, every request ends once and every account comes back to zero."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from longproof.domain.events import EngineSample
from longproof.domain.fleet import ReplicaState
from longproof.domain.kv_event import KvCleared, KvGap, KvRemoved, KvStored
from longproof.policy.actions import Decision, Dispatch, Refusal, Wait
from longproof.policy.admission import INCREMENTAL, MEASURED, UPFRONT
from longproof.policy.arrivals import Ended, EndKind
from longproof.policy.controller import Controller
from longproof.policy.controller_config import (
    BreakerRule,
    ControllerConfig,
    KvBudget,
    QueueRule,
    SloRule,
    TenantRule,
    WatermarkRule,
)
from longproof.policy.decision_record import DecisionRecord, Recorded, replay
from longproof.policy.routing import PrefixRouter
from longproof.testing.controllers import arrival, replica_rule

S = 1_000_000_000
NAMES = ("r0", "r1", "r2")


def controller_of(config: ControllerConfig) -> Controller:
    router = PrefixRouter()
    for rule_ in config.replicas:
        router.follow(rule_.name, block_tokens=4, cache_blocks=25, events=False)
    return Controller(config, router)


def chain(tokens: list[int]) -> tuple[int, ...]:
    return tuple(hash(tuple(tokens[: i + 1])) & (2**64 - 1) for i in range(len(tokens)))


class Gateway(RuleBasedStateMachine):
    """A fleet of three, two models, three tenants, and everything that can happen to them."""

    @initialize(
        reservation=st.sampled_from([UPFRONT, INCREMENTAL, MEASURED]),
        window=st.sampled_from([None, 40]),
        slots=st.sampled_from([None, 2]),
        slo=st.sampled_from([None, 2 * S]),
        itl=st.sampled_from([None, 20_000_000]),
    )
    def start(self, reservation, window, slots, slo, itl) -> None:  # type: ignore[no-untyped-def]
        rules = tuple(
            replica_rule(
                name,
                capacity_blocks=25,
                block_tokens=4,
                limit_tokens=90,
                reservation=reservation,
                models=("m", "other") if name != "r2" else ("other",),
                prefill_window_tokens=window,
                slots=slots,
                learn_prefill=name == "r1",
            )
            for name in NAMES
        )
        self.config = ControllerConfig(
            replicas=rules,
            watermark=WatermarkRule(stop=0.9, resume=0.6),
            queue=QueueRule(age_bound_ns=3 * S, longest_wait_ns=20 * S, most_waiting=12, count_from_tokens=8),
            slo=SloRule(ttft_ns=slo, itl_ns=itl),
            breaker=BreakerRule(failures=2),
            tenants=(
                TenantRule(name="capped", most_running=1, most_waiting=3, weight=2.0),
                TenantRule(name="budget", budget=KvBudget(token_seconds_per_s=20, burst_token_seconds=100)),
            ),
        )
        self.records: list[DecisionRecord] = []
        self.controller = controller_of(self.config)
        self.gateway = Recorded(self.controller, self.records.append)
        self.now = 0
        self.number = 0
        self.live: dict[str, str] = {}  # id → waiting, counting or the replica it was sent to
        self.uncounted: dict[str, int] = {}
        self.ended: set[str] = set()
        self.answered: set[str] = set()  # a token of theirs was seen, so nobody refuses them any more
        self.may_send: set[str] = set()
        self.not_before = dict.fromkeys(NAMES, 0)
        self.up = dict.fromkeys(NAMES, True)
        self.ends = self.sent = self.sent_back = 0
        self.told = (self.controller.own_use().replicas, self.controller.changes[0])

    # ── what comes back is held against what may come back ──

    def take(self, decisions) -> None:  # type: ignore[no-untyped-def]
        for decision in decisions:
            self.one(decision)

    def one(self, decision: Decision) -> None:
        assert decision.id in self.live, "an action for a request that is not there"
        if isinstance(decision, Dispatch):
            assert decision.id in self.may_send, "sent twice without a refusal between"
            assert decision.id not in self.uncounted
            assert self.up[decision.replica]
            assert self.now >= self.not_before[decision.replica]
            self.may_send.discard(decision.id)
            self.live[decision.id] = decision.replica
            self.sent += 1
        elif isinstance(decision, Refusal):
            assert self.live[decision.id] in ("new", "waiting"), "refused although it was sent"
            assert (decision.retry_after_ns is not None) == (decision.status in (429, 503))
            if decision.retry_after_ns is not None:
                assert decision.retry_after_ns >= S
                assert decision.retry_after_ns % S == 0
            assert decision.reason
            self.gone(decision.id)
        else:
            assert isinstance(decision, Wait)
            self.live[decision.id] = "waiting"

    def gone(self, request: str) -> None:
        assert request not in self.ended, "ended twice"
        self.ended.add(request)
        self.live.pop(request, None)
        self.uncounted.pop(request, None)
        self.may_send.discard(request)

    def pick(self, number: int, *, sent: bool) -> str | None:
        found = [r for r, where in self.live.items() if (where in NAMES) == sent]
        return found[number % len(found)] if found else None

    # ── what happens ──

    @rule(
        tokens=st.integers(0, 95),
        output=st.integers(0, 30),
        exact=st.booleans(),
        tenant=st.sampled_from(["t", "capped", "budget"]),
        model=st.sampled_from(["m", "other", "unknown"]),
        names=st.lists(st.integers(0, 1), max_size=8),
        priority=st.integers(0, 1),
        deadline=st.one_of(st.none(), st.integers(1, 8)),
        streamed=st.booleans(),
    )
    def arrive(self, tokens, output, exact, tenant, model, names, priority, deadline, streamed) -> None:  # type: ignore[no-untyped-def]
        self.number += 1
        request = f"q{self.number}"
        self.live[request] = "new"
        self.may_send.add(request)
        told = arrival(
            request,
            tokens,
            output,
            tenant=tenant,
            model=model,
            exact=exact,
            blocks=chain(names[: tokens // 4]) if exact else (),
            priority=priority,
            deadline_ns=None if deadline is None else self.now + deadline * S,
            streamed=streamed,
        )
        if not exact and tokens >= 8:
            self.uncounted[request] = tokens
        decision = self.gateway.on_arrival(told, self.now)
        if isinstance(decision, Wait):
            assert decision.count == (request in self.uncounted)
        self.one(decision)

    @precondition(lambda self: self.uncounted)
    @rule(number=st.integers(0, 99), share=st.floats(0, 1), names=st.lists(st.integers(0, 1), max_size=8))
    def count(self, number: int, share: float, names: list[int]) -> None:
        request = list(self.uncounted)[number % len(self.uncounted)]
        tokens = int(self.uncounted.pop(request) * share)
        self.take(self.gateway.on_counted(request, tokens, chain(names[: tokens // 4]), self.now))

    @rule(number=st.integers(0, 99))
    def first_token(self, number: int) -> None:
        request = self.pick(number, sent=True)
        if request is not None:
            self.answered.add(request)
            self.take(self.gateway.on_first_token(request, self.now))

    @rule(number=st.integers(0, 99), tokens=st.integers(1, 40))
    def output(self, number: int, tokens: int) -> None:
        request = self.pick(number, sent=True)
        if request is not None:
            self.answered.add(request)
            self.take(self.gateway.on_output(request, tokens, self.now))

    @rule(number=st.integers(0, 99), after=st.one_of(st.none(), st.sampled_from([0, S // 2, 7 * S])))
    def engine_refuses(self, number: int, after: int | None) -> None:
        request = self.pick(number, sent=True)
        if request is None or request in self.answered:
            return
        replica = self.live[request]
        self.not_before[replica] = max(self.not_before[replica], self.now + (S if after is None else after))
        self.live[request] = "waiting"
        self.may_send.add(request)
        self.sent_back += 1
        self.take(self.gateway.on_refused_by_engine(request, after, self.now))

    @rule(number=st.integers(0, 99), kind=st.sampled_from(list(EndKind)), output=st.integers(0, 30))
    def finish(self, number: int, kind: EndKind, output: int) -> None:
        request = self.pick(number, sent=True)
        if request is None:
            return
        self.gone(request)
        self.ends += 1
        end = Ended(kind=kind, output_tokens=output, cached_tokens=None if output % 2 else 0)
        self.take(self.gateway.on_finish(request, end, self.now))
        assert self.gateway.on_finish(request, end, self.now) == []
        assert self.gateway.on_output(request, 99, self.now) == []

    @rule(number=st.integers(0, 99))
    def client_leaves(self, number: int) -> None:
        request = self.pick(number, sent=number % 2 == 0)
        if request is not None:
            self.gone(request)
            self.ends += 1
            self.take(self.gateway.cancel(request, self.now))

    @rule(name=st.sampled_from(NAMES), state=st.sampled_from(list(ReplicaState)), seconds=st.integers(0, 5))
    def replica(self, name: str, state: ReplicaState, seconds: int) -> None:
        until = self.now + seconds * S if state is ReplicaState.BROKEN else None
        self.up[name] = state in (ReplicaState.UP, ReplicaState.RESTARTED, ReplicaState.BROKEN)
        if state is ReplicaState.RESTARTED:
            self.not_before[name] = 0
        if until is not None:
            self.not_before[name] = max(self.not_before[name], until)
        self.take(self.gateway.on_replica(name, state, self.now, until_ns=until))

    @rule(
        name=st.sampled_from(NAMES),
        usage=st.one_of(st.none(), st.floats(0, 1), st.floats(-1, 9)),
        running=st.sampled_from([None, 0, 1, 50]),
        preempted=st.integers(0, 3),
        age=st.sampled_from([0, 1, 5 * S]),
    )
    def sample(self, name: str, usage: float | None, running: int | None, preempted: int, age: int) -> None:
        """Any figures, true or not: counters that fall, and samples that are older than those before."""
        values = {"vllm:num_preemptions_total": float(preempted)}
        at_ns = max(0, self.now - age)
        told = EngineSample(at_ns=at_ns, running=running, waiting=0, kv_usage=usage, values=values)
        self.take(self.gateway.on_sample(name, told, at_ns))

    @rule(name=st.sampled_from(NAMES), names=st.lists(st.integers(0, 1), max_size=6), what=st.integers(0, 3))
    def cache(self, name: str, names: list[int], what: int) -> None:
        blocks = chain(names)
        event = (KvStored(blocks=blocks), KvRemoved(blocks=blocks), KvCleared(), KvGap(reason="lost"))[what]
        self.gateway.on_kv_event(name, event, self.now)

    @precondition(lambda self: self.ended)
    @rule(number=st.integers(0, 99), known=st.booleans(), kind=st.sampled_from(list(EndKind)))
    def late(self, number: int, known: bool, kind: EndKind) -> None:
        """News of a request that has ended, or was never there, in whatever order: nothing comes of them."""
        request = sorted(self.ended)[number % len(self.ended)] if known else "never"
        before = self.controller.snapshot(self.now)
        end = Ended(kind=kind, output_tokens=7, cached_tokens=3)
        for actions in (
            self.gateway.on_refused_by_engine(request, S, self.now),
            self.gateway.on_first_token(request, self.now),
            self.gateway.on_output(request, 9, self.now),
            self.gateway.on_counted(request, 5, (1, 2), self.now),
            self.gateway.on_finish(request, end, self.now),
            self.gateway.cancel(request, self.now),
        ):
            assert actions == []
        assert self.gateway.kv_token_ms(request, self.now) is None
        assert self.controller.snapshot(self.now) == before

    @rule(number=st.integers(0, 99))
    def early(self, number: int) -> None:
        """News from an engine of a request that none has: nothing comes of them."""
        request = self.pick(number, sent=False)
        if request is None:
            return
        before = self.controller.snapshot(self.now)
        assert self.gateway.on_refused_by_engine(request, S, self.now) == []
        assert self.gateway.on_first_token(request, self.now) == []
        assert self.gateway.on_output(request, 9, self.now) == []
        assert self.controller.snapshot(self.now) == before

    @rule(number=st.integers(0, 99), back=st.sampled_from([1, S, 60 * S]))
    def clock_falls_back(self, number: int, back: int) -> None:
        """A time before the last one is the last one: nobody's deadline, back-off or bill moves by it."""
        then, request = max(0, self.now - back), self.pick(number, sent=True)
        self.take(self.gateway.on_tick(then))
        if request is not None:
            self.gone(request)
            self.ends += 1
            self.take(self.gateway.on_finish(request, Ended(kind=EndKind.COMPLETED, output_tokens=1), then))

    @precondition(lambda self: self.live)
    @rule(name=st.sampled_from(NAMES), number=st.integers(0, 99))
    def restarts_under_them(self, name: str, number: int) -> None:
        """A crash, twice; then its requests end, or go on being told of, as if it had not been noticed."""
        self.up[name], self.not_before[name] = True, 0
        self.take(self.gateway.on_replica(name, ReplicaState.RESTARTED, self.now))
        self.take(self.gateway.on_replica(name, ReplicaState.RESTARTED, self.now))
        there = [request for request, where in self.live.items() if where == name]
        if there:
            request = there[number % len(there)]
            self.answered.add(request)
            self.take(self.gateway.on_first_token(request, self.now))
            self.take(self.gateway.on_output(request, 30, self.now))
            self.gone(request)
            self.ends += 1
            self.take(self.gateway.on_finish(request, Ended(kind=EndKind.FAILED), self.now))

    @rule(ms=st.sampled_from([0, 1, 50, 900, 4_000, 21_000]))
    def time_passes(self, ms: int) -> None:
        self.now += ms * 1_000_000
        self.take(self.gateway.on_tick(self.now))

    # ── what always holds ──

    @invariant()
    def accounts_agree(self) -> None:
        if not hasattr(self, "controller"):
            return
        seen = self.controller.snapshot(self.now)
        live = self.controller._requests
        assert set(live) == set(self.live)
        for replica in seen.replicas:
            kept = self.controller._replicas[replica.name]
            there = [r for r in live.values() if r.replica == replica.name]
            assert set(kept.ledger.requests()) == {r.arrival.id for r in there}
            assert replica.decoding == sum(r.phase.name == "DECODING" for r in there)
            assert replica.prefilling == len(there) - replica.decoding
            assert replica.pending_prefill_tokens == sum(r.booked_tokens for r in there if r.phase.name != "DECODING")
            assert kept.pending_prefill_ns == sum(r.prefill_ns for r in there if r.phase.name != "DECODING")
            for stage in replica.stages:
                assert stage.held_blocks + stage.free_blocks == stage.capacity_blocks
                assert stage.free_blocks >= 0
                assert stage.held_blocks == stage.private_blocks + stage.shared_blocks + stage.foreign_blocks
                assert stage.requests == len(there)
                assert stage.used_blocks is not None
                assert stage.used_blocks <= stage.held_blocks - stage.foreign_blocks
        for group in self.controller._group_list:
            mine = [r.phase.name for r in live.values() if self.controller._groups[r.arrival.model] is group]
            assert (group.counting, len(group.queue)) == (mine.count("COUNTING"), mine.count("WAITING"))
        for request in live.values():
            assert (request.sent_to is not None) == request.on_engine
            assert request.replica is not None or request.held_tokens == 0
        for tenant in seen.tenants:
            mine = [r for r in live.values() if r.arrival.tenant == tenant.name]
            assert self.controller._tenants.of(tenant.name).here == len(mine)
            assert tenant.running == sum(r.replica is not None for r in mine)
            assert tenant.waiting == sum(r.phase.name == "WAITING" for r in mine)
            assert tenant.held_tokens == sum(r.held_tokens for r in mine)
        total = seen.counters
        assert total.arrived == self.number
        assert (total.dispatched, total.engine_refusals) == (self.sent, self.sent_back)
        assert total.completed + total.cancelled + total.failed + total.rejected == self.ends
        assert total.arrived == self.ends + total.refused + len(live)
        assert sum(count for _, count in total.refused_by_code) == total.refused
        assert seen.waiting_count + seen.counting_count + seen.running_count == len(live)

    @invariant()
    def what_is_booked_never_changes_unnoticed(self) -> None:
        """Other gateways are told of it when `changes` has risen."""
        if not hasattr(self, "controller"):
            return
        before, self.told = self.told, (self.controller.own_use().replicas, self.controller.changes[0])
        assert self.told[0] == before[0] or self.told[1] > before[1]

    def teardown(self) -> None:
        if not hasattr(self, "controller"):
            return
        for request in list(self.live):
            if request in self.live:
                self.gone(request)
                self.ends += 1
                self.take(self.gateway.cancel(request, self.now))
        seen = self.controller.snapshot(self.now)
        for replica in seen.replicas:
            assert all(stage.held_blocks == stage.foreign_blocks for stage in replica.stages)
            assert (replica.prefilling, replica.decoding, replica.pending_prefill_tokens) == (0, 0, 0)
            assert replica.emptying_for is None
        assert all((t.running, t.waiting, t.held_tokens) == (0, 0, 0) for t in seen.tenants)
        assert all(t._expected == t._used == 0 for t in self.controller._tenants.all().values())
        assert list(replay(self.records, controller_of(self.config))) == []


TestGateway = Gateway.TestCase
TestGateway.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
