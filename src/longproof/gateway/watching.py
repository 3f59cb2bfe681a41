"""The watch over a fleet that was met: which engine is read, which events are followed, how an index is checked."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from longproof.clock import Clock
from longproof.domain.deployment import EngineKind
from longproof.domain.measure import value_or_none
from longproof.engines.base import Engine
from longproof.engines.link import Link
from longproof.gateway.desk import Desk
from longproof.gateway.index_check import CheckRules, Probed
from longproof.gateway.introduce import Introduced, Met, engine_of
from longproof.gateway.kv_stream import FeedState, KvSource
from longproof.gateway.watch import Sees, Watch, Watched, WatchRules
from longproof.policy.routing import PrefixRouter


def watch_fleet(
    met: Met,
    desk: Desk,
    sees: Sees,
    router: PrefixRouter,
    clock: Clock,
    back: Callable[[str], None] = lambda _: None,
) -> Watch:
    """A watch that is not started yet. Adds the links of its probes to `met`, which closes them. `back`: told of a
    replica that answers again."""

    def credit(replica: str) -> tuple[int, int] | None:
        try:
            figures = router.index.figures(replica)
        except KeyError:
            return None
        return figures.predicted_blocks, figures.found_blocks

    def trust(replica: str, trusted: bool) -> None:
        one = next(found for found in met.replicas if found.replica.name == replica)
        router.follow(
            replica,
            block_tokens=one.ruled.rule.block_tokens,
            cache_blocks=one.ruled.cache_blocks,
            events=trusted,
        )

    def doubt(replica: str) -> str:
        one = next(found for found in met.replicas if found.replica.name == replica)
        counting = met.counting.models.get(one.replica.models[0])
        return "" if counting is None else counting.doubt

    def inferred(replica: str) -> str:
        one = next(found for found in met.replicas if found.replica.name == replica)
        counting = met.counting.models.get(one.replica.models[0])
        return "" if counting is None else counting.inferred

    check = CheckRules(count=met.counting.by_tokens, credit=credit)
    rules = WatchRules(check=check, trust=trust, doubt=doubt, inferred=inferred, back=back)
    return Watch([_watched(one, met) for one in met.replicas], sees, desk.act, clock, rules)


def _watched(one: Introduced, met: Met) -> Watched:
    async def again() -> Engine:
        return await engine_of(one.standing, one.api_key)

    def probed(states: Sequence[FeedState]) -> Probed:
        link = Link(one.replica.entry_url, api_key=one.api_key)
        met.links.append(link)
        model, block_tokens = one.replica.models[0], one.ruled.rule.block_tokens
        return Probed(replica=one.replica.name, model=model, link=link, block_tokens=block_tokens, states=states)

    sources = sources_of(one)
    return Watched(
        name=one.replica.name, engine=one.engine, connect=again, sources=sources, probed=probed if sources else None
    )


def sources_of(one: Introduced) -> tuple[KvSource, ...]:
    """Where a replica publishes. Several endpoints (one per rank) stand in one text, separated by spaces."""
    section = one.standing.section
    endpoints = (section.kv_events or "").split()
    replays = (section.kv_replay or "").split()
    block = one.ruled.rule.block_tokens
    # an engine that pages by the token (SGLang) tells its blocks in pieces of ours, which is no fault
    told = section.block_tokens or value_or_none(one.deployment.block_size_tokens)
    announced = block if one.deployment.engine is not EngineKind.SGLANG else None
    return tuple(
        KvSource(
            replica=one.replica.name,
            endpoint=endpoint,
            topic=section.kv_topic,
            replay=replays[place] if place < len(replays) else None,
            block_tokens=block,
            engine_block_tokens=announced if told is None or told > 1 else None,
        )
        for place, endpoint in enumerate(endpoints)
    )
