"""Gateways that share their books through a real Valkey."""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import redis.asyncio
from sharing_gateway import Gateway
from valkey_server import Valkey

from longproof.domain.kv_event import KvStored
from longproof.errors import UsageError
from longproof.gateway.shared_codec import Booked, decode_booked, decode_message, encode_booked, stored_messages
from longproof.gateway.shared_store import SharedStore, StoreAddress, StoreLost
from longproof.policy.actions import Dispatch, Refusal, Wait
from longproof.policy.arrivals import Ended, EndKind
from longproof.policy.controller_config import KvBudget, TenantRule
from longproof.policy.peers import FleetUse, ReplicaUse, StageUse, TenantUse
from longproof.testing.controllers import arrival, replica_rule

DONE = Ended(kind=EndKind.COMPLETED)
RUN_SEED = 20261130
PATIENCE_S = 30.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Valkey]:
    one = Valkey(tmp_path_factory.mktemp("valkey"))
    one.start()
    yield one
    one.kill()


@pytest.fixture
def url(server: Valkey) -> str:
    """Every test leaves it empty: gateways give up their bookings when they close."""
    return server.url


async def until(holds: Callable[[], bool], what: str) -> None:
    """Waits for it; generous, for loaded machines."""
    end_s = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end_s, f"not within {PATIENCE_S:g} s: {what}"
        await asyncio.sleep(0.002)


@asynccontextmanager
async def running(*gateways: Gateway) -> AsyncIterator[None]:
    for gateway in gateways:
        gateway.sharing.start()
    try:
        for gateway in gateways:
            await until(lambda g=gateway: g.sharing.state.gateways >= len(gateways), "they know each other")
        yield
    finally:
        for gateway in gateways:
            await gateway.sharing.close()


async def test_what_one_gateway_books_the_other_holds(url: str) -> None:
    one, two = Gateway(url, "a"), Gateway(url, "b")
    async with running(one, two):
        assert isinstance(one.book("x", 700), Dispatch)
        await until(lambda: two.peer_blocks == 700, "b knows")
        assert isinstance(two.book("y", 400), Wait)
        one.controller.on_finish("x", DONE, one.clock.now_ns())
        await until(lambda: bool(two.acted), "room came free elsewhere, and y goes in")
        await until(lambda: one.peer_blocks == 400, "a knows")


async def test_a_gateway_that_leaves_gives_up_its_bookings_at_once(url: str) -> None:
    one, two = Gateway(url, "a", lease_s=600), Gateway(url, "b", lease_s=600)
    async with running(two):
        async with running(one):
            one.book("x", 700)
            await until(lambda: two.peer_blocks == 700, "b knows")
        await until(lambda: two.sharing.state.gateways == 1 and two.peer_blocks == 0, "b knows that a has gone")


async def test_a_killed_gateways_bookings_are_released_within_its_lease(url: str) -> None:
    script, lease_s = Path(__file__).parent / "sharing_gateway.py", 1.0
    child = await asyncio.create_subprocess_exec(
        sys.executable, str(script), url, "600", str(lease_s), stdout=asyncio.subprocess.PIPE
    )
    one = Gateway(url, "a", lease_s=lease_s)
    try:
        async with running(one):
            await until(lambda: one.peer_blocks == 600, "the child's booking is known")
            assert isinstance(one.book("waits", 500), Wait)
            child.kill()
            killed_s = time.monotonic()
            await until(lambda: one.peer_blocks == 0, "its lease has ended")
            assert time.monotonic() - killed_s < 10 * lease_s  # however loaded the machine is
            assert [action.id for action in one.acted] == ["waits"]  # type: ignore[attr-defined]
    finally:
        if child.returncode is None:
            child.kill()
        await child.wait()


async def test_a_store_that_dies_is_lived_without_and_found_again(tmp_path: Path) -> None:
    server = Valkey(tmp_path)
    server.start()
    one, two = Gateway(server.url, "a", lease_s=0.5), Gateway(server.url, "b", lease_s=0.5)
    try:
        async with running(one, two):
            one.book("x", 700)
            await until(lambda: two.peer_blocks == 700, "b knows")
            server.kill()
            await until(lambda: two.sharing.state.problem is not None, "b has noticed")
            (said,) = two.sharing.problems()
            assert f"127.0.0.1:{server.port}" in said
            assert isinstance(two.book("y", 200), Dispatch)  # nobody is refused for it
            await until(lambda: two.peer_blocks == 0, "what cannot be known any more is let go after a lease")
            assert two.sharing.state.gateways == 1
            server.start()
            await until(lambda: two.peer_blocks == 700 and one.peer_blocks == 200, "all is shared again")
            assert two.sharing.problems() == one.sharing.problems() == []
    finally:
        server.kill()


async def test_sharing_goes_on_and_says_so_when_the_store_holds_a_name_that_is_none(tmp_path: Path) -> None:
    server = Valkey(tmp_path)
    server.start()
    one = Gateway(server.url, "a", lease_s=2)
    store = redis.asyncio.Redis(port=server.port)
    try:
        async with running(one):
            await until(lambda: not one.sharing.problems(), "it shares")
            await store.hset("{test}:booked", b"\xff\xfe", b"no gateway's")
            await until(lambda: bool(one.sharing.problems()), "it says that something is wrong")
            await store.hdel("{test}:booked", b"\xff\xfe")
            await until(lambda: not one.sharing.problems(), "it shares again")
    finally:
        await store.aclose()
        server.kill()


async def test_a_gateway_starts_when_the_store_is_not_there(tmp_path: Path) -> None:
    one = Gateway(Valkey(tmp_path).url, "a")
    async with running(one):
        await until(lambda: bool(one.sharing.problems()), "it says so")
        assert isinstance(one.book("x", 700), Dispatch)


async def test_gateways_that_book_at_the_same_moment_stay_within_the_bound(url: str) -> None:
    """Each of 40 bookings of 60 of 1,000 blocks is tried at three gateways at once, faster than anything is told."""
    gateways = [Gateway(url, name) for name in "abc"]
    async with running(*gateways):
        for number in range(40):
            for gateway in gateways:
                gateway.book(f"{number}", 60)
            if number % 8 == 0:
                await asyncio.sleep(0)
        held = [gateway.controller.own_use().replicas["r0"].stages["kv"].blocks for gateway in gateways]
        assert sum(held) <= 950 + 2 * max(60, 950 // 3)  # a share or a request of each other gateway
        exchanges = [gateway.sharing.state.exchanges for gateway in gateways]
        await until(
            lambda: all(g.sharing.state.exchanges >= n + 3 for g, n in zip(gateways, exchanges, strict=True)), "told"
        )
        before = sum(g.controller.own_use().replicas["r0"].stages["kv"].blocks for g in gateways)
        for gateway in gateways:
            gateway.book("late", 60)
        after = sum(g.controller.own_use().replicas["r0"].stages["kv"].blocks for g in gateways)
        assert after == before  # everybody knows by now that it is full


async def test_one_budget_is_spent_once_when_its_tenant_asks_two_gateways(url: str) -> None:
    # 100 tokens and 10 of output are expected to stay 100 ms and 10 x 10 ms: 105 x 0.2 = 21 token-seconds of 40
    rule = TenantRule(name="t", budget=KvBudget(token_seconds_per_s=1e-6, burst_token_seconds=40))
    one, two = (Gateway(url, name, tenants=(rule,)) for name in "ab")

    def ask(gateway: Gateway, name: str) -> object:
        return gateway.controller.on_arrival(arrival(name, 100, 10, tenant="t"), gateway.clock.now_ns())

    def left(gateway: Gateway) -> float:
        (shown,) = gateway.controller.snapshot(gateway.clock.now_ns()).tenants or (None,)
        return 40.0 if shown is None or shown.balance_token_seconds is None else shown.balance_token_seconds

    async with running(one, two):
        assert isinstance(ask(one, "x"), Dispatch)
        await until(lambda: bool(two.controller.snapshot(two.clock.now_ns()).tenants), "b has heard of it")
        refused = ask(two, "y")
        assert isinstance(refused, Refusal)
        assert refused.code == "tenant_kv_budget"
        await until(lambda: left(one) < 38 and left(two) < 38, "what it holds is spent in both")
        one.controller.on_finish("x", DONE, one.clock.now_ns())
        await until(lambda: abs(left(one) - left(two)) < 0.01, "b knows all that was spent")
        rest = left(one)
        three = Gateway(url, "c", tenants=(rule,))
        async with running(three):
            await until(lambda: left(three) < 40, "one that comes later begins with what is left")
            assert left(three) == pytest.approx(rest, abs=0.01)
    assert left(one) == pytest.approx(rest, abs=0.01)  # nobody takes with it what it has spent


async def test_prompts_that_no_engine_tells_of_are_told_by_the_gateway(url: str) -> None:
    rules = tuple(replica_rule(name, capacity_blocks=10_000, block_tokens=16) for name in ("r0", "r1"))
    one, two = (Gateway(url, name, rules=rules, events=False) for name in "ab")
    names = tuple(range(1, 101))
    async with running(one, two):
        sent = one.controller.on_arrival(arrival("x", 1_600, blocks=names), one.clock.now_ns())
        assert isinstance(sent, Dispatch)
        one.controller.on_first_token("x", one.clock.now_ns())
        one.controller.on_finish("x", DONE, one.clock.now_ns())
        await until(lambda: two.router.index.match(sent.replica, names).blocks == 100, "b knows what is cached")
        again = two.controller.on_arrival(arrival("y", 1_616, blocks=(*names, 101)), two.clock.now_ns())
        assert isinstance(again, Dispatch)
        assert (again.replica, again.cached_tokens) == (sent.replica, 1_600)


async def test_an_engine_that_tells_is_believed_alone(url: str) -> None:
    one, two = Gateway(url, "a", events=False), Gateway(url, "b", events=True)
    async with running(one, two):
        one.controller.on_arrival(arrival("x", 100, blocks=tuple(range(1, 101))), one.clock.now_ns())
        one.controller.on_first_token("x", one.clock.now_ns())
        one.controller.on_finish("x", DONE, one.clock.now_ns())
        await until(lambda: two.sharing.state.stores_heard > 0, "b hears of it")
        assert two.router.index.known_blocks("r0") == 0


async def test_two_gateways_on_one_event_stream_choose_alike(url: str) -> None:
    """aibrix#917: several gateways, each with an index of its own."""
    chance = random.Random(RUN_SEED)
    rules = tuple(
        replica_rule(f"r{n}", capacity_blocks=20_000, block_tokens=16, tokens_per_s=100_000) for n in range(4)
    )
    pair = [Gateway(url, name, rules=rules) for name in "ab"]
    talks = [[chance.randrange(2**64) for _ in range(40)] for _ in range(24)]
    same = 0
    async with running(*pair):
        for number in range(100):
            talk = chance.choice(talks)
            talk.append(chance.randrange(2**64))
            wanted = arrival(f"q{number}", 16 * len(talk) + 3, 20, blocks=tuple(talk))
            sent, other = pair[number % 2], pair[1 - number % 2]
            choices: list[str | None] = []
            for gateway in pair:
                now_ns, replicas = gateway.clock.now_ns(), list(gateway.controller._replicas.values())
                for replica in replicas:
                    replica.find_room(wanted.id, wanted.input_tokens, wanted.input_tokens + 20, wanted.blocks, now_ns)
                choices.append(gateway.router.choose(wanted, replicas, now_ns).replica)
            same += choices[0] == choices[1]
            decision = sent.controller.on_arrival(wanted, sent.clock.now_ns())
            assert isinstance(decision, Dispatch)
            sent.controller.on_first_token(wanted.id, sent.clock.now_ns())
            for gateway in pair:
                gateway.controller.on_kv_event(decision.replica, KvStored(blocks=tuple(talk)), gateway.clock.now_ns())
            sent.controller.on_finish(wanted.id, DONE, sent.clock.now_ns())
            await until(other.hears_of(sent), "the other has heard of it")
    assert same >= 0.95 * 100, f"{same} of 100"


def test_bookings_come_back_from_bytes_exactly() -> None:
    use = FleetUse(
        replicas={"r0": ReplicaUse(stages={"kv": StageUse(blocks=7, requests=2)}, prefilling=1, recent_tokens=2.5)},
        short_age_ns=9,
        tenants={"t": TenantUse(spent_token_ms=3, expected_token_ms=4, left_token_ms=-5)},
    )
    assert decode_booked(encode_booked(Booked(number=4, use=use))) == Booked(number=4, use=use)
    (message,) = stored_messages("gate", "r0", (1, 2**64 - 1))
    heard = decode_message(message)
    assert heard is not None
    assert (heard.gateway, heard.replica, heard.blocks) == ("gate", "r0", (1, 2**64 - 1))


@pytest.mark.parametrize("seed", range(3))
def test_rubbish_in_the_store_is_left_out(seed: int) -> None:
    chance = random.Random(seed)
    good = encode_booked(Booked(number=1, use=FleetUse(replicas={"r": ReplicaUse()})))
    for _ in range(300):
        data = bytearray(chance.choice([good, b"B\x01a" + good, b"S\x01a\x01r" + bytes(16)]))
        for _ in range(chance.randrange(1, 4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        decode_booked(bytes(data))
        decode_message(bytes(data[: chance.randrange(len(data) + 1)]))
    negative = FleetUse(replicas={"r": ReplicaUse(stages={"kv": StageUse(blocks=-5)})})
    assert decode_booked(encode_booked(Booked(number=1, use=negative))) is None
    refunded = FleetUse(tenants={"t": TenantUse(spent_token_ms=-1)})
    assert decode_booked(encode_booked(Booked(number=1, use=refunded))) is None
    assert decode_booked(encode_booked(Booked(number=1, use=FleetUse(), version=2))) is None


@pytest.mark.parametrize("wrong", ["http://host:1", "valkey://", "localhost:6379"])
def test_an_address_is_refused_when_it_is_none(wrong: str) -> None:
    with pytest.raises(UsageError, match="Valkey or Redis"):
        SharedStore(StoreAddress(url=wrong, fleet="f", lease_ms=1, timeout_s=1), "a")


async def test_a_password_is_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORE_PASSWORD", "hunter2")
    address = StoreAddress(
        url="valkey://me:hunter1@127.0.0.1:1/0", fleet="f", lease_ms=1, timeout_s=1, password_env="STORE_PASSWORD"
    )
    assert address.shown == "valkey://127.0.0.1:1/0"
    store = SharedStore(address, "a")
    with pytest.raises(StoreLost) as lost:
        await store.exchange(b"", changed=False)
    await store.aclose()
    assert "hunter" not in str(lost.value)
    monkeypatch.delenv("STORE_PASSWORD")
    with pytest.raises(UsageError, match="STORE_PASSWORD is not set"):
        SharedStore(address, "a")
