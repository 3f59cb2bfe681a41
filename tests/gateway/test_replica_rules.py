"""What a replica's rule is made of, by what its engine tells and its section says."""

from __future__ import annotations

from typing import Any

from longproof.domain.deployment import Deployment, EngineKind
from longproof.domain.measure import Reading, Unknown, reported
from longproof.engines.registry import connect
from longproof.gateway.config import ReplicaSection
from longproof.gateway.replica_rules import RuledReplica, described, ruled
from longproof.testing.lying_engine import HONEST, lying_engine

URL = "http://127.0.0.1:8000"


def rule_of(*, unified: Reading[bool], **section: Any) -> RuledReplica:
    """A llama-server of four slots, each advertised with 8,192 tokens."""
    deployment = Deployment(
        engine=EngineKind.LLAMACPP,
        slots=reported(4, "test"),
        slot_limit_tokens=reported(8_192, "test"),
        block_size_tokens=reported(1, "test"),
        kv_unified=unified,
    )
    return ruled("a", ("m",), ReplicaSection(url=URL, **section), deployment)


def pools(rule: RuledReplica) -> list[tuple[str, int, int]]:
    return [(pool.stage, pool.capacity_blocks, pool.need.block_tokens) for pool in rule.rule.pools]


def test_a_cache_is_counted_once_when_nobody_tells_whether_its_slots_share_it() -> None:  # lemonade#3276
    rule = rule_of(unified=Unknown(reason="not told"))
    assert pools(rule)[0] == ("kv", 8_192, 1)
    assert [pool.capacity_blocks for pool in rule.rule.pools if pool.stage == "slots"] == [4]
    assert any("set kv_capacity = 32768" in note for note in rule.notes)
    assert described(rule) == "longest sequence 8,192 tokens; kv 8,192 tokens, 4 slots"


def test_each_slot_has_cells_of_its_own_when_the_engine_says_so() -> None:
    rule = rule_of(unified=reported(False, "test"))
    assert pools(rule) == [("kv", 4, 8_192)]
    assert described(rule) == "longest sequence 8,192 tokens; kv 4 blocks of 8,192 tokens"


def test_the_operators_capacity_is_believed_when_it_is_given() -> None:
    rule = rule_of(unified=Unknown(reason="not told"), kv_capacity=32_768)
    assert pools(rule)[0] == ("kv", 32_768, 1)
    assert not any("share one cache" in note for note in rule.notes)


async def test_a_real_servers_advertisement_is_counted_once() -> None:
    async with lying_engine(
        HONEST.but(slots=4)
    ) as url:  # as llama.cpp: /props has a window per slot and no word on sharing
        engine = await connect(url)
        try:
            deployment = await engine.introspect()
        finally:
            await engine.aclose()
    rule = ruled("a", ("m",), ReplicaSection(url=url), deployment)
    assert pools(rule)[0] == ("kv", HONEST.window_tokens, 1)
