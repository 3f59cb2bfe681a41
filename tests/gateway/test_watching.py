"""Which feeds a replica has, by what its section and its engine say."""

from __future__ import annotations

from typing import Any

from longproof.domain.deployment import Deployment, EngineKind
from longproof.domain.measure import reported
from longproof.gateway.config import ReplicaSection
from longproof.gateway.fleet import Replica
from longproof.gateway.introduce import Introduced
from longproof.gateway.kv_stream import KvSource
from longproof.gateway.launched import Standing
from longproof.gateway.replica_rules import ruled
from longproof.gateway.watching import sources_of

URL = "http://127.0.0.1:8000"


def introduced(kind: EngineKind, *, engine_block: int | None = None, **section: Any) -> Introduced:
    deployment = Deployment(engine=kind)
    if engine_block is not None:
        deployment = Deployment(engine=kind, block_size_tokens=reported(engine_block, "test"))
    written = ReplicaSection(url=URL, **section)
    standing = Standing(name="a", url=URL, section=written)
    rule = ruled("a", ("m",), written, deployment)
    replica = Replica(name="a", url=URL, models=("m",))
    return Introduced(standing=standing, replica=replica, ruled=rule, deployment=deployment, engine=None, api_key=None)


def test_there_are_none_when_nothing_is_published() -> None:
    assert sources_of(introduced(EngineKind.VLLM, engine_block=16)) == ()


def test_there_is_one_for_every_rank_when_several_are_written() -> None:
    found = introduced(
        EngineKind.VLLM,
        engine_block=128,
        kv_events="tcp://h:1 tcp://h:2",
        kv_replay="tcp://h:3",
        kv_topic="kv@m",
    )
    shared: dict[str, Any] = {"replica": "a", "topic": "kv@m", "block_tokens": 128, "engine_block_tokens": 128}
    assert sources_of(found) == (
        KvSource(endpoint="tcp://h:1", replay="tcp://h:3", **shared),
        KvSource(endpoint="tcp://h:2", **shared),
    )


def test_the_written_size_is_expected_when_the_engine_says_none() -> None:
    (found,) = sources_of(introduced(EngineKind.OPENAI, block_tokens=32, kv_events="tcp://h:1"))
    assert (found.block_tokens, found.engine_block_tokens) == (32, 32)
    (found,) = sources_of(introduced(EngineKind.OPENAI, kv_events="tcp://h:1"))
    assert (found.block_tokens, found.engine_block_tokens) == (16, 16)


def test_any_page_is_expected_when_the_engine_is_sglang() -> None:
    (found,) = sources_of(introduced(EngineKind.SGLANG, engine_block=1, kv_events="tcp://h:1"))
    assert (found.block_tokens, found.engine_block_tokens) == (16, None)
