"""`longproof serve --check`: what would go wrong is said before anything is started."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from longproof.gateway.check import Checked, check_config
from longproof.gateway.config import config_from
from longproof.testing.dialects import VLLM
from longproof.testing.lying_engine import HONEST, lying_engine

MODEL = "fake-135m"


async def checked(**document: object) -> Checked:
    config = config_from(document, where=Path("fleet.toml"))
    return await check_config(config, lambda _: {}, within_s=0)


async def test_nothing_is_found_when_the_fleet_serves_as_written() -> None:
    async with lying_engine(HONEST.but(dialect=VLLM)) as url:
        found = await checked(
            replica=[{"url": url, "pool": "short"}],
            key=[{"name": "a", "sha256": "0" * 64, "models": [MODEL]}],
            price=[{"name": "standard", "models": [MODEL], "pools": ["short"], "input": "1"}],
        )
    assert found.problems == ()
    assert "8,192" in found.facts[0]


async def test_names_that_nothing_goes_by_are_problems_when_they_are_used() -> None:
    async with lying_engine() as url:
        found = await checked(
            replica=[{"url": url, "pool": "short"}],
            pools={"long_pool": "long"},
            key=[{"name": "a", "sha256": "0" * 64, "models": ["gpt"], "tenant": "research"}],
            price=[{"name": "standard", "pools": ["huge"]}],
            tenant=[{"name": "research"}, {"name": "reserach", "weight": 2}],
            slo={"min_hit": {"gtp": 0.5}},
        )
    said = ("pool 'long'", "pool 'huge'", "[[tenant]] reserach has no key", "model 'gpt'", "model 'gtp'")
    assert len(found.problems) == len(said)
    for words, problem in zip(said, found.problems, strict=True):
        assert words in problem


async def test_a_window_that_the_cache_cannot_hold_is_a_problem_when_it_is_larger() -> None:
    async with lying_engine(HONEST.but(dialect=VLLM)) as url:
        found = await checked(replica=[{"url": url, "kv_capacity": 4_096}])
    (problem,) = found.problems
    assert "8,192" in problem
    assert "4,096" in problem


async def test_an_engine_that_does_not_answer_is_a_problem_beside_those_that_do() -> None:
    async with lying_engine() as url:
        found = await checked(replica=[{"url": url}, {"url": "http://127.0.0.1:9"}])
    assert [problem for problem in found.problems if "does not answer" in problem]


@pytest.mark.engine
async def test_a_cache_larger_than_the_memory_is_a_problem_when_it_is_planned(demo_model: Path) -> None:
    # SmolLM2-135M: 23,040 bytes of f16 KV per token (30 layers x 3 KV heads x 64 x 2 x 2)
    slots = psutil.virtual_memory().total // (8_192 * 23_040) + 1
    fits = await checked(engine=[{"model": str(demo_model), "context": 512}])
    too_large = await checked(engine=[{"model": str(demo_model), "slots": slots}])
    assert fits.problems == ()
    assert len(too_large.problems) == 1
