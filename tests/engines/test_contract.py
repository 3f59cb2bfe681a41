"""The contract suite itself: every adapter keeps it with an honest server, and each check can fail."""

from __future__ import annotations

import pytest

from longproof.engines.registry import connect
from longproof.testing import engine_contract as contract
from longproof.testing.dialects import LLAMACPP, OPENAI, VLLM, Dialect
from longproof.testing.engine_contract import CONTRACT, Check
from longproof.testing.lies import (
    ClampOutput,
    Crash,
    CutStream,
    EmptyAnswer,
    ErrorInStream,
    IgnoreCold,
    Lie,
    NoUsage,
    Refuse,
    TruncateInput,
    WrongCount,
    WrongUsage,
)
from longproof.testing.lying_engine import HONEST, lying_engine


@pytest.mark.parametrize("dialect", [LLAMACPP, VLLM, OPENAI], ids=lambda dialect: dialect.name)
async def test_adapter_keeps_the_contract_when_the_server_is_honest(dialect: Dialect) -> None:
    async with lying_engine(HONEST.but(dialect=dialect, adds_bos=dialect is VLLM)) as url:
        engine = await connect(url)
        try:
            for check in CONTRACT:
                await check(engine)
        finally:
            await engine.aclose()


@pytest.mark.parametrize(
    ("check", "lie"),
    [
        (contract.is_alive, EmptyAnswer()),
        (contract.is_alive, Crash()),
        (contract.streams_in_causal_order, CutStream()),
        (contract.streams_in_causal_order, ErrorInStream(after_tokens=2)),
        (contract.streams_in_causal_order, NoUsage()),
        (contract.counts_as_usage_counts, WrongCount()),
        (contract.counts_as_usage_counts, WrongUsage(prompt_offset=1)),
        (contract.counts_text_as_usage_counts, WrongUsage(prompt_offset=1)),
        (contract.counts_ids_exactly, TruncateInput(keep_tokens=64)),
        (contract.produces_exactly_what_is_asked, ClampOutput(tokens=2)),
        (contract.goes_cold_when_asked, IgnoreCold()),
        (contract.serves_two_at_once, Refuse()),
    ],
    ids=lambda value: getattr(value, "__name__", type(value).__name__),
)
async def test_check_fails_when_the_server_lies(check: Check, lie: Lie) -> None:
    async with lying_engine(HONEST.lying(lie)) as url:
        engine = await connect(url)
        with pytest.raises(AssertionError):
            await check(engine)
        await engine.aclose()
