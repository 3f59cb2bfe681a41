"""Does the block index know what it claims to know? What can be wrong with KV events, and how it shows. Pure.

Everything that goes wrong with events looks the same from a distance: no request ever finds its prefix. Hence a probe
(`index_check`) and, when it fails, these questions, the first "yes" being the reason that is told:

    is anything connected?              nobody there, or no ZeroMQ
    other topics?                       messages come, under another name
    nothing at all?                     the engine publishes nothing
    unreadable?                         another protocol
    another block size?                 neither told by the engine nor configured
    blocks after unknown blocks?        hashes that do not hang together: another seed, or what was before is lost
    events, but none for our tokens?    another tokenizer or template than the engine's
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from longproof.domain.units import format_tokens
from longproof.gateway.kv_stream import FeedState

_CREDIT_FROM_BLOCKS = 200
_CREDIT_SHARE = 0.5
_ORPHAN_SHARE = 0.2
_ORPHANS_FROM = 50


class IndexState(StrEnum):
    """What the index of one replica is worth."""

    INFERRED = "inferred"
    """Contents are inferred from our own traffic: there are no events, or they speak of tokens that we do not know."""
    CHECKING = "checking"
    OK = "ok"
    DEGRADED = "degraded"


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexHealth:
    """One replica's index. `reason`: why it is degraded or inferred, in a sentence; "" otherwise."""

    replica: str
    state: IndexState
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """What a feed had seen at one moment, to tell what came since."""

    messages: int
    unreadable: int
    unread: int
    other_topics: int
    stored: int
    orphans: int
    conflicts: int
    unfit: int
    sizes: dict[int, int]

    @classmethod
    def of(cls, state: FeedState) -> Mark:
        """Now."""
        figures = state.translator.figures
        return cls(
            messages=state.messages,
            unreadable=state.unreadable,
            unread=figures.unread,
            other_topics=sum(state.other_topics.values()),
            stored=figures.stored,
            orphans=figures.orphans,
            conflicts=figures.conflicts,
            unfit=figures.unfit,
            sizes=dict(state.translator.engine_block_tokens),
        )


def diagnose(state: FeedState, since: Mark) -> str:
    """Why a probe's blocks did not come."""
    source, now = state.source, Mark.of(state)
    if not state.connected:
        return f"no publisher answers at {source.endpoint} (kv_events)"
    if now.messages == since.messages:
        if now.other_topics > since.other_topics:
            topics = ", ".join(f"'{topic}'" for topic, _ in state.other_topics.most_common(3))
            return f"events come under the topic {topics}, not under '{source.topic}' (kv_topic)"
        return (
            f"no event came from {source.endpoint} for a prompt that was new: KV events or prefix caching are off,"
            " or this is another engine's endpoint"
        )
    if now.unreadable > since.unreadable or now.unread > since.unread:
        return f"events from {source.endpoint} cannot be read: another format than vLLM's or SGLang's"
    size = wrong_size(state, since)
    if size:
        return size
    if now.orphans > since.orphans:
        return (
            f"{now.orphans - since.orphans:,} blocks follow blocks that were never told of: the hashes of events do not"
            " hang together (another seed), or their beginning was lost"
        )
    return "events came, but none for the probe's tokens: our tokenizer or template is not the engine's"


def wrong_size(state: FeedState, since: Mark | None = None) -> str:
    """Blocks of a size that was not announced; "" where all are as they should be."""
    source, wanted = state.source, state.source.engine_block_tokens
    before = since.sizes if since is not None else {}
    met = [size for size, blocks in state.translator.engine_block_tokens.items() if blocks > before.get(size, 0)]
    for size in met:
        if wanted is not None and size != wanted:
            sizes = f"{format_tokens(size)} tokens, not of {format_tokens(wanted)}"
            return f"the engine's blocks are of {sizes} (block_tokens)"
        if size % source.block_tokens and source.block_tokens % size:
            return (
                f"the engine's blocks are of {format_tokens(size)} tokens, which cannot be told in blocks of"
                f" {format_tokens(source.block_tokens)} (block_tokens)"
            )
    return ""


def running_trouble(state: FeedState, since: Mark) -> str:
    """What went wrong with events that do come, since a check that was good; "" = nothing."""
    if not state.connected:
        return f"the connection to {state.source.endpoint} is lost"
    size = wrong_size(state, since)
    if size:
        return size
    now = Mark.of(state)
    orphans, stored = now.orphans - since.orphans, now.stored - since.stored
    if orphans >= _ORPHANS_FROM and orphans > _ORPHAN_SHARE * (orphans + stored):
        return f"{orphans:,} of {orphans + stored:,} stored blocks follow blocks that were never told of"
    conflicts = now.conflicts - since.conflicts
    if conflicts >= _ORPHANS_FROM and conflicts > _ORPHAN_SHARE * stored:
        return f"{conflicts:,} hashes stand for other tokens than before: the engine's hashes are not of whole prefixes"
    return ""


def over_credit(predicted_blocks: int, found_blocks: int) -> str:
    """Whether replies find much less in the cache than the index promised; "" = they do not. Engines that report no
    cached tokens say nothing either way (their replies are not in the figures)."""
    if predicted_blocks < _CREDIT_FROM_BLOCKS or found_blocks >= _CREDIT_SHARE * predicted_blocks:
        return ""
    return f"of {predicted_blocks:,} blocks that the index promised, replies used {found_blocks:,}"
