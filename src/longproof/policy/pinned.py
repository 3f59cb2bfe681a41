"""Pinned prefixes: contents that are kept in the cache of some replica although nobody asks for them just now.

    put ──▶ homes: the `copies` replicas that rank first for its name        (rendezvous hashing: when a replica goes,
             │                                                               only its own prefixes move)
             ▼
    due ──▶ Warm(name, replica)      a home that does not hold it whole, or where it was not used for `refresh_ns`
             ▼
    warmed   the shell sent the content there as a request of one output token

Engines cannot pin. A use now and then keeps a prefix at the young end of their eviction order, which is as good while
the cache holds what is used within `refresh_ns`; `most_share` keeps pins from being what fills it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from xxhash import xxh3_64_intdigest

from longproof.domain.units import NS_PER_S
from longproof.policy.contents import Match


@dataclass(frozen=True, slots=True, kw_only=True)
class PinRule:
    """`most_share`: of a replica's cache that pins may take. `retry_ns`: how long a warm-up may take, or has to wait
    after it failed, before it is tried again."""

    refresh_ns: int = 60 * NS_PER_S
    retry_ns: int = 30 * NS_PER_S
    most_prefixes: int = 256
    most_share: float = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class PinRefused:
    """Why a prefix is not pinned."""

    reason: str
    limit: int
    actual: int
    unit: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Warm:
    """Send this prefix's content to this replica, with one output token, at the lowest priority."""

    name: str
    replica: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedSnapshot:
    """One pinned prefix as a dashboard shows it. `held`: tokens of it that each home holds. `requests` began with it,
    `hits` of them found it whole. `homeless`: why it lies on fewer replicas than it has copies, None = it does not."""

    name: str
    input_tokens: int
    blocks: int
    copies: int
    homes: tuple[str, ...]
    held: Mapping[str, int]
    requests: int
    hits: int
    warmed: int
    moved: int
    homeless: str | None = None

    @property
    def hit_share(self) -> float | None:
        """Share of its requests that found it whole; None before the first."""
        return self.hits / self.requests if self.requests else None


@dataclass(slots=True)
class _Pinned:
    name: str
    blocks: tuple[int, ...]
    input_tokens: int
    copies: int
    size_blocks: int
    homes: tuple[str, ...] = ()
    requests: int = 0
    hits: int = 0
    warmed: int = 0
    moved: int = 0
    homeless: str | None = None


class PinnedPrefixes:
    """What is pinned, where, and what has to be done about it."""

    def __init__(self, rule: PinRule = PinRule()) -> None:
        self.rule = rule
        self._pins: dict[str, _Pinned] = {}
        self._by_last: dict[int, list[_Pinned]] = {}
        self._used_ns: dict[tuple[str, str], int] = {}
        self._tried_ns: dict[tuple[str, str], int] = {}

    def put(
        self,
        name: str,
        *,
        blocks: tuple[int, ...],
        input_tokens: int,
        copies: int = 1,
        cache_blocks: int | None = None,
        by_text: int = 0,
    ) -> PinRefused | None:
        """Pin a prefix, or replace the one of this name. `cache_blocks`: the smallest cache it may have to lie in.
        `by_text`: as an arrival has it."""
        if not blocks:
            return PinRefused(
                reason="the prefix is shorter than one block, which is the least that can be cached",
                limit=1,
                actual=0,
                unit="blocks",
            )
        if name not in self._pins and len(self._pins) >= self.rule.most_prefixes:
            return PinRefused(
                reason="too many prefixes are pinned",
                limit=self.rule.most_prefixes,
                actual=len(self._pins) + 1,
                unit="prefixes",
            )
        room = None if cache_blocks is None else int(cache_blocks * self.rule.most_share)
        size_blocks = len(blocks) * (by_text or 1)
        if room is not None and size_blocks > room:
            return PinRefused(
                reason="the prefix is larger than pins may be in a replica's cache",
                limit=room,
                actual=size_blocks,
                unit="blocks",
            )
        self.drop(name)
        pinned = _Pinned(name, blocks, input_tokens, max(1, copies), size_blocks)
        self._pins[name] = pinned
        self._by_last.setdefault(blocks[-1], []).append(pinned)
        return None

    def drop(self, name: str) -> bool:
        """Pin it no longer; False when it was not pinned."""
        gone = self._pins.pop(name, None)
        if gone is None:
            return False
        self._by_last[gone.blocks[-1]].remove(gone)
        if not self._by_last[gone.blocks[-1]]:
            del self._by_last[gone.blocks[-1]]
        for times in (self._used_ns, self._tried_ns):
            for key in [key for key in times if key[0] == name]:
                del times[key]
        return True

    def due(
        self,
        now_ns: int,
        cache_blocks: Mapping[str, int | None],
        match: Callable[[str, Sequence[int]], Match],
    ) -> list[Warm]:
        """What has to be warmed now. `cache_blocks`: the replicas that can take it, with the size of their caches;
        `match`: `PrefixIndex.match`. A warm-up handed out is not repeated before `retry_ns`, unless the index has seen
        what it brought: an index that sees nothing (its events are late, or not the engine's) must not have the same
        prefix sent for ever."""
        taken = dict.fromkeys(cache_blocks, 0)
        warm: list[Warm] = []
        for pinned in self._pins.values():
            self._house(pinned, cache_blocks, taken)
            for replica in pinned.homes:
                key = (pinned.name, replica)
                held = match(replica, pinned.blocks).blocks
                reason = self._reason(pinned, replica, now_ns, held)
                if held >= len(pinned.blocks) and self._used_ns.get(key, -1) >= self._tried_ns.get(key, now_ns):
                    del self._tried_ns[key]
                tried = self._tried_ns.get(key)
                if reason and (tried is None or now_ns - tried >= self.rule.retry_ns):
                    self._tried_ns[key] = now_ns
                    warm.append(Warm(name=pinned.name, replica=replica, reason=reason))
        return warm

    def warmed(self, name: str, replica: str, now_ns: int, *, done: bool) -> None:
        """A warm-up ended. Not `done`: it is tried again after `retry_ns`."""
        pinned = self._pins.get(name)
        if pinned is not None and done:
            pinned.warmed += 1
            self._used_ns[name, replica] = now_ns

    def on_dispatch(self, blocks: Sequence[int], replica: str, cached_blocks: int, now_ns: int) -> str | None:
        """A request was sent: counts for the pinned prefix it begins with (the longest, under each of its names), and
        keeps it warm. Returns its first name."""
        for length in sorted({len(same[0].blocks) for same in self._by_last.values()}, reverse=True):
            same = self._by_last.get(blocks[length - 1], ()) if length <= len(blocks) else ()
            if same and len(same[0].blocks) == length:
                for pinned in same:
                    pinned.requests += 1
                    pinned.hits += cached_blocks >= length
                    if replica in pinned.homes:
                        self._used_ns[pinned.name, replica] = now_ns
                return same[0].name
        return None

    def snapshot(self, match: Callable[[str, Sequence[int]], Match]) -> tuple[PinnedSnapshot, ...]:
        """All of them, in the order of pinning."""
        return tuple(
            PinnedSnapshot(
                name=pinned.name,
                input_tokens=pinned.input_tokens,
                blocks=len(pinned.blocks),
                copies=pinned.copies,
                homes=pinned.homes,
                held={
                    home: match(home, pinned.blocks).blocks * pinned.input_tokens // len(pinned.blocks)
                    for home in pinned.homes
                },
                requests=pinned.requests,
                hits=pinned.hits,
                warmed=pinned.warmed,
                moved=pinned.moved,
                homeless=pinned.homeless,
            )
            for pinned in self._pins.values()
        )

    def _house(self, pinned: _Pinned, cache_blocks: Mapping[str, int | None], taken: dict[str, int]) -> None:
        """Choose its homes among the replicas that are there and have room for it."""
        ranked = sorted(cache_blocks, key=lambda replica: _rank(pinned.name, replica))
        homes: list[str] = []
        for replica in ranked:
            size = cache_blocks[replica]
            if size is None or taken[replica] + pinned.size_blocks <= size * self.rule.most_share:
                taken[replica] += pinned.size_blocks
                homes.append(replica)
                if len(homes) == pinned.copies:
                    break
        pinned.moved += sum(1 for home in homes if pinned.homes and home not in pinned.homes)
        pinned.homes = tuple(homes)
        pinned.homeless = None
        if len(homes) < min(pinned.copies, max(1, len(cache_blocks))):
            pinned.homeless = "no replica has room for it" if not homes else "no further replica has room for it"
        if not cache_blocks:
            pinned.homeless = "no replica that serves its model is up"

    def _reason(self, pinned: _Pinned, replica: str, now_ns: int, held: int) -> str | None:
        used = self._used_ns.get((pinned.name, replica))
        if used is None:
            return "not there yet"
        if held < len(pinned.blocks):
            return f"{len(pinned.blocks) - held} of its {len(pinned.blocks)} blocks are no longer there"
        if now_ns - used >= self.rule.refresh_ns:
            return "not used for a while"
        return None


def _rank(name: str, replica: str) -> int:
    return xxh3_64_intdigest(f"{name}\0{replica}".encode())
