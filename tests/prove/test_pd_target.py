"""What can be proved as a prefill/decode pair, and what is refused before anything is sent."""

from __future__ import annotations

from pathlib import Path

import pytest

from longproof.engines.pd import PdEngine
from longproof.errors import UsageError
from longproof.prove.target import PdTarget
from longproof.testing.lying_engine import lying_engine
from longproof.testing.pd_pair import PdPair


async def test_a_pair_is_opened_when_both_are_vllm(tmp_path: Path) -> None:
    async with PdPair() as (prefill, decode):
        target = PdTarget(prefill_url=f"{prefill}/v1", decode_url=decode)
        engine = await target.open(tmp_path / "engine.log")
        assert isinstance(engine, PdEngine)
        assert target.label == f"prefill {prefill} decode {decode}"
        assert engine.capabilities.metrics
        assert not engine.capabilities.restarts
        await engine.aclose()


async def test_one_server_twice_is_refused_when_it_is_given_as_both(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="same server"):
        await PdTarget(prefill_url="http://127.0.0.1:9", decode_url="http://127.0.0.1:9/v1").open(tmp_path / "log")


async def test_another_engine_is_refused_when_it_is_a_side(tmp_path: Path) -> None:
    async with PdPair() as (prefill, _), lying_engine() as other:
        with pytest.raises(UsageError, match=r"--decode .* is no vLLM"):
            await PdTarget(prefill_url=prefill, decode_url=other).open(tmp_path / "engine.log")
