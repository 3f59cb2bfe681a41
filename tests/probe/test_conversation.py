"""Conversations with the lying engine: turns grow on what was said, several at once, and what is read from them."""

from __future__ import annotations

from pathlib import Path

import pytest
from probing import Allowance, findings, probing, said

from longproof.asking.context import BudgetSpent
from longproof.claim.findings import conversation as reader
from longproof.claim.statements import Finding, NotShown, Statement
from longproof.domain.measure import Measured
from longproof.domain.request import Route
from longproof.evidence.records import RequestBody, WindowBody
from longproof.probe import conversation
from longproof.probe.conversation import ConversationPlan, cost
from longproof.testing.builders import build_protocol
from longproof.testing.dialects import LLAMACPP, OPENAI, VLLM, Dialect
from longproof.testing.lying_engine import HONEST, lying_engine

ENGINE = HONEST.but(dialect=VLLM, slots=8, prefill_tokens_per_s=8_000.0, token_s=0.001, cache_entries=16)
PLAN = ConversationPlan(first_tokens=1024, delta_tokens=128, turns=3, concurrencies=(1, 2), repeats=3)


def of(found: list[Statement | Finding | NotShown], id_: str) -> float:
    statement = next(item for item in found if isinstance(item, Statement) and item.id == id_)
    assert isinstance(statement.value, Measured)
    return statement.value.value


@pytest.mark.parametrize("dialect", [VLLM, LLAMACPP, OPENAI], ids=lambda dialect: dialect.name)
async def test_later_turns_are_cheap_and_nothing_is_found_when_the_engine_caches(
    dialect: Dialect, tmp_path: Path
) -> None:
    async with (server := lying_engine(ENGINE.but(dialect=dialect))), probing(server.url, tmp_path) as ctx:
        await conversation.run(ctx, PLAN)
        found = said(ctx, reader.read)
    assert findings(found) == []
    assert of(found, "conversation.conversation_cached_fraction.c1.turn3") > 0.8
    assert of(found, "conversation.conversation_cached_fraction.c2.turn3") > 0.8


async def test_every_turn_holds_what_was_said_before_when_a_conversation_goes_on(tmp_path: Path) -> None:
    async with (server := lying_engine(ENGINE)), probing(server.url, tmp_path) as ctx:
        await conversation.run(ctx, ConversationPlan(**{**_fields(PLAN), "concurrencies": (2,), "repeats": 1}))
        bodies = [record.body for record in ctx.journal.records if isinstance(record.body, RequestBody)]
    assert [(body.cell["turn"], body.cell["conversation"]) for body in sorted(bodies, key=_place)] == [
        (turn, index) for turn in (1, 2, 3) for index in (0, 1)
    ]
    first, second, third = (body.timeline.prompt_tokens_sent for body in bodies if body.cell["conversation"] == 0)
    assert first == 1024
    # answer (8) and question (about 128 with its own template; a turn's template is a little more or less than that)
    assert second is not None
    assert third is not None
    assert 110 < second - 1024 < 180
    assert 110 < third - second < 180
    assert all(body.timeline.usage is not None for body in bodies)
    told = [body.timeline.usage.prompt_tokens for body in bodies if body.timeline.usage is not None]
    assert told == [body.timeline.prompt_tokens_sent for body in bodies]


def _place(body: RequestBody) -> tuple[int, int]:
    return int(body.cell["turn"]), int(body.cell["conversation"])


def _fields(plan: ConversationPlan) -> dict[str, int | tuple[int, ...]]:
    return {name: getattr(plan, name) for name in ConversationPlan.__slots__}


async def test_every_turn_is_cold_when_the_engine_keeps_nothing(tmp_path: Path) -> None:
    """A quarter of a second for the first turn and more for the later ones: what a busy machine adds is less."""
    engine = ENGINE.but(cache_entries=0, prefill_tokens_per_s=4_000.0)
    plan = ConversationPlan(first_tokens=1024, delta_tokens=128, turns=3, concurrencies=(1,), repeats=5)
    async with (server := lying_engine(engine)), probing(server.url, tmp_path) as ctx:
        await conversation.run(ctx, plan)
        assert findings(said(ctx, reader.read)) == ["conversation.every_turn_cold"]


async def test_a_cache_is_lost_when_more_talk_than_it_has_places(tmp_path: Path) -> None:
    """Two sequences are kept: one conversation finds its own, eight push each other out."""
    plan = ConversationPlan(first_tokens=1024, delta_tokens=128, turns=3, concurrencies=(1, 8), repeats=3)
    async with (server := lying_engine(ENGINE.but(cache_entries=2))), probing(server.url, tmp_path) as ctx:
        await conversation.run(ctx, plan)
        assert findings(said(ctx, reader.read)) == ["conversation.cache_lost"]


async def test_ids_go_on_where_they_ended_when_prompts_are_sent_as_ids(tmp_path: Path) -> None:
    protocol = build_protocol(output_tokens=8, route=Route.COMPLETIONS)
    plan = ConversationPlan(first_tokens=600, delta_tokens=64, turns=3, concurrencies=(1,), repeats=1)
    async with (server := lying_engine(ENGINE)), probing(server.url, tmp_path, protocol=protocol) as ctx:
        await conversation.run(ctx, plan)
        found = said(ctx, reader.read)
        turns = [record.key for record in ctx.journal.records if isinstance(record.body, WindowBody)]
    assert turns == [f"conversation/c1/0/1/turn{turn}" for turn in (1, 2, 3)]
    assert of(found, "conversation.conversation_cached_fraction.c1.turn3") > 0.8


async def test_a_torn_conversation_begins_anew_when_a_run_resumes(tmp_path: Path) -> None:
    plan = ConversationPlan(first_tokens=600, delta_tokens=64, turns=3, concurrencies=(1,), repeats=1)
    async with (server := lying_engine(ENGINE)):
        async with probing(server.url, tmp_path, allowance=Allowance(2)) as ctx:
            with pytest.raises(BudgetSpent):
                await conversation.run(ctx, plan)
        async with probing(server.url, tmp_path) as ctx:
            await conversation.run(ctx, plan)
            turns = [record.key for record in ctx.journal.records if isinstance(record.body, WindowBody)]
            await conversation.run(ctx, plan)
            assert len([record for record in ctx.journal.records if isinstance(record.body, WindowBody)]) == 5
    assert turns == [
        *(f"conversation/c1/0/1/turn{turn}" for turn in (1, 2)),
        *(f"conversation/c1/0/2/turn{turn}" for turn in (1, 2, 3)),
    ]


def test_cost_counts_every_turn_at_its_length_when_planned() -> None:
    """(1 + 2) conversations × 3 repeats × 3 turns; lengths 1,024, 1,160, 1,296 and 8 tokens of output each."""
    assert cost(PLAN, 8) == (27, 9 * (1024 + 1160 + 1296 + 24))
    assert PLAN.longest_tokens(8) == 1024 + 8 + 2 * 136


@pytest.mark.engine
async def test_the_embedded_engine_keeps_a_conversation_when_it_goes_on(embedded_url: str, tmp_path: Path) -> None:
    """One slot, 256 tokens and then about 64 more a turn: later turns find what was there before."""
    plan = ConversationPlan(first_tokens=256, delta_tokens=64, turns=3, concurrencies=(1,), repeats=1)
    protocol = build_protocol(output_tokens=4)
    async with probing(embedded_url, tmp_path, protocol=protocol) as ctx:
        await conversation.run(ctx, plan)
        found = said(ctx, reader.read)
    assert findings(found) == []
    assert of(found, "conversation.conversation_cached_fraction.c1.turn2") > 0.9
    assert of(found, "conversation.conversation_cached_fraction.c1.turn3") > 0.9
