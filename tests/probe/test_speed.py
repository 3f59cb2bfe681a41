"""The speed probe against the lying engine: what it sends, in which order, and what a resumed run does."""

from __future__ import annotations

from pathlib import Path

import pytest
from probing import Allowance, findings, probing, requests, said, statement

from longproof.asking.context import BudgetSpent
from longproof.claim.findings import speed as reader
from longproof.claim.statements import Finding, NotShown, Statement
from longproof.domain.measure import Measured
from longproof.evidence.records import NoteBody
from longproof.probe import speed
from longproof.testing.behaviour import Behaviour
from longproof.testing.dialects import OPENAI, VLLM
from longproof.testing.lies import BigChunks, ClampOutput, FalseCached, NoUsage, Refuse
from longproof.testing.lying_engine import HONEST, LyingEngine, lying_engine

LENGTHS = (200, 400, 800)
APART = HONEST.but(token_s=0.02)
"""Its tokens come one by one, also to a client that is held up: those that come in one read have no time between."""


async def run(server: LyingEngine, directory: Path, repeats: int = 2) -> list[Statement | Finding | NotShown]:
    async with probing(server.url, directory) as ctx:
        await speed.run(ctx, LENGTHS, repeats)
        return said(ctx, reader.read)


async def test_rounds_go_short_to_long_after_a_warm_up_when_the_probe_runs(tmp_path: Path) -> None:
    async with (server := lying_engine()), probing(server.url, tmp_path) as ctx:
        await speed.run(ctx, (800, 200, 400, 200), 2)
        sent = requests(ctx)
    assert list(sent) == [
        "speed/warmup",
        *(f"speed/cold/{length}/{repeat}" for repeat in range(2) for length in LENGTHS),
    ]
    assert sent["speed/warmup"].cell == {"arm": "warmup", "length": 200, "repeat": 0}
    assert sent["speed/cold/400/1"].cell == {"arm": "cold", "length": 400, "repeat": 1}
    assert [request.prompt_tokens for request in server.log.requests] == [200, *LENGTHS, *LENGTHS]
    assert len({body.prompt_sha256 for body in sent.values()}) == len(sent)


async def test_requests_forbid_the_cache_and_are_sampled_when_the_engine_can(tmp_path: Path) -> None:
    async with (server := lying_engine()), probing(server.url, tmp_path) as ctx:
        await speed.run(ctx, (200,), 1)
        body = requests(ctx)["speed/cold/200/0"]
    assert server.log.last.options["cache_prompt"] is False
    assert server.log.last.cached_tokens == 0
    assert body.before is not None
    assert body.after is not None
    assert body.timeline.max_tokens == 8


async def test_nothing_is_asked_twice_and_the_engine_is_warmed_again_when_a_run_resumes(tmp_path: Path) -> None:
    """Four requests pass (warm-up and one round of three less one): the second session warms up and asks the other
    four.
    """
    async with (server := lying_engine()):
        async with probing(server.url, tmp_path, allowance=Allowance(3)) as ctx:
            with pytest.raises(BudgetSpent):
                await speed.run(ctx, LENGTHS, 2)
            first = requests(ctx)
        async with probing(server.url, tmp_path) as ctx:
            await speed.run(ctx, LENGTHS, 2)
            both = requests(ctx)
            await speed.run(ctx, LENGTHS, 2)
            assert requests(ctx) == both
    assert list(first) == ["speed/warmup", "speed/cold/200/0", "speed/cold/400/0"]
    assert list(both)[3:] == [
        "speed/warmup/2",
        "speed/cold/800/0",
        "speed/cold/200/1",
        "speed/cold/400/1",
        "speed/cold/800/1",
    ]
    assert {key: both[key] for key in first} == first


async def test_other_lengths_go_on_when_one_cannot_be_promised(tmp_path: Path) -> None:
    """Nine tokens hold neither template nor nonce."""
    async with (server := lying_engine()), probing(server.url, tmp_path) as ctx:
        await speed.run(ctx, (9, 200), 1)
        assert list(requests(ctx)) == ["speed/cold/200/0"]
        notes = [record.body for record in ctx.journal.records if isinstance(record.body, NoteBody)]
        found = said(ctx, reader.read)
    assert {note.what for note in notes} == {"shared_prefix", "length_unproven"}
    assert [item.topic for item in found if isinstance(item, NotShown)] == ["speed_at_9"]


@pytest.mark.parametrize("behaviour", [APART, APART.but(dialect=VLLM), APART.but(dialect=OPENAI)])
async def test_an_honest_engine_gives_numbers_and_no_finding_when_read(behaviour: Behaviour, tmp_path: Path) -> None:
    async with (server := lying_engine(behaviour)):
        found = await run(server, tmp_path)
    assert findings(found) == []
    for length in LENGTHS:
        for metric in ("ttft", "tpot", "itl", "e2e", "prefill_rate", "decode_rate"):
            assert isinstance(statement(found, metric, length).value, Measured), (metric, length)
        assert statement(found, "ttft", length).n == 2
        assert statement(found, "success_rate", length).samples == (1.0, 1.0)


async def test_the_engines_own_clock_is_compared_when_it_has_one(tmp_path: Path) -> None:
    """Client TTFT can only be later than the engine's; both engines with a clock of their own say so per length."""
    for name, behaviour, clock in (
        ("llama.cpp", HONEST, "timings.prompt_ms"),
        ("vllm", HONEST.but(dialect=VLLM), "histogram"),
    ):
        async with (server := lying_engine(behaviour)):
            found = await run(server, tmp_path / name)
        gap = statement(found, "engine_ttft_gap", 800)
        assert clock in gap.conditions["engine_clock"]
        assert isinstance(gap.value, Measured)
        assert 0 < gap.value.value < 10


async def test_a_fault_is_found_and_samples_are_left_out_when_fresh_prompts_are_said_to_be_cached(
    tmp_path: Path,
) -> None:
    async with (server := lying_engine(HONEST.lying(FalseCached(fraction=0.5, above_tokens=300)))):
        found = await run(server, tmp_path)
    assert findings(found) == ["speed.cached_while_cold"]
    assert statement(found, "ttft", 200).n == 2
    assert statement(found, "ttft", 800).n == 0
    assert statement(found, "ttft", 800).conditions["left_out"] == "2 not cold"


async def test_refused_and_clamped_work_enters_no_rate_when_there_is_some(tmp_path: Path) -> None:
    async with (
        server := lying_engine(HONEST.lying(Refuse(above_tokens=700), ClampOutput(above_tokens=300, tokens=2)))
    ):
        found = await run(server, tmp_path)
    assert statement(found, "prefill_rate", 800).n == 0
    assert statement(found, "success_rate", 800).samples == (0.0, 0.0)
    assert "2 refused as busy" in statement(found, "success_rate", 800).text
    assert "2 completed with less output than asked for" in statement(found, "success_rate", 400).text
    assert statement(found, "success_rate", 200).samples == (1.0, 1.0)


async def test_gaps_between_chunks_are_not_gaps_between_tokens_when_chunks_hold_several(tmp_path: Path) -> None:
    async with (server := lying_engine(APART.lying(BigChunks(tokens=4)))):
        found = await run(server, tmp_path, repeats=1)
    assert statement(found, "itl", 200).n == 0
    assert "not one token each" in statement(found, "itl", 200).text
    assert statement(found, "tpot", 200).n == 1


async def test_time_per_token_is_unknown_when_usage_is_missing(tmp_path: Path) -> None:
    async with (server := lying_engine(HONEST.lying(NoUsage()))):
        found = await run(server, tmp_path, repeats=1)
    assert statement(found, "tpot", 200).n == 0
    assert statement(found, "ttft", 200).n == 1
    assert statement(found, "ttft", 200).conditions["cold_by"] == "fresh nonce; no cached tokens by metrics"


async def test_coldness_rests_on_the_nonce_alone_when_the_server_reports_no_cached_tokens(tmp_path: Path) -> None:
    async with (server := lying_engine(HONEST.but(dialect=OPENAI, reports_cached=False))):
        found = await run(server, tmp_path, repeats=1)
    assert statement(found, "ttft", 200).conditions["cold_by"].endswith("does not report cached tokens")
