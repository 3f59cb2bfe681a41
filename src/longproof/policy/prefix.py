"""Which replica holds which prefix: the index that routing asks.

    events of a replica ──▶ apply ─┐
    our own requests    ──▶ use ───┼──▶ contents of each replica (`policy.contents`) ──▶ match
    replies             ──▶ unuse ─┘

Blocks that are named by their text (`Arrival.by_text`) are in no event. Of a replica that publishes some, what our own
traffic brought of those is guessed beside what it tells; the two kinds of names never meet.

Content-addressed: blocks are named by `policy.hashing`. Bounded in bytes: the limit is enforced where blocks are
inserted, never by a later sweep. When it is reached, a replica that publishes events has its newest blocks left out
(the known beginnings of prefixes stay useful), and one that does not forgets its oldest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from longproof.domain.kv_event import KvCleared, KvEvent, KvGap, KvRemoved, KvStored
from longproof.policy.contents import NO_MATCH, Contents, Match
from longproof.policy.guessed import GuessedContents
from longproof.policy.told import ToldContents

DEFAULT_LIMIT_BYTES = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexFigures:
    """The state of one replica's part of the index. Counts are since the start.

    `refused_blocks`: left out because the byte limit was reached. `gaps`: event sequences with a hole. `told`: by
    events. `predicted_blocks` and `found_blocks`: what we expected replies to report as cached, and what they reported
    of it.
    """

    told: bool
    blocks: int
    bytes: int
    events: int
    gaps: int
    clears: int
    refused_blocks: int
    predicted_blocks: int
    found_blocks: int


@dataclass(slots=True)
class _Replica:
    contents: Contents
    told: bool
    texts: GuessedContents | None = None
    """Blocks named by text, where `contents` is told and cannot have them."""
    events: int = 0
    gaps: int = 0
    clears: int = 0
    refused_blocks: int = 0
    predicted_blocks: int = 0
    found_blocks: int = 0


@dataclass(frozen=True, slots=True)
class _Use:
    replica: str
    blocks: Sequence[int]
    predicted_blocks: int
    contents: Contents


class PrefixIndex:
    """Prefix blocks by replica. An unknown replica holds nothing, and events of one are ignored: they may be late."""

    def __init__(self, *, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> None:
        self.limit_bytes = limit_bytes
        self._replicas: dict[str, _Replica] = {}
        self._uses: dict[str, _Use] = {}

    def add(self, replica: str, *, capacity_blocks: int | None = None, events: bool = False) -> None:
        """Start to follow a replica. With `capacity_blocks` its contents are guessed from our own traffic; without, or
        with `events`, its events are waited for, and only blocks named by text are guessed. Adding it again begins
        anew."""
        guessed = None if capacity_blocks is None else GuessedContents(capacity_blocks)
        if guessed is None or events:
            self._replicas[replica] = _Replica(ToldContents(), told=True, texts=guessed)
        else:
            self._replicas[replica] = _Replica(guessed, told=False)
        self._uses = {request: use for request, use in self._uses.items() if use.replica != replica}

    def remove(self, replica: str) -> None:
        """Forget a replica."""
        self._replicas.pop(replica, None)
        self._uses = {request: use for request, use in self._uses.items() if use.replica != replica}

    @property
    def bytes(self) -> int:
        """Memory of all known blocks, by the measured cost of one."""
        return sum([r.contents.bytes + (0 if r.texts is None else r.texts.bytes) for r in self._replicas.values()])

    def known_blocks(self, replica: str) -> int:
        """Blocks known of a replica; 0 for an unknown one."""
        known = self._replicas.get(replica)
        return 0 if known is None else len(known.contents)

    def figures(self, replica: str) -> IndexFigures:
        """What a dashboard shows. Raises KeyError for a replica that was never added."""
        r = self._replicas[replica]
        return IndexFigures(
            told=r.told,
            blocks=len(r.contents),
            bytes=r.contents.bytes,
            events=r.events,
            gaps=r.gaps,
            clears=r.clears,
            refused_blocks=r.refused_blocks,
            predicted_blocks=r.predicted_blocks,
            found_blocks=r.found_blocks,
        )

    def match(self, replica: str, blocks: Sequence[int]) -> Match:
        """How much of a prompt this replica can use again."""
        known = self._replicas.get(replica)
        if known is None:
            return NO_MATCH
        found = known.contents.match(blocks)
        return known.texts.match(blocks) if found is NO_MATCH and known.texts is not None else found

    def apply(self, replica: str, event: KvEvent) -> None:
        """One change that a replica told. Events in any order, twice or of unknown blocks do no harm."""
        known = self._replicas.get(replica)
        if known is None:
            return
        known.events += 1
        match event:
            case KvStored():
                known.refused_blocks += known.contents.store(event.blocks, event.tier, self._room(known.contents))
            case KvRemoved():
                known.contents.remove(event.blocks, event.tier)
            case KvCleared():
                known.clears += 1
                known.contents.clear()
                if known.texts is not None:
                    known.texts.clear()
            case KvGap():
                known.gaps += 1
                known.contents.clear()

    def use(
        self, request: str, replica: str, blocks: Sequence[int], *, by_text: int = 0, block_size: float = 1.0
    ) -> int:
        """A request was sent to a replica: its blocks will be there, and stay while it runs. Sent again (to another
        replica), the first use ends. `block_size`: of its blocks, in those of the replica (text makes them larger or
        smaller). Returns how many of its blocks were there already."""
        self.unuse(request, kept=False)
        known = self._replicas.get(replica)
        if known is None or not blocks:
            return 0
        contents = known.texts if by_text and known.texts is not None else known.contents
        if isinstance(contents, GuessedContents):
            contents.met(block_size)
        predicted_blocks = contents.match(blocks).blocks
        noted = contents.use(blocks, self._room(contents))
        known.refused_blocks += len(blocks) - noted
        noted_blocks = blocks if noted == len(blocks) else blocks[:noted]
        self._uses[request] = _Use(replica, noted_blocks, predicted_blocks, contents)
        return predicted_blocks

    def unuse(self, request: str, *, kept: bool, found_blocks: int | None = None) -> None:
        """The request has ended; idempotent. `kept`: its prompt was prefilled, so it is cached now. `found_blocks`: how
        much of it had been cached, by the reply; what was believed beyond that shows how far the index can be trusted.
        """
        use = self._uses.pop(request, None)
        known = self._replicas.get(use.replica) if use is not None else None
        if use is None or known is None:
            return
        if found_blocks is not None:
            known.predicted_blocks += use.predicted_blocks
            known.found_blocks += min(use.predicted_blocks, found_blocks)
        use.contents.unuse(use.blocks, kept)

    def _room(self, contents: Contents) -> int:
        return contents.room(self.limit_bytes - self.bytes)
