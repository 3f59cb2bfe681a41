"""Keys: who gets in, and how much of each is open."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from gateway_standin import MODEL, Shell

from longproof.gateway.errors import ApiError
from longproof.gateway.fleet import Replica
from longproof.gateway.keys import KeyRing, KeyRule, key_digest, require_within
from longproof.testing.lying_engine import HONEST, lying_engine

Start = Callable[..., Awaitable[Shell]]
NS_PER_S = 1_000_000_000


def rule(name: str = "a", **settings: object) -> KeyRule:
    return KeyRule(**{"name": name, "digest": key_digest(f"sk-{name}"), "tenant": f"t-{name}", **settings})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "given",
    [
        [],
        ["sk-a"],
        ["Bearer sk-b"],
        ["Bearer "],
        ["Basic sk-a"],
        ["Bearer sk-a", "Bearer sk-a"],
        ["Bearer " + "k" * 9_999],
        ["Bearer \udcff\udcfe"],  # bytes that are no UTF-8, as the HTTP parser hands them on
    ],
)
def test_nobody_gets_in_when_the_key_is_not_one_of_ours(given: list[str]) -> None:
    with pytest.raises(ApiError) as refused:
        KeyRing.of([rule()]).rule_of(given)
    assert refused.value.problem.status == 401
    assert "sk-" not in refused.value.problem.message


def test_the_rule_is_found_when_the_key_is_right() -> None:
    ring = KeyRing.of([rule(), rule("b")])
    assert ring.rule_of(["bearer sk-b"]).tenant == "t-b"


def test_a_minute_of_requests_fills_steadily_when_it_was_spent() -> None:
    limited = rule(per_minute=60)
    ring = KeyRing.of([limited])
    for _ in range(60):
        ring.enter(limited, MODEL, 0)
    with pytest.raises(ApiError) as refused:
        ring.enter(limited, MODEL, NS_PER_S // 2)  # half a request has come back
    assert (refused.value.problem.status, refused.value.problem.retry_after_s) == (429, 1)
    ring.enter(limited, MODEL, NS_PER_S)


def test_a_bound_of_the_length_refuses_only_what_is_known_to_exceed_it() -> None:
    limited = rule(most_input_tokens=100, most_output_tokens=10)
    require_within(limited, 101, 10, known=False)
    for sizes in ((101, 10), (100, 11)):
        with pytest.raises(ApiError):
            require_within(limited, *sizes, known=True)


async def test_a_key_is_asked_for_and_never_passed_on_when_the_gateway_has_keys(shell: Start) -> None:
    engine = lying_engine()
    async with engine as url:
        gateway = await shell([url], keys=[rule()])
        refused = await gateway.chat()
        taken = await gateway.chat(headers={"Authorization": "Bearer sk-a"})
    assert (refused.status, taken.status) == (401, 200)
    assert len(engine.log.requests) == 1
    assert "authorization" not in engine.log.last.headers
    assert gateway.books.intents[0].tenant == "t-a"


async def test_one_more_is_refused_when_a_keys_requests_are_all_open(shell: Start) -> None:
    engine = lying_engine(HONEST.but(token_s=0.05))
    async with engine as url:
        gateway = await shell([url], keys=[rule(most_open=1)])
        key = {"Authorization": "Bearer sk-a"}
        running = await gateway.chat(stream=True, max_tokens=1_000, headers=key)
        refused = await gateway.chat(headers=key)
        running.close()
        async with asyncio.timeout(60):
            while (again := await gateway.chat(headers=key)).status != 200:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    assert refused.status == 429
    assert int(refused.headers["Retry-After"]) >= 1
    assert again.status == 200


async def test_a_model_is_neither_shown_nor_served_when_a_key_may_not_use_it(shell: Start) -> None:
    async with lying_engine() as url:
        gateway = await shell([url], keys=[rule(models=("other",))])
        key = {"Authorization": "Bearer sk-a"}
        refused = await gateway.chat(headers=key)
        async with gateway.session.get(f"{gateway.url}/v1/models", headers=key) as response:
            shown = (await response.json())["data"]
        async with gateway.session.get(f"{gateway.url}/v1/models/{MODEL}", headers=key) as response:
            hidden = (await response.json())["error"]["message"]
        said = (await refused.json())["error"]["message"]
    assert refused.status == 403
    assert said == f"this key may not use '{MODEL}'; it may use: other"
    assert shown == []
    assert hidden.endswith("served are: none")


async def test_the_salt_is_the_tenants_own_when_its_prefixes_are_apart(shell: Start) -> None:
    engine = lying_engine()
    async with engine as url:
        gateway = await shell([url], keys=[rule(prefix_salt="s1"), rule("b", prefix_salt="s2"), rule("c")])
        for name, salt in (("a", "x"), ("b", "x"), ("a", "y"), ("a", "x"), ("c", "x")):
            await gateway.chat(headers={"Authorization": f"Bearer sk-{name}"}, cache_salt=salt)
    salts = [served.options["cache_salt"] for served in engine.log.requests]
    assert salts[0] == salts[3]
    assert len(set(salts)) == 4
    assert salts[4] == "x"  # whose prefixes are shared chooses for itself


@pytest.mark.parametrize("apart", [True, False])
async def test_nothing_cached_is_used_when_tenants_are_apart_and_the_engine_knows_no_salt(
    shell: Start, apart: bool
) -> None:
    engine = lying_engine()
    async with engine as url:
        gateway = await shell([url], keys=[rule(prefix_salt="s1" if apart else ""), rule("b")])
        fleet = next(iter(gateway.routes.exact.values())).__self__._around.fleet  # type: ignore[attr-defined]
        fleet.take([Replica(name="r0", url=url, models=(MODEL,), salts=False)])
        found = []
        for name in ("a", "a", "b"):
            answer = await gateway.chat("word " * 300, headers={"Authorization": f"Bearer sk-{name}"})
            found.append((await answer.json())["usage"]["prompt_tokens_details"]["cached_tokens"])
    assert found[0] == 0
    assert [tokens > 0 for tokens in found[1:]] == [not apart, not apart]


@pytest.mark.parametrize(("words", "status"), [(60, 200), (400, 400)])
async def test_a_keys_longest_input_holds_for_texts_too(shell: Start, words: int, status: int) -> None:
    async with lying_engine() as url:
        gateway = await shell([url], keys=[rule(most_input_tokens=200)])
        response = await gateway.chat("word " * words, headers={"Authorization": "Bearer sk-a"})
        body = await response.json()
    # the shell's counting takes a quarter of a body's bytes for its exact length: 2,000 bytes of text are 500 and more
    assert response.status == status, body
    if status == 400:
        assert (body["error"]["code"], body["error"]["limit"]) == ("key_input_tokens", 200)
        assert body["error"]["actual"] >= 500


@pytest.mark.parametrize("fields", [{}, {"max_completion_tokens": None, "n_predict": None}])
async def test_a_keys_longest_output_is_the_allowance_when_none_is_named(
    shell: Start, fields: dict[str, object]
) -> None:
    engine = lying_engine()
    async with engine as url:
        gateway = await shell([url], keys=[rule(most_output_tokens=7)])
        body = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "ignore_eos": True, **fields}
        headers = {"Authorization": "Bearer sk-a"}
        async with gateway.session.post(f"{gateway.url}/v1/chat/completions", json=body, headers=headers) as response:
            usage = (await response.json())["usage"]
            assert response.status == 200
    assert usage["completion_tokens"] == 7
    assert [arrival.output_tokens for arrival in gateway.controller.names("arrival")] == [7]  # type: ignore[attr-defined]
