"""One publisher's messages → changes of what its replica holds. Pure: sockets and threads are `kv_feed`'s.

Whatever is lost, doubled or comes in another order, what is believed of a cache is a part of what it holds: a message
that is missing ends all belief in what came before it, since a removal may have been in it.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from longproof.domain.kv_event import KvEvent, KvGap
from longproof.gateway.kv_sequence import Place, Sequence
from longproof.gateway.kv_translate import Translator
from longproof.gateway.kv_wire import Batch, WireEvent, WireStored


@dataclass(frozen=True, slots=True, kw_only=True)
class KvSource:
    """One publisher. `endpoint` as ZeroMQ writes it (``tcp://host:5557``); with data parallelism every rank publishes
    on a port of its own, and each is a source of the same replica. `topic`: messages under others are not this
    replica's ("" = any). `replay`: where lost messages can be asked for, None = nowhere. `block_tokens`: of the index;
    `engine_block_tokens`: what the engine says its blocks are, None = it does not say."""

    replica: str
    endpoint: str
    topic: str = ""
    replay: str | None = None
    block_tokens: int = 16
    engine_block_tokens: int | None = None
    most_blocks: int = 4_000_000


@dataclass(slots=True, kw_only=True)
class FeedState:
    """What a source has been like; read from any thread, written by the feed's own."""

    source: KvSource
    translator: Translator
    sequence: Sequence = field(default_factory=Sequence)
    connected: bool = False
    messages: int = 0
    unreadable: int = 0
    other_topics: Counter[str] = field(default_factory=Counter[str])
    gaps: int = 0
    replays: int = 0
    lives: int = 1
    joined_at: int | None = None
    """The first sequence number that came: above 0, what is cached since before is not known."""
    last_at_ns: int | None = None


def take(state: FeedState, number: int, batch: Batch) -> list[KvEvent]:
    """What a message changes. It is the next one, or nobody can be asked for what is missing before it."""
    before = state.sequence.last
    place = state.sequence.take(number, batch.at_s)
    if place is Place.OLD:
        return []
    events: list[KvEvent] = []
    if place is Place.FIRST:
        state.joined_at = number
    elif place is Place.NEW_LIFE:
        state.lives += 1
        events.append(state.translator.clear("the engine began anew"))
    elif place is Place.AFTER_GAP:
        missed = number - (before or 0) - 1
        state.gaps += 1
        events.append(KvGap(reason=f"{missed:,} messages were lost", missed=missed))
    state.translator.figures.unread += batch.unread
    if batch.lost:
        state.gaps += 1
        events.append(KvGap(reason="an event could not be read"))
    for event in together(batch.events):
        events.extend(state.translator.translate(event))
    return events


def together(events: Iterable[WireEvent]) -> Iterator[WireEvent]:
    """The same events, but blocks that follow each other in one chain stored at once. SGLang 0.5.23 tells every page by
    itself (`mem_cache/events.py`); an index knows a prompt faster that it was told in few pieces."""
    parts: list[WireStored] = []
    for event in events:
        follows = isinstance(event, WireStored) and bool(parts) and _follows(parts[-1], event)
        if parts and not follows:
            yield _one(parts)
            parts = []
        if isinstance(event, WireStored):
            parts.append(event)
        else:
            yield event
    if parts:
        yield _one(parts)


def _follows(before: WireStored, event: WireStored) -> bool:
    """Whether it tells no more than that these blocks come after those, in the same place."""
    return (
        before.hashes[-1:] == (event.parent,)
        and not (before.aside or event.aside or event.salt)
        and (before.tier, before.block_tokens, before.group, before.whole_prefix)
        == (event.tier, event.block_tokens, event.group, event.whole_prefix)
    )


def _one(parts: list[WireStored]) -> WireStored:
    if len(parts) == 1:
        return parts[0]
    ids = array("I")
    for part in parts:
        ids.extend(part.token_ids)
    return replace(parts[0], hashes=tuple(key for part in parts for key in part.hashes), token_ids=ids)
