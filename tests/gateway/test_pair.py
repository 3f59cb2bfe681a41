"""A prefill/decode pair behind the gateway: one replica, two servers, one request through both."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from gateway_standin import MODEL, Shell

from longproof.domain.request import Route
from longproof.engines.pd_handover import BOOTSTRAP_ERROR, DECODE_ERROR, PREFILL_ERROR
from longproof.errors import UsageError
from longproof.gateway.config import config_from
from longproof.gateway.fleet import Fleet, Replica
from longproof.gateway.introduce import meet
from longproof.gateway.launched import running_replicas
from longproof.gateway.owner_fields import FieldRule
from longproof.gateway.pair_prefill import with_fields
from longproof.gateway.upstream import Upstream
from longproof.policy.arrivals import EndKind
from longproof.testing.behaviour import Behaviour
from longproof.testing.dialects import VLLM
from longproof.testing.engine_log import Ending
from longproof.testing.lies import Crash, Refuse, SlowPrefill
from longproof.testing.lies_of_load import PdBootstrapFail
from longproof.testing.lying_engine import lying_engine
from longproof.testing.pd_pair import PdPair

Start = Callable[..., Awaitable[Shell]]
Until = Callable[..., Awaitable[None]]
SIDE = Behaviour(dialect=VLLM, window_tokens=4_096, token_s=0.0)
SLOW = SIDE.but(token_s=0.05)
FOREIGN = {"do_remote_prefill": True, "remote_host": "10.0.0.1", "remote_request_id": "somebody's"}


def message_of(raw: bytes) -> dict[str, str]:
    start = raw.find(b"{")
    found: dict[str, dict[str, str]] = json.loads(raw[start : raw.find(b"\n", start) if b"\n" in raw[start:] else None])
    return found["error"]


@pytest.mark.parametrize("stream", [True, False])
async def test_the_answer_is_the_decode_sides_when_the_prefill_side_has_computed_the_prompt(
    shell: Start, *, stream: bool
) -> None:
    pair = PdPair(SIDE, SIDE)
    async with pair as (prefill, decode):
        gateway = await shell([decode], prefill_url=prefill)
        # what the client says of transfers is overruled even where the field is allowed: it names hosts, and other
        # people's requests
        gateway.intake.fields = FieldRule(allowed=frozenset({"kv_transfer_params"}))
        response = await gateway.chat(stream=stream, max_completion_tokens=8, min_tokens=8, kv_transfer_params=FOREIGN)
        raw = await response.read()
    assert response.status == 200, raw
    first, second = pair.prefill.log.last, pair.decode.log.last
    assert (first.output_tokens, second.output_tokens) == (1, 8)
    assert first.options["kv_transfer_params"] == {"do_remote_decode": True, "do_remote_prefill": False}
    assert second.options["kv_transfer_params"]["remote_host"] == "127.0.0.1"
    assert second.transferred_tokens == second.prompt_tokens
    assert raw.endswith(b"data: [DONE]\n\n") if stream else json.loads(raw)["choices"][0]["message"]["content"]
    spent = gateway.books.ends[0]
    # the decode side says of all it was handed that it was cached; the prefill side had nothing
    assert (spent.input_tokens, spent.output_tokens, spent.cached_tokens) == (second.prompt_tokens, 8, 0)
    assert [end.kind for end in gateway.controller.ended.values()] == [EndKind.COMPLETED]


async def test_a_clients_own_transfer_is_refused_and_reaches_no_side(shell: Start) -> None:
    pair = PdPair(SIDE, SIDE)
    async with pair as (prefill, decode):
        gateway = await shell([decode], prefill_url=prefill)
        response = await gateway.chat(kv_transfer_params=FOREIGN)  # it names hosts, and other people's requests
        assert (response.status, (await response.json())["error"]["code"]) == (400, "field_not_allowed")
    assert not pair.prefill.log.requests
    assert not pair.decode.log.requests


async def test_what_the_prefill_side_had_cached_is_on_the_books_when_a_prompt_comes_again(shell: Start) -> None:
    pair = PdPair(SIDE, SIDE)
    async with pair as (prefill, decode):
        gateway = await shell([decode], prefill_url=prefill)
        for _ in range(2):
            await (await gateway.chat("many words " * 100)).read()
    cold, warm = (end.cached_tokens for end in gateway.books.ends)
    assert (cold, warm) == (0, pair.prefill.log.last.cached_tokens)
    assert warm


@pytest.mark.parametrize(
    ("side", "status", "code", "words"),
    [
        ("prefill", 500, PREFILL_ERROR, "prefill side: the engine is out of luck"),
        ("prefill", 400, "bad_luck", "prefill side: the engine is out of luck"),
        ("decode", 500, DECODE_ERROR, "decode side: the engine is out of luck"),
    ],
)
async def test_an_error_names_its_side_when_one_of_them_fails(
    shell: Start, side: str, status: int, code: str, words: str
) -> None:
    broken = SIDE.lying(Refuse(status=status, retry_after_s=None, message="the engine is out of luck", type="bad_luck"))
    pair = PdPair(**{side: broken, "decode" if side == "prefill" else "prefill": SIDE})
    async with pair as (prefill, decode):
        gateway = await shell([decode], prefill_url=prefill)
        response = await gateway.chat()
        error = message_of(await response.read())
    assert (response.status, error["message"]) == (status, words)
    assert error["code"] == code or status == 400
    assert len(pair.prefill.log.requests) == 1
    assert len(pair.decode.log.requests) == (1 if side == "decode" else 0)
    kinds = [end.kind for end in gateway.controller.ended.values()]
    assert kinds == [EndKind.REJECTED if status == 400 else EndKind.FAILED]


async def test_the_decode_side_is_named_when_its_stream_begins_with_an_error(shell: Start) -> None:
    async with PdPair(SIDE, SIDE.lying(PdBootstrapFail(after_s=0.01))) as (prefill, decode):
        gateway = await shell([decode], prefill_url=prefill)
        error = message_of(await (await gateway.chat(stream=True)).read())
    assert error["message"].startswith("decode side: ")
    assert error["code"] == DECODE_ERROR


async def test_nothing_is_asked_of_the_decode_side_when_nothing_was_handed_on(shell: Start) -> None:
    plain, decoding = lying_engine(SIDE), lying_engine(SIDE.but(kv_connector=True))
    async with plain as prefill, decoding as decode:
        gateway = await shell([decode], prefill_url=prefill)
        response = await gateway.chat()
        error = message_of(await response.read())
    assert (response.status, error["code"]) == (502, BOOTSTRAP_ERROR)
    assert not decoding.log.requests


async def test_the_pair_is_lost_when_its_prefill_side_breaks_off(shell: Start) -> None:
    async with PdPair(SIDE.lying(Crash()), SIDE) as (prefill, decode):
        gateway = await shell([decode], prefill_url=prefill)
        response = await gateway.chat()
        error = message_of(await response.read())
    assert (response.status, error["code"]) == (502, "replica_lost")


@pytest.mark.parametrize("side", ["prefill", "decode"])
async def test_the_controller_is_asked_again_when_a_side_is_busy(shell: Start, side: str) -> None:
    busy = SIDE.lying(Refuse(status=503, retry_after_s=7))
    pair = PdPair(**{side: busy, "decode" if side == "prefill" else "prefill": SIDE})
    async with pair as (prefill, decode):
        gateway = await shell([decode], prefill_url=prefill)
        response = await gateway.chat()
    assert response.status == 503
    told = [what for kind, _, what in gateway.controller.told if kind == "refused"]
    assert told == [7_000_000_000]


@pytest.mark.parametrize("side", ["prefill", "decode"])
async def test_the_side_that_works_is_cancelled_when_the_client_leaves(shell: Start, until: Until, side: str) -> None:
    behaviours = {"prefill": SIDE.lying(SlowPrefill(delay_s=30)) if side == "prefill" else SIDE, "decode": SLOW}
    pair = PdPair(**behaviours)
    async with pair as (prefill, decode):
        gateway = await shell([decode], prefill_url=prefill)
        engine = getattr(pair, side)
        asking = asyncio.create_task(gateway.chat(stream=True, max_tokens=200))
        await until(lambda: bool(engine.log.requests))
        if side == "decode":
            response = await asking
            await response.content.readany()
            response.close()
        else:
            asking.cancel()
        await until(lambda: engine.log.last.ending is Ending.DISCONNECTED)
        await until(lambda: bool(gateway.controller.ended))
        assert [end.kind for end in gateway.controller.ended.values()] == [EndKind.CANCELLED]
        assert len(pair.decode.log.requests) == (1 if side == "decode" else 0)


def pair_config(prefill: str, decode: str, **more: object) -> dict[str, object]:
    return {"replica": [{"kind": "pd-pair", "prefill_url": prefill, "decode_url": decode, **more}]}


async def test_each_side_has_its_stages_when_a_pair_is_met(tmp_path: Path) -> None:
    sides = SIDE.but(kv_capacity_tokens=64_000), SIDE.but(kv_capacity_tokens=32_000)
    async with PdPair(*sides) as (prefill, decode):
        config = config_from(pair_config(prefill, decode), where=tmp_path / "fleet.toml")
        met = await meet(running_replicas(config), within_s=5, count_workers=1)
        (one,) = met.replicas
        rule, replica = one.ruled.rule, one.replica
        block = rule.pools[0].need.block_tokens
        await met.aclose()
    sizes = {pool.stage: pool.capacity_blocks for pool in rule.pools}
    assert sizes == {"prefill": 64_000 // block - 1, "decode": 32_000 // block - 1}  # each has a null block
    assert rule.prefill_stages == ("prefill", "prefill slots")
    assert one.ruled.cache_blocks == 64_000 // rule.block_tokens - 1  # prefixes are cached where prompts are computed
    async with Upstream() as upstream:
        fleet = Fleet((replica,), upstream)
        urls = str(fleet.entry(replica.name, Route.CHAT)), str(fleet.url(replica.name, Route.CHAT))
    assert urls == (f"{prefill}/v1/chat/completions", f"{decode}/v1/chat/completions")


@pytest.mark.parametrize(
    "section",
    [
        {"kind": "pd-pair", "prefill_url": "http://a"},
        {"kind": "pd-pair", "prefill_url": "http://a", "decode_url": "http://b", "url": "http://c"},
        {"url": "http://a", "decode_url": "http://b"},
        {"pool": "short"},
    ],
)
def test_a_replica_is_refused_when_its_addresses_do_not_fit_its_kind(
    tmp_path: Path, section: dict[str, object]
) -> None:
    with pytest.raises(UsageError, match="pd-pair"):
        config_from({"replica": [section]}, where=tmp_path / "fleet.toml")


async def test_a_pair_is_no_pair_when_a_side_is_another_engine(tmp_path: Path) -> None:
    async with PdPair(SIDE, SIDE) as (prefill, _), lying_engine() as other:
        config = config_from(pair_config(prefill, other), where=tmp_path / "fleet.toml")
        with pytest.raises(UsageError, match=r"decode_url .* is no vLLM"):
            await meet(running_replicas(config), within_s=0.1, count_workers=1)


def test_later_fields_overrule_when_a_body_gets_more() -> None:
    body = with_fields(b'{"model":"m","stream":true}\n ', {"stream": False})
    assert json.loads(body) == {"model": "m", "stream": False}


def test_a_replica_enters_where_it_answers_when_it_is_no_pair() -> None:
    assert Replica(name="a", url="http://a", models=(MODEL,)).entry_url == "http://a"
