"""One replica as the controller keeps it: its books, its backlog, and whether it may be asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from longproof.domain.engine_metrics import preempted
from longproof.domain.events import EngineSample
from longproof.domain.fleet import PrefillSource, ReplicaState
from longproof.policy.admission import longest_total_tokens, shortage_blocks, shortages
from longproof.policy.breaker import Breaker
from longproof.policy.controller_config import ControllerConfig, ReplicaRule
from longproof.policy.decode_pace import DecodePace
from longproof.policy.drain import Drain
from longproof.policy.engine_figures import EngineFigures
from longproof.policy.ledger import Ledger, PoolState
from longproof.policy.peers import NOTHING, ReplicaUse
from longproof.policy.prefill_cost import PrefillCost
from longproof.policy.prefill_pace import PrefillPace, Stretch
from longproof.policy.prefill_turns import PrefillTurns, SeenPrefill
from longproof.policy.stream_bound import StreamBound
from longproof.policy.watermark import Caution, marked

_LEAST_SHARE = 0.01


class Replica:
    """Mutable; satisfies `policy.choice.ReplicaView`."""

    def __init__(self, rule: ReplicaRule, config: ControllerConfig) -> None:
        self.rule = rule
        self.name = rule.name
        self.pool = rule.pool
        self.block_tokens = rule.block_tokens
        self.prefill: PrefillCost = rule.prefill
        self._pace = PrefillPace(rule.prefill) if rule.learn_prefill else None
        self.decode_ns_per_token = rule.decode_ns_per_token
        self._decode_pace = DecodePace(rule.decode_ns_per_token) if rule.learn_decode else None
        pools = tuple(marked(replace(pool, replica=rule.name), config.watermark) for pool in rule.pools)
        self.ledger = Ledger.of(pools, block_tokens=rule.block_tokens)
        self._prefill_pools = tuple(pool.name for pool in pools if pool.stage in rule.prefill_stages)
        self._pool_names = tuple(pool.name for pool in pools)
        self._paired = 0 < len(self._prefill_pools) < len(pools)
        whole, *inputs = (longest_total_tokens(states, rule.admission) for states, _ in self.parts())
        self.longest_tokens = whole
        self._longest_input = inputs[0] if inputs else None
        self.state = ReplicaState.UP
        self.not_before_ns = 0
        self.refused_busy = False
        self._own_pending_tokens = 0
        self._own_pending_ns = 0
        self.busy_until_ns = 0
        self.prefill_seen: SeenPrefill | None = None
        self.turns = PrefillTurns()
        self._own_prefilling = 0
        self._own_decoding = 0
        self.peers = NOTHING
        self.room_in_ns: int | None = 0
        self.exclusive = False
        self.emptying_for: str | None = None
        self.emptying_since_ns = 0
        self.alone_for: str | None = None
        self.shared_until_ns = 0
        self._alone_since_ns = 0
        self.drain = Drain()
        self.caution = Caution()
        self._figures = EngineFigures(one_stage=sum(pool.need.grows for pool in pools) == 1, paired=self._paired)
        self.preemptions = 0
        self._breaker = Breaker(config.breaker)
        tpot_ns = config.slo.tpot_ns
        self.streams = None if tpot_ns is None else StreamBound(tpot_ns, rule.decode_ns_per_token)

    # ── may it be asked? ──────────────────────────────────────────────────────────────────────────────────────────

    def takes_new(self, now_ns: int) -> bool:
        """Whether anything may be sent there now."""
        return self.state is ReplicaState.UP and now_ns >= self.not_before_ns

    def parts(self) -> tuple[tuple[Sequence[PoolState], bool], ...]:
        """The stages that hold a whole request, and then those that hold its input alone."""
        states = self.ledger.states()
        if not self._paired:
            return ((states, True),)
        first = [state for state in states if state.pool.name in self._prefill_pools]
        return ((tuple(state for state in states if state not in first), True), (first, False))

    def could_hold(self, input_tokens: int, output_tokens: int) -> bool:
        """Whether a request of this length is within its limit and capacity; a prefill stage holds the input alone."""
        if self._longest_input is not None and input_tokens > self._longest_input:
            return False
        return self.longest_tokens is None or input_tokens + output_tokens <= self.longest_tokens

    def leave_alone(self, until_ns: int) -> None:
        """Send nothing before then."""
        self.not_before_ns = max(self.not_before_ns, until_ns)

    def failed(self, sent_ns: int, now_ns: int) -> None:
        """A request that was sent then broke there; see `policy.breaker`."""
        pause_ns = self._breaker.failed(sent_ns, now_ns)
        if pause_ns is not None:
            self.leave_alone(now_ns + pause_ns)

    def refused(self, retry_after_ns: int, now_ns: int) -> None:
        """Its engine is busy and has asked to be left alone so long."""
        self.refused_busy = True
        self.leave_alone(now_ns + retry_after_ns)

    def worked(self) -> None:
        """It produced something."""
        self._breaker.worked()
        self.refused_busy = False

    # ── what is on its way there, from here and from other gateways ───────────────────────────────────────────────

    @property
    def pending_prefill_tokens(self) -> int:
        """Uncached input sent there whose first token has not come."""
        return self._own_pending_tokens + self.peers.pending_prefill_tokens

    @property
    def pending_prefill_ns(self) -> int:
        """What that takes."""
        return self._own_pending_ns + self.peers.pending_prefill_ns

    @property
    def prefilling(self) -> int:
        """Requests whose first token has not come."""
        return self._own_prefilling + self.peers.prefilling

    @property
    def decoding(self) -> int:
        """Requests whose first token has."""
        return self._own_decoding + self.peers.decoding

    def use(self) -> ReplicaUse:
        """What is booked here, for other gateways."""
        return ReplicaUse(
            stages=self.ledger.use(),
            pending_prefill_tokens=self._own_pending_tokens,
            pending_prefill_ns=self._own_pending_ns,
            prefilling=self._own_prefilling,
            decoding=self._own_decoding,
        )

    def peers_told(self, use: ReplicaUse, gateways: int, *, told: bool) -> None:
        """What is booked elsewhere; `told`: they know what is booked here."""
        self.peers = use
        self.ledger.set_peers(use.stages, gateways, told=told)

    # ── what fits? ────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def held_blocks(self) -> int:
        """Held blocks of the fullest stage."""
        return self._fullest[0]

    @property
    def capacity_blocks(self) -> int:
        """Capacity of the fullest stage."""
        return self._fullest[1]

    @property
    def _fullest(self) -> tuple[int, int]:
        states = self.ledger.states()
        state = (
            states[0] if len(states) == 1 else max(states, key=lambda s: s.held_blocks / max(1, s.pool.capacity_blocks))
        )
        return state.held_blocks, state.pool.capacity_blocks

    @property
    def window_open(self) -> bool:
        """Whether another prefill may begin."""
        window = self.rule.prefill_window_tokens
        return window is None or self.pending_prefill_tokens < window

    @property
    def crowded(self) -> bool:
        """Whether one more stream would make all of them miss their time per token."""
        return self.streams is not None and self.decoding + self.prefilling >= self.streams.most

    @property
    def open(self) -> bool:
        """Whether anything at all could be let in now; cheap, to be asked before a request is looked at."""
        if not self.window_open or self.alone_for is not None or self.crowded:
            return False
        return all(s.requests == 0 or s.admissible_blocks > 0 for s in self.ledger.states())

    def find_room(
        self, request_id: str, input_tokens: int, entry_tokens: int, names: Sequence[int], now_ns: int
    ) -> None:
        """Set `room_in_ns` and `exclusive` for one request."""
        self.exclusive = self.alone_for is not None or self.emptying_for not in (None, request_id)
        if self.exclusive:
            self.room_in_ns = None
            return
        shared = self.ledger.found_blocks(names) if names else None
        states = self.ledger.states()
        wait = 0
        if self._lacks(input_tokens, entry_tokens, shared):
            guess_ns = self.stay_guess_ns(input_tokens, entry_tokens - input_tokens)
            short = self._shortages(input_tokens, entry_tokens, shared)
            held = [state.held_blocks for state in states]
            wait = max(1, *(self.drain.wait_ns(s, h, now_ns, guess_ns) for s, h in zip(short, held, strict=True)))
        if not self.window_open:
            wait = max(wait, 1, self.busy_until_ns - now_ns)
        if self.crowded:
            guess_ns = self.stay_guess_ns(input_tokens, entry_tokens - input_tokens)
            wait = max(wait, 1, self.drain.wait_ns(1, self.decoding + self.prefilling, now_ns, guess_ns))
        if not wait and self.ledger.must_tell(entry_tokens, shared):
            wait = 1  # the other gateways know in a moment
        self.room_in_ns = wait

    def _lacks(self, input_tokens: int, entry_tokens: int, shared: Mapping[str, int] | None) -> bool:
        if not self._paired:
            return shortage_blocks(entry_tokens, self.ledger.states(), shared) > 0
        return max(self._shortages(input_tokens, entry_tokens, shared)) > 0

    def _shortages(self, input_tokens: int, entry_tokens: int, shared: Mapping[str, int] | None) -> list[int]:
        """By stage, in the ledger's order: what it lacks for its part of the request."""
        states = self.ledger.states()
        if not self._paired:
            return shortages(entry_tokens, states, shared)
        tokens = [input_tokens if state.pool.name in self._prefill_pools else entry_tokens for state in states]
        return [shortages(part, (state,), shared)[0] for part, state in zip(tokens, states, strict=True)]

    def stay_guess_ns(self, input_tokens: int, output_tokens: int) -> int:
        """How long a request of that size stays, for a ledger that has not released anything yet."""
        return self.pending_prefill_ns + self.prefill.ns(input_tokens) + output_tokens * self.decode_ns_per_token

    def drain_tokens_per_s(self, now_ns: int, guess_ns: int) -> float:
        """How fast its ledger empties, in tokens of its first stage."""
        need = self.rule.pools[0].need
        blocks = self.drain.blocks_per_s(self.ledger.states()[0].held_blocks, now_ns, guess_ns)
        return blocks * need.block_tokens / max(1, need.full_groups)

    # ── the books ─────────────────────────────────────────────────────────────────────────────────────────────────

    def reserve(
        self, request_id: str, input_tokens: int, entry_tokens: int, names: Sequence[int], cached_tokens: int
    ) -> bool:
        """Take room at every stage; a prefill stage holds the input alone. False: there is none."""
        if self._prefill_pools:
            tokens = {n: input_tokens if n in self._prefill_pools else entry_tokens for n in self._pool_names}
        else:
            tokens = dict.fromkeys(self._pool_names, entry_tokens)
        return self.ledger.reserve(request_id, tokens, names, cached_tokens // self.block_tokens) is None

    def grow(self, request_id: str, tokens: int) -> bool:
        """Its output has outgrown what was charged. False: there is no room, and the engine will have to preempt."""
        holds = self.ledger.holds(request_id)
        wanted = {name: tokens for name in holds if name not in self._prefill_pools}
        return self.ledger.grow(request_id, wanted) is None

    def correct(self, request_id: str, input_tokens: int, entry_tokens: int) -> bool:
        """Its true length became known while it runs. False: it is longer than was charged and there is no room."""
        holds = self.ledger.holds(request_id)
        tokens = {name: input_tokens if name in self._prefill_pools else entry_tokens for name in holds}
        return self.ledger.correct(request_id, tokens) is None

    def release(self, request_id: str, since_ns: int, now_ns: int) -> None:
        """Give back all it held since then."""
        given = self.ledger.release(request_id)
        if given:
            self.drain.released(max(given.values()), now_ns - since_ns, now_ns)

    def begin_prefill(self, tokens: int, work_ns: int, now_ns: int) -> None:
        """A request was sent there."""
        self._own_prefilling += 1
        self._own_pending_tokens += tokens
        self._own_pending_ns += work_ns
        self.busy_until_ns = max(self.busy_until_ns, now_ns) + work_ns

    def end_prefill(self, tokens: int, work_ns: int, sent_ns: int | None, now_ns: int) -> None:
        """Its first token came, or it will not. `sent_ns` None: it never was sent."""
        if sent_ns is not None:
            self.turns.ended(sent_ns, now_ns)
        self._own_prefilling -= 1
        self._own_pending_tokens -= tokens
        self._own_pending_ns -= work_ns
        self.busy_until_ns = min(self.busy_until_ns, now_ns + self._own_pending_ns)

    def begin_answer(self) -> None:
        """A request streams from now on."""
        self._own_decoding += 1

    def end_answer(self, reported_ns: int = 0, foreseen_ns: float = 0.0) -> None:
        """It has ended: what was reported of it took so long, and was foreseen to."""
        self._own_decoding -= 1
        if self.streams is not None:
            self.streams.ended(reported_ns, foreseen_ns)

    def stand_alone(self, request_id: str, now_ns: int) -> None:
        """Its prefill is to run with nobody beside it: nothing else gets room meanwhile."""
        self.alone_for = request_id
        self._alone_since_ns = self.emptying_since_ns if self.emptying_for == request_id else now_ns

    def stand_no_longer_alone(self, request_id: str, share: float, now_ns: int) -> None:
        """Its first token came, or it is over. What others waited for it they have for themselves now, before they
        are made to wait again: so that such prefills take no more than `share` of the time."""
        if self.alone_for == request_id:
            self.alone_for = None
            took_ns = max(0, now_ns - self._alone_since_ns)
            self.shared_until_ns = now_ns + int(took_ns * (1 - share) / max(share, _LEAST_SHARE))

    def first_token(self, uncached_tokens: int, sent_ns: int, now_ns: int) -> Stretch | None:
        """The first token of a prefill was seen. Returns what it was counted in where the rate is learned."""
        self.worked()
        if self._pace is None:
            return None
        stretch = self._pace.first_token(uncached_tokens, sent_ns, now_ns)
        self.prefill = self._pace.cost
        return stretch

    def prefill_was(self, stretch: Stretch, more_tokens: int) -> None:
        """A prefill that was counted there had so many more tokens than was thought (less: negative)."""
        if self._pace is not None and more_tokens:
            self._pace.corrected(stretch, more_tokens)
            self.prefill = self._pace.cost

    @property
    def prefill_source(self) -> PrefillSource:
        """What `prefill` rests on."""
        return PrefillSource.GIVEN if self._pace is None else self._pace.source

    def decoded(self, tokens: int, took_ns: int) -> float:
        """One of its streams has so many more tokens, in that time. Returns what was foreseen where that is learned;
        of a long one that stands alone nothing is: its own length made it slow."""
        if self._decode_pace is not None:
            self._decode_pace.seen(tokens, took_ns)
            self.decode_ns_per_token = self._decode_pace.ns_per_token
        if self.streams is None or self.alone_for is not None:
            return 0.0
        foreseen_ns = tokens * self.streams.foreseen_ns(self.decoding)
        self.streams.reported(self.decoding, tokens, took_ns)
        return foreseen_ns

    def hand_over(self, request_id: str) -> None:
        """First token: the input is in the cache, and stages that only prefill are free again."""
        self.ledger.computed(request_id)
        for name in self._prefill_pools:
            self.ledger.release(request_id, name)

    # ── what the engine says ──────────────────────────────────────────────────────────────────────────────────────

    def sampled(self, sample: EngineSample, used_blocks: Mapping[str, int], now_ns: int) -> None:
        """Correct the books by the engine's own figures. `used_blocks`: by pool, what our requests use by now."""
        before = self.sample
        if before is not None:
            times = preempted(before, sample)
            if times:
                self.preemptions += times
                self.caution.preempted(times, now_ns)
        self.apply_caution(now_ns)
        self._figures.correct(self.ledger, sample, used_blocks)

    @property
    def sample(self) -> EngineSample | None:
        """The engine's last figures."""
        return self._figures.sample

    @property
    def usage(self) -> float | None:
        """The engine's last figure of what is in use; None where it has none, or counts what is only cached."""
        return self._figures.usage

    def apply_caution(self, now_ns: int) -> None:
        """Hold back what caution says by now."""
        share = self.caution.share(now_ns)
        for name, account in self.ledger.accounts.items():
            if not account.pool.need.grows:
                continue
            blocks = int(share * account.pool.capacity_blocks)
            if blocks != account.caution_blocks:
                self.ledger.set_caution(name, blocks)

    def drift_blocks(self, name: str) -> int | None:
        """The engine's figure at the last sample less ours, None without one."""
        return self._figures.excess.get(name)

    def lost_everything(self) -> None:
        """A new process with an empty cache: nothing that was there is held any more."""
        for request_id in self.ledger.requests():
            self.ledger.release(request_id)
        self._figures.forget(self.ledger)
        self._own_prefilling = self._own_decoding = self._own_pending_tokens = self._own_pending_ns = 0
        self.busy_until_ns = self.not_before_ns = 0
        self._breaker.reset()
        self.alone_for = self.prefill_seen = None
