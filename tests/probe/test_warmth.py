"""The warmth probe against the lying engine: which arms it asks, what a resumed run does, and what is read from it."""

from __future__ import annotations

from pathlib import Path

import pytest
from probing import Allowance, findings, probing, requests, said, statement

from longproof.asking.context import BudgetSpent
from longproof.claim.findings import warmth as reader
from longproof.claim.statements import Finding, NotShown, Severity, Standing, Statement
from longproof.domain.measure import Measured
from longproof.probe import warmth
from longproof.testing.builders import build_protocol
from longproof.testing.dialects import LLAMACPP, OPENAI, VLLM, Dialect
from longproof.testing.lies import FalseCached, HideCached, IgnoreCold
from longproof.testing.lying_engine import HONEST, LyingEngine, lying_engine

LENGTHS = (600, 1200)
SLOW = HONEST.but(prefill_tokens_per_s=4_000.0)
"""150 and 300 ms of prefill, for tests in which times tell: what a busy machine adds is less."""


async def run(server: LyingEngine, directory: Path, repeats: int = 2) -> list[Statement | Finding | NotShown]:
    async with probing(server.url, directory) as ctx:
        await warmth.run(ctx, LENGTHS, repeats)
        return said(ctx, reader.read)


async def test_arms_of_a_pair_follow_each_other_when_the_probe_runs(tmp_path: Path) -> None:
    async with (server := lying_engine(HONEST)), probing(server.url, tmp_path) as ctx:
        await warmth.run(ctx, LENGTHS, 2)
        sent = requests(ctx)
    arms = ("cold", "again", "new_tail")
    assert list(sent) == [
        *(f"warmth/{arm}/600/0" for arm in arms),
        "warmth/forbidden/600/0",
        *(f"warmth/{arm}/1200/0" for arm in arms),
        *(f"warmth/{arm}/600/1" for arm in arms),
        *(f"warmth/{arm}/1200/1" for arm in arms),
    ]
    cold, again, tail = (sent[f"warmth/{arm}/1200/0"] for arm in arms)
    assert cold.prompt_sha256 == again.prompt_sha256 != tail.prompt_sha256
    assert cold.cell == {"arm": "cold", "length": 1200, "repeat": 0, "nonce": cold.nonce}
    really = [(request.cached_tokens, request.options.get("cache_prompt", True)) for request in server.log.requests]
    assert really[0][0] < 20  # the template's beginning, by chance also a word of the nonce
    assert really[1] == (599, True)  # all but the last token, which must be computed anew
    assert 480 < really[2][0] < 600 - 64  # the tail is at least 64 tokens, and the template's end follows it
    assert really[3] == (0, False)


async def test_a_torn_pair_is_warmed_again_when_a_run_resumes(tmp_path: Path) -> None:
    """The engine was restarted meanwhile, with an empty cache: without a new warm-up `again` would be as slow as
    cold.
    """
    async with (server := lying_engine(HONEST)):
        async with probing(server.url, tmp_path, allowance=Allowance(1)) as ctx:
            with pytest.raises(BudgetSpent):
                await warmth.run(ctx, (600,), 1)
        server.stop()
        server.start()
        async with probing(server.url, tmp_path) as ctx:
            await warmth.run(ctx, (600,), 1)
            sent = requests(ctx)
            await warmth.run(ctx, (600,), 1)
            assert requests(ctx) == sent
            found = said(ctx, reader.read)
    assert list(sent) == [
        "warmth/cold/600/0",
        "warmth/rewarm/600/0/2",
        "warmth/again/600/0",
        "warmth/new_tail/600/0",
        "warmth/forbidden/600/0",
    ]
    assert sent["warmth/cold/600/0"].prompt_sha256 == sent["warmth/again/600/0"].prompt_sha256
    assert sent["warmth/cold/600/0"].cell["nonce"] == sent["warmth/again/600/0"].cell["nonce"]
    assert statement(found, "cached_fraction", 600).samples == (599 / 600,)
    assert statement(found, "warm_ttft_ratio", 600).n == 1


@pytest.mark.parametrize("dialect", [LLAMACPP, VLLM, OPENAI], ids=lambda dialect: dialect.name)
async def test_an_honest_engine_gives_ratios_and_no_finding_when_read(dialect: Dialect, tmp_path: Path) -> None:
    async with (server := lying_engine(SLOW.but(dialect=dialect))):
        found = await run(server, tmp_path)
    assert findings(found) == []
    for length in LENGTHS:
        ratio = statement(found, "warm_ttft_ratio", length)
        assert isinstance(ratio.value, Measured)
        assert ratio.value.value < 0.6
        assert ratio.n == 2
        tail = statement(found, "new_tail_cached_fraction", length)
        assert isinstance(tail.value, Measured)
        assert 0.6 < tail.value.value < 0.95
    assert statement(found, "prefix_reuse", None).id == "warmth.reuse"


async def test_no_reuse_is_a_statement_and_no_fault_when_the_server_keeps_nothing(tmp_path: Path) -> None:
    async with (server := lying_engine(HONEST.but(cache_entries=0))):
        found = await run(server, tmp_path)
    assert findings(found) == []
    reuse = statement(found, "prefix_reuse", None)
    assert (reuse.id, reuse.standing) == ("warmth.no_reuse", Standing.REFUTED)
    assert statement(found, "cached_fraction", 1200).samples == (0.0, 0.0)


@pytest.mark.parametrize("in_metrics", [True, False])
async def test_a_hidden_cache_is_a_fault_when_times_or_counters_betray_it(in_metrics: bool, tmp_path: Path) -> None:
    async with (server := lying_engine(SLOW.lying(HideCached(in_metrics=in_metrics)))):
        found = await run(server, tmp_path)
    assert findings(found) == ["warmth.cache_not_reported"]
    finding = next(item for item in found if isinstance(item, Finding))
    assert finding.severity is Severity.FAULT
    assert ("metrics count" in finding.text) is not in_metrics


async def test_fresh_prompts_said_to_be_cached_are_a_fault_and_left_out_when_read(tmp_path: Path) -> None:
    async with (server := lying_engine(HONEST.lying(FalseCached(fraction=0.5)))):
        found = await run(server, tmp_path)
    assert "warmth.cached_while_cold" in findings(found)
    assert not [item for item in found if isinstance(item, Statement)]


async def test_a_forbidden_cache_that_is_used_is_a_fault_when_read(tmp_path: Path) -> None:
    async with (server := lying_engine(HONEST.lying(IgnoreCold()))):
        found = await run(server, tmp_path)
    assert findings(found) == ["warmth.cold_ignored"]


@pytest.mark.engine
async def test_the_embedded_engine_reuses_its_cache_and_says_so_when_asked(embedded_url: str, tmp_path: Path) -> None:
    """192 tokens less about 25 of template and nonce leave a tail of 64 and its end: a little over half is kept."""
    async with probing(embedded_url, tmp_path, protocol=build_protocol(output_tokens=2)) as ctx:
        await warmth.run(ctx, (192,), 1)
        found = said(ctx, reader.read)
    assert findings(found) == []
    (share,) = statement(found, "cached_fraction", 192).samples
    assert share > 0.9
    (share,) = statement(found, "new_tail_cached_fraction", 192).samples
    assert 0.5 < share < 0.7
