"""Every lie gives its own finding through the main job, and an honest engine gives none through the whole of it. A lie
meets the probe that is there to find it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from proof import OPTIONS, finding_ids, prove_url, said

from longproof.claim.statements import Statement
from longproof.prove.options import IDLE_PROBES
from longproof.testing.behaviour import Behaviour
from longproof.testing.dialects import LLAMACPP, OPENAI, VLLM, Dialect
from longproof.testing.fake_pool import OverCapacity
from longproof.testing.lies import (
    ClaimWindow,
    ClampOutput,
    CrlfLines,
    CutStream,
    EmptyAnswer,
    ErrorInStream,
    FalseCached,
    FinishWith,
    Hang,
    HideCached,
    IgnoreCold,
    KeepAlive,
    Lie,
    NoDone,
    NoUsage,
    ReasoningFirst,
    Refuse,
    RoleEarly,
    SlowPrefill,
    SplitUtf8,
    TruncateInput,
    WrongUsage,
)
from longproof.testing.lying_engine import lying_engine

WINDOW = 2048
HONEST = Behaviour(window_tokens=WINDOW)


@pytest.mark.parametrize("dialect", [LLAMACPP, VLLM, OPENAI], ids=lambda dialect: dialect.name)
async def test_an_honest_engine_gives_no_finding(dialect: Dialect, tmp_path: Path) -> None:
    async with lying_engine(HONEST.but(dialect=dialect)) as url:
        result = await prove_url(url, tmp_path)
    assert result.complete
    assert finding_ids(tmp_path) == set()


@pytest.mark.parametrize(
    "lies",
    [(CrlfLines(),), (SplitUtf8(),), (KeepAlive(every_s=0.01), SlowPrefill(delay_s=0.05)), (ReasoningFirst(),)],
    ids=lambda lies: lies[0].name,
)
async def test_what_the_protocol_allows_is_no_finding(lies: tuple[Lie, ...], tmp_path: Path) -> None:
    async with lying_engine(HONEST.lying(*lies)) as url:
        await prove_url(url, tmp_path)
    assert finding_ids(tmp_path) == set()


@pytest.mark.parametrize(
    ("lie", "expected"),
    [
        (TruncateInput(keep_tokens=700, lose="head"), "accounting.input_truncated_head"),
        (TruncateInput(keep_tokens=700, lose="head", usage="sent"), "accounting.input_truncated_head"),
        (TruncateInput(keep_tokens=1700, lose="middle", usage="sent"), "accounting.input_truncated_middle"),
        (TruncateInput(keep_tokens=1700, lose="tail", usage="sent"), "accounting.input_truncated_tail"),
        (TruncateInput(keep_tokens=1700, lose="tail", usage="read"), "accounting.input_truncated_tail"),
        (ClampOutput(tokens=2), "accounting.output_clamped"),
        (ClampOutput(tokens=2, finish="stop"), "accounting.output_clamped"),
        (WrongUsage(prompt_offset=7), "accounting.usage_wrong"),
        (WrongUsage(prompt_scale=0.7), "accounting.usage_wrong"),
        (WrongUsage(completion_scale=10.0), "accounting.output_overrun"),
        (WrongUsage(completion_scale=0.5), "accounting.output_usage_wrong"),
        (NoUsage(), "accounting.usage_missing"),
        (FalseCached(fraction=0.5), "speed.cached_while_cold"),
        (HideCached(), "warmth.cache_not_reported"),
        (IgnoreCold(), "warmth.cold_ignored"),
        (Hang(above_tokens=1900), "boundary.hangs_above"),
        (Hang(above_tokens=1900, headers="at_once"), "boundary.hangs_above"),
        (ErrorInStream(above_tokens=1900), "boundary.error_in_200"),
        (ErrorInStream(above_tokens=1900, after_tokens=3), "boundary.error_in_200"),
        (CutStream(above_tokens=1900), "boundary.stream_cut"),
        (CutStream(above_tokens=500, times=1), "stream.cut"),
        (EmptyAnswer(above_tokens=1900), "boundary.empty_answer"),
        (FinishWith(above_tokens=1900), "boundary.aborted"),
        (RoleEarly(), "stream.first_event_without_token"),
        (NoDone(), "stream.done_missing"),
        (Refuse(above_tokens=1900), "stream.refused_while_idle"),
        (ClaimWindow(tokens=4096), "boundary.below_limit"),
    ],
    ids=str,
)
async def test_a_lie_gives_its_own_finding(lie: Lie, expected: str, tmp_path: Path) -> None:
    slow = (SlowPrefill(delay_s=0.25),) if isinstance(lie, RoleEarly) else ()
    behaviour = HONEST.lying(lie, *slow)
    if isinstance(lie, HideCached):
        behaviour = behaviour.but(prefill_tokens_per_s=3_000.0)
    asked = expected.partition(".")[0]
    elsewhere = "boundary" if isinstance(lie, Refuse) else "speed"  # no other probe asks as much as it refuses
    options = replace(OPTIONS, only=(asked if asked in IDLE_PROBES else elsewhere,))
    if isinstance(lie, Hang):
        options = replace(options, timeout_s=1.5, resolution_tokens=256)
    async with lying_engine(behaviour) as url:
        await prove_url(url, tmp_path, options)
    assert expected in finding_ids(tmp_path)


async def test_a_pool_below_the_window_is_found_when_the_engine_hangs_above_it(tmp_path: Path) -> None:
    behaviour = HONEST.but(kv_capacity_tokens=1000, over_capacity=OverCapacity.HANG)
    async with lying_engine(behaviour) as url:
        await prove_url(url, tmp_path, replace(OPTIONS, timeout_s=1.5, only=("boundary",)))
    assert "boundary.hangs_above" in finding_ids(tmp_path)
    context = next(item for item in said(tmp_path) if isinstance(item, Statement) and item.id == "boundary.context")
    assert "1,000 tokens" in context.text
