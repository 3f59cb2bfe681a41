"""An engine's blocks → ours: events in, changes in our names out. Pure.

The engine's hash of a block is only a key here: what a block *is* follows from its tokens and from the block before it.
So keys are remembered with the name they stand for, for as long as the engine holds them:

    BlockStored(h3, h4 after h2, tokens)    name(h2) is known ─▶ name(h3), name(h4) = chain(tokens, name(h2))
    BlockRemoved(h3)                        name(h3), forgotten with its last tier

Blocks of the engine may be smaller than ours (SGLang's pages: several make one of ours) or larger (a hybrid model: one
makes several). Neither a multiple of the other cannot be translated, and says so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from longproof.domain.kv_event import KvCleared, KvEvent, KvRemoved, KvStored, Tier
from longproof.gateway.kv_wire import WireCleared, WireEvent, WireRemoved, WireStored
from longproof.policy.hashing import BYTES_PER_TOKEN, chain, root

_BIT = {Tier.DEVICE: 1, Tier.HOST: 2, Tier.DISK: 4}
_PER_EVENT_BLOCKS = 512
"""An event's share of blocks: whoever applies it does so on the event loop."""
_MOST_SIZES = 64


@dataclass(slots=True)
class _Odd:
    """A key whose block is not exactly one of ours. `names`: our blocks that end with it (none where it is a part of
    one, several where it is larger). `last`: the name that a next block follows; `tail`: tokens after it."""

    names: tuple[int, ...]
    last: int
    tail: bytes
    tiers: int


@dataclass(slots=True, kw_only=True)
class TranslationFigures:
    """What was met. Blocks, but for `unread` (events)."""

    stored: int = 0
    removed: int = 0
    orphans: int = 0
    """After a block nobody told us of: their names cannot be known."""
    conflicts: int = 0
    """A key that stands for other tokens than before, though the engine never said it was gone."""
    unknown_removed: int = 0
    other_groups: int = 0
    unfit: int = 0
    """Of a block size that is neither a part nor a multiple of ours."""
    dropped: int = 0
    """Forgotten because there were too many."""
    unread: int = 0


@dataclass(slots=True, kw_only=True)
class Translator:
    """One publisher's keys. `most_blocks` bounds memory (about 180 bytes each where the engine's blocks are as large as
    ours); beyond it the oldest are forgotten, and reported as removed."""

    block_tokens: int
    most_blocks: int = 4_000_000
    figures: TranslationFigures = field(default_factory=TranslationFigures)
    engine_block_tokens: Counter[int] = field(default_factory=Counter[int])
    """The first block sizes that were met, by blocks. An engine has one, or a few; rubbish may have any."""
    _same: dict[int, int] = field(default_factory=dict[int, int])
    """Keys of blocks that are exactly one of ours: name · 8 + the tiers that hold it."""
    _odd: dict[int, _Odd] = field(default_factory=dict[int, _Odd])
    _group: int | None = None

    def __len__(self) -> int:
        return len(self._same) + len(self._odd)

    def translate(self, event: WireEvent) -> Iterator[KvEvent]:
        """The changes that an event is to us, in order."""
        match event:
            case WireStored():
                yield from self._stored(event)
            case WireRemoved():
                yield from self._removed(event)
            case WireCleared():
                yield self.clear("the engine cleared its cache")

    def clear(self, reason: str) -> KvCleared:
        """Forgets all keys."""
        self._same.clear()
        self._odd.clear()
        return KvCleared(reason=reason)

    def _stored(self, event: WireStored) -> Iterator[KvEvent]:
        if not event.whole_prefix or (self._group is not None and event.group not in (None, self._group)):
            self.figures.other_groups += len(event.hashes)
            return
        self._group = event.group if self._group is None else self._group
        if event.block_tokens in self.engine_block_tokens or len(self.engine_block_tokens) < _MOST_SIZES:
            self.engine_block_tokens[event.block_tokens] += len(event.hashes)
        if event.block_tokens % self.block_tokens and self.block_tokens % event.block_tokens:
            self.figures.unfit += len(event.hashes)
            return
        before = self._before(event)
        if before is None:
            self.figures.orphans += len(event.hashes)
            return
        packed = event.token_ids.tobytes()
        if event.block_tokens == self.block_tokens and not before[1]:
            names = self._take_same(event, packed, before[0])
        else:
            names = self._take_odd(event, packed, *before)
        self.figures.stored += len(event.hashes)
        for start in range(0, len(names), _PER_EVENT_BLOCKS):
            yield KvStored(blocks=tuple(names[start : start + _PER_EVENT_BLOCKS]), tier=event.tier)
        if len(self) > self.most_blocks:
            yield from self._shrink()

    def _before(self, event: WireStored) -> tuple[int, bytes] | None:
        """The name that the first block follows, and tokens between that name's block and it."""
        if event.parent is None:
            last, tail = root(event.salt), b""
        elif (same := self._same.get(event.parent)) is not None:
            last, tail = same >> 3, b""
        elif (odd := self._odd.get(event.parent)) is not None:
            last, tail = odd.last, odd.tail
        else:
            return None
        if event.aside:  # never the name of plain text
            last = chain(event.aside.encode("utf-32-le"), block_tokens=len(event.aside), parent=last)[-1]
        return last, tail

    def _take_same(self, event: WireStored, packed: bytes, last: int) -> Sequence[int]:
        names = chain(packed, block_tokens=self.block_tokens, parent=last)
        held, bit = self._same, _BIT[event.tier]
        for key, name in zip(event.hashes, names, strict=True):
            found = held.get(key)
            if found is not None and found >> 3 == name:
                held[key] = found | bit
                continue
            self.figures.conflicts += found is not None
            held[key] = name << 3 | bit
        return names

    def _take_odd(self, event: WireStored, packed: bytes, last: int, tail: bytes) -> Sequence[int]:
        step, whole = event.block_tokens * BYTES_PER_TOKEN, self.block_tokens * BYTES_PER_TOKEN
        bit, names = _BIT[event.tier], list[int]()
        for index, key in enumerate(event.hashes):
            tail += packed[index * step : (index + 1) * step]
            own = chain(tail, block_tokens=self.block_tokens, parent=last)
            if own:
                last, tail = own[-1], tail[len(own) * whole :]
                names += own
            odd = self._odd.get(key)
            if odd is not None and (odd.last, odd.tail) == (last, tail):
                odd.tiers |= bit
                continue
            self.figures.conflicts += odd is not None
            self._odd[key] = _Odd(own, last, tail, bit)
        return names

    def _removed(self, event: WireRemoved) -> Iterator[KvEvent]:
        if event.group is not None and event.group != self._group:
            self.figures.other_groups += len(event.hashes)
            return
        bit, names = _BIT[event.tier], list[int]()
        for key in event.hashes:
            same, odd = self._same.get(key), self._odd.get(key)
            if same is not None and same & bit:
                names.append(same >> 3)
                if same & 7 == bit:
                    del self._same[key]
                else:
                    self._same[key] = same & ~bit
            elif odd is not None and odd.tiers & bit:
                names += odd.names
                odd.tiers &= ~bit
                if not odd.tiers:
                    del self._odd[key]
            else:
                self.figures.unknown_removed += 1
                continue
            self.figures.removed += 1
        for start in range(0, len(names), _PER_EVENT_BLOCKS):
            yield KvRemoved(blocks=tuple(names[start : start + _PER_EVENT_BLOCKS]), tier=event.tier)

    def _shrink(self) -> Iterator[KvEvent]:
        while len(self) > self.most_blocks:
            self.figures.dropped += 1
            if self._same:
                found = self._same.pop(next(iter(self._same)))
                names, tiers = (found >> 3,), found & 7
            else:
                odd = self._odd.pop(next(iter(self._odd)))
                names, tiers = odd.names, odd.tiers
            for tier, bit in _BIT.items():
                if tiers & bit and names:
                    yield KvRemoved(blocks=names, tier=tier)
