"""Which replica answers first, and at what price for everybody else.

    cost = ttft + min(patience, later) + min(patience, streams)

    ttft     = max(backlog, room) + prefill(uncached) + restore(host and disk hits)    what this request waits for
    later    = prefill(uncached) · (uncached_weight + balance_weight · lead)           taken from those who come
             + prefill(tokens it pushes out of a full cache) · eviction_weight
    streams  = prefill(uncached) · running streams · stream_weight                     taken from those who run

`lead` is how far a replica's prefill of the last minutes is ahead of the least: without it a common system prompt would
gather every new conversation where it happened to be prefilled first, for as long as nobody has to wait there.

Never the longest match alone: a match only makes a prefill shorter, and a backlog outweighs it. Never the predicted
time alone either: it moves a conversation for a few milliseconds' gain, stores it twice and pushes two others out. The
other parts are that price; `patience_ns` bounds them, so that a prefix everybody uses is copied to a second replica
once the first is busy. Every part is kept in the score. The figures behind the weights: docs/concepts/routing.md.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from longproof.domain.kv_event import KvEvent
from longproof.domain.units import NS_PER_S
from longproof.policy.arrivals import Arrival
from longproof.policy.choice import Choice, ReplicaView, Score
from longproof.policy.contents import NO_MATCH, Match
from longproof.policy.peers import FleetUse
from longproof.policy.pools import Lending, PoolRule, lending
from longproof.policy.prefix import PrefixIndex

_MOST_SESSIONS = 65_536
_HALF_LIFE_NS = 60 * NS_PER_S


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreCost:
    """What one cached token costs to bring back to the device, in nanoseconds (the plan's bytes per token over the
    link's rate). None = not known: then it counts as a share of prefilling it, host 0.2 and disk 0.7."""

    host_ns_per_token: float | None = None
    disk_ns_per_token: float | None = None

    def ns(self, match: Match, view: ReplicaView) -> int:
        """Time to restore what of a match does not lie on the device."""
        host, disk = match.host_blocks * view.block_tokens, match.disk_blocks * view.block_tokens
        if not host and not disk:
            return 0
        host_ns = _HOST_SHARE * view.prefill.ns_per_token if self.host_ns_per_token is None else self.host_ns_per_token
        disk_ns = _DISK_SHARE * view.prefill.ns_per_token if self.disk_ns_per_token is None else self.disk_ns_per_token
        return int(host * host_ns + disk * disk_ns)


_HOST_SHARE, _DISK_SHARE = 0.2, 0.7
_UNKNOWN_RESTORE = RestoreCost()


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingRule:
    """The weights of the cost, the rule of the pools, and what restoring costs by replica."""

    uncached_weight: float = 3.0
    balance_weight: float = 1.0
    stream_weight: float = 0.1
    eviction_weight: float = 0.2
    patience_ns: int = 5 * NS_PER_S
    pools: PoolRule = field(default_factory=PoolRule)
    restore: Mapping[str, RestoreCost] = field(default_factory=dict[str, RestoreCost])

    def __post_init__(self) -> None:
        if min(self.uncached_weight, self.stream_weight, self.eviction_weight, self.patience_ns) < 0:
            raise ValueError(f"a weight is negative: {self}")


@dataclass(frozen=True, slots=True)
class _Followed:
    block_tokens: int
    cache_blocks: int | None
    events: bool


class PrefixRouter:
    """The router of the gateway (`policy.choice.Router`). Replicas are made known with `follow`; one that was not is
    routed to by its load alone."""

    def __init__(self, rule: RoutingRule = RoutingRule(), index: PrefixIndex | None = None) -> None:
        self.rule = rule
        self._pool_free = Lending(rule.pools, lendable=True, any_long_pool=False)
        """For requests that are long nowhere: nothing needs to be lent to them."""
        self.index = index if index is not None else PrefixIndex()
        self._followed: dict[str, _Followed] = {}
        self._work: dict[str, tuple[float, int]] = {}
        self._sessions: OrderedDict[str, tuple[str, int]] = OrderedDict()
        self._short_seen_ns: int | None = None
        self._peers_work: dict[str, tuple[float, int]] = {}
        self._peers_short_ns: int | None = None
        self.watchers: list[Callable[[Arrival, str, int, int], None]] = []
        """Told of every dispatch: the request, its replica, the blocks expected to be cached there, the time."""
        self.keepers: list[Callable[[str, Sequence[int]], None]] = []
        """Told of every prompt that is taken as cached at a replica because no events tell: its blocks."""

    def follow(self, replica: str, *, block_tokens: int, cache_blocks: int | None, events: bool) -> None:
        """Keep track of what a replica holds. `cache_blocks`: its KV pool in blocks of `block_tokens`, None = not
        known. `events`: it publishes them; without events and size nothing can be said of its contents."""
        self._followed[replica] = _Followed(block_tokens, cache_blocks, events)
        if events or cache_blocks is not None:
            self.index.add(replica, capacity_blocks=cache_blocks, events=events)
        else:
            self.index.remove(replica)

    def choose(self, arrival: Arrival, views: Sequence[ReplicaView], now_ns: int) -> Choice:
        """The replica with the least cost among those the pools allow; see the module. Changes nothing."""
        rules = self._pool_free
        if self.rule.pools.is_long(arrival.input_tokens):
            seen = [at_ns for at_ns in (self._short_seen_ns, self._peers_short_ns) if at_ns is not None]
            shorts_about = bool(seen) and now_ns - max(seen) <= self.rule.pools.short_memory_ns
            rules = lending(self.rule.pools, views, shorts_about=shorts_about)
        recent = [self._recent_work(view.name, now_ns) for view in views]
        least = min(recent)
        scores = tuple(
            [
                self._score(arrival, view, rules, (work - least) / work if work > 1 else work - least)
                for view, work in zip(views, recent, strict=True)
            ]
        )
        allowed = [at for at, score in enumerate(scores) if not score.note]
        best = min(allowed or range(len(views)), key=lambda at: _rank(scores[at], views[at], recent[at]))
        if not allowed:
            return Choice(None, scores[best], scores, f"no replica now: {scores[best].note}")
        return Choice(views[best].name, scores[best], scores, _reason(scores[best], scores))

    def on_dispatch(self, arrival: Arrival, replica: str, now_ns: int) -> None:
        """Charged at once: its blocks count as present, its tokens as sent, before anything comes back."""
        followed = self._followed.get(replica)
        size = 1.0
        if arrival.by_text and arrival.blocks and followed is not None:
            size = arrival.input_tokens / (len(arrival.blocks) * followed.block_tokens)
        cached_blocks = self.index.use(arrival.id, replica, arrival.blocks, by_text=arrival.by_text, block_size=size)
        cached = 0 if followed is None else _tokens(arrival, cached_blocks, followed.block_tokens)
        uncached = max(1, arrival.input_tokens - cached)
        for watch in self.watchers:
            watch(arrival, replica, cached_blocks, now_ns)
        if not self.rule.pools.is_long(uncached):
            self._short_seen_ns = now_ns
        self._work[replica] = (_faded(self._work.get(replica), now_ns) + uncached, now_ns)
        if arrival.session is not None and not arrival.blocks:
            self._sessions[arrival.session] = (replica, arrival.input_tokens)
            self._sessions.move_to_end(arrival.session)
            if len(self._sessions) > _MOST_SESSIONS:
                self._sessions.popitem(last=False)

    def on_end(
        self,
        arrival: Arrival,
        replica: str,
        cached_tokens: int | None,
        now_ns: int,  # noqa: ARG002  part of the protocol
        *,
        kept: bool = True,
    ) -> None:
        """Its blocks are no longer in use. Where no events tell, they are taken as cached from now on, if its prompt
        was prefilled (`kept`); what the reply said of its cache is compared with what was predicted
        (`PrefixIndex.figures`)."""
        followed = self._followed.get(replica)
        found = None
        if cached_tokens is not None and followed is not None:
            found = _blocks(arrival, cached_tokens, followed.block_tokens)
        if kept and arrival.blocks and followed is not None and not followed.events and followed.cache_blocks:
            for keep in self.keepers:
                keep(replica, arrival.blocks)
        self.index.unuse(arrival.id, kept=kept, found_blocks=found)

    def on_kv_event(self, replica: str, event: KvEvent, now_ns: int) -> None:  # noqa: ARG002  part of the protocol
        """What the replica's prefix cache holds has changed."""
        self.index.apply(replica, event)

    def on_peers(self, use: FleetUse, now_ns: int) -> None:
        """Work that other gateways sent counts like our own."""
        self._peers_work = {name: (one.recent_tokens, now_ns) for name, one in use.replicas.items()}
        self._peers_short_ns = None if use.short_age_ns is None else now_ns - use.short_age_ns

    def with_work(self, use: FleetUse, now_ns: int) -> FleetUse:
        """`use` with the work sent from here, as `on_peers` of others takes it."""
        replicas = {
            name: replace(one, recent_tokens=_faded(self._work.get(name), now_ns)) for name, one in use.replicas.items()
        }
        age_ns = None if self._short_seen_ns is None else max(0, now_ns - self._short_seen_ns)
        return replace(use, replicas=replicas, short_age_ns=age_ns)

    def cached_blocks(self, replica: str) -> int | None:
        """Blocks known to be there; None where contents are not followed."""
        return self.index.known_blocks(replica) if replica in self._followed else None

    def cache_blocks(self, replica: str) -> int | None:
        """What the replica's cache holds at most, in its blocks; None = not known."""
        followed = self._followed.get(replica)
        return None if followed is None else followed.cache_blocks

    def forget(self, replica: str) -> None:
        """The replica lost what it had cached; it is followed further, from nothing."""
        known = self._followed.get(replica)
        if known is not None:
            self.follow(replica, block_tokens=known.block_tokens, cache_blocks=known.cache_blocks, events=known.events)
        self._sessions = OrderedDict((s, held) for s, held in self._sessions.items() if held[0] != replica)

    def _score(self, arrival: Arrival, view: ReplicaView, rules: Lending, lead: float) -> Score:
        rule, name, prefill = self.rule, view.name, view.prefill
        match, cached = self._match(arrival, view)
        uncached = arrival.input_tokens - cached
        prefill_ns = prefill.ns(uncached, cached)
        restore_ns = 0 if match is NO_MATCH else rule.restore.get(name, _UNKNOWN_RESTORE).ns(match, view)
        pending, room_ns = view.pending_prefill_tokens, view.room_in_ns or 0
        backlog_ns = prefill.ns(pending) if pending else 0
        ttft_ns = (backlog_ns if backlog_ns > room_ns else room_ns) + prefill_ns + restore_ns
        later_ns = int(prefill_ns * (rule.uncached_weight + rule.balance_weight * lead))
        if len(arrival.blocks) > match.device_blocks:
            later_ns += self._eviction_ns(arrival, view, match)
        streams_ns = int(prefill_ns * rule.stream_weight * view.decoding)
        if arrival.only is None or arrival.only == name:
            note = rules.refusal(view, uncached, cached)
        else:
            note = f"it is meant for {arrival.only}"
        cost_ns = ttft_ns + min(rule.patience_ns, later_ns) + min(rule.patience_ns, streams_ns)
        return Score(name, cost_ns, cached, uncached, ttft_ns, backlog_ns, restore_ns, room_ns, note)

    def _match(self, arrival: Arrival, view: ReplicaView) -> tuple[Match, int]:
        """Blocks held there, and tokens that need no prefill: the last token of a prompt is always computed, and with
        it its block."""
        if arrival.blocks:
            match = self.index.match(view.name, arrival.blocks)
            if match is NO_MATCH:
                return NO_MATCH, 0
            cached = _tokens(arrival, match.blocks, view.block_tokens)
            return match, min(cached, _most_cached(arrival, view))
        if arrival.session is not None:
            replica, tokens = self._sessions.get(arrival.session, (None, 0))
            if replica == view.name:
                return NO_MATCH, min(tokens, _most_cached(arrival, view))
        return NO_MATCH, 0

    def _eviction_ns(self, arrival: Arrival, view: ReplicaView, match: Match) -> int:
        followed = self._followed.get(view.name)
        if followed is None or followed.cache_blocks is None or not self.rule.eviction_weight:
            return 0
        new_blocks = (len(arrival.blocks) - match.device_blocks) * (arrival.by_text or 1)
        free_blocks = max(0, followed.cache_blocks - self.index.known_blocks(view.name))
        pushed_out = new_blocks - free_blocks
        if pushed_out <= 0:
            return 0
        return int(pushed_out * view.block_tokens * view.prefill.ns_per_token * self.rule.eviction_weight)

    def _recent_work(self, replica: str, now_ns: int) -> float:
        """Uncached tokens sent there, from wherever."""
        return _faded(self._work.get(replica), now_ns) + _faded(self._peers_work.get(replica), now_ns)


def _faded(work: tuple[float, int] | None, now_ns: int) -> float:
    """Work with a half-life of a minute: so that a replica that was away is not sent everything until it has caught up
    with an hour."""
    if work is None or not work[0]:
        return 0.0
    return work[0] * 0.5 ** ((now_ns - work[1]) / _HALF_LIFE_NS)


def _tokens(arrival: Arrival, blocks: int, block_tokens: int) -> int:
    """Tokens in the first blocks of a prompt. Blocks of text hold as many as their share of it."""
    return blocks * arrival.input_tokens // len(arrival.blocks) if arrival.by_text and blocks else blocks * block_tokens


def _blocks(arrival: Arrival, tokens: int, block_tokens: int) -> int:
    """The other way around."""
    if not arrival.by_text:
        return tokens // block_tokens
    return tokens * len(arrival.blocks) // max(1, arrival.input_tokens)


def _most_cached(arrival: Arrival, view: ReplicaView) -> int:
    return max(0, arrival.input_tokens - 1) // view.block_tokens * view.block_tokens


def _rank(score: Score, view: ReplicaView, recent_tokens: float) -> tuple[bool, int, float]:
    """Room that nobody can promise comes last; of equal costs, the replica that had least to prefill lately."""
    return view.exclusive or view.room_in_ns is None, score.cost_ns, recent_tokens


def _reason(best: Score, scores: Sequence[Score]) -> str:
    """In words, for the decision log."""
    if len(scores) == 1:
        return "the only replica for it"
    longest = max([score.cached_tokens for score in scores])
    if best.cached_tokens == 0:
        return "least load; nothing of it is cached there" if longest else "least load; nothing of it is cached"
    if best.cached_tokens < longest:
        return "a shorter match than elsewhere, with less to wait for"
    if best.cached_tokens >= best.uncached_tokens:
        return "most of it is cached there"
    return "its beginning is cached there"
