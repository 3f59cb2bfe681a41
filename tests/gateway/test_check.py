"""`longproof serve --check`: what would go wrong is said before anything is started."""

from __future__ import annotations

import tempfile
from pathlib import Path

import psutil
import pytest

from longproof.gateway.check import Checked, check_config
from longproof.gateway.config import config_from
from longproof.gateway.config_check import config_problems
from longproof.testing.dialects import VLLM
from longproof.testing.lying_engine import HONEST, lying_engine

MODEL = "fake-135m"


async def checked(**document: object) -> Checked:
    config = config_from(document, where=Path("fleet.toml"))
    return await check_config(config, lambda _: {}, within_s=0, state=Path(tempfile.gettempdir()))


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


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({"gateway": {"tls": {"certificate": "no.pem", "key": "no.key"}}}, "[gateway.tls] the certificate"),
        ({"gateway": {"ledger": "mysql://x"}}, "'mysql' is no kind of ledger"),
        ({"gateway": {"ledger": "postgresql://u:secret@127.0.0.1:9/x"}}, "ledger at postgresql://127.0.0.1:9/x"),
        ({"gateway": {"traces": "nonsense"}}, "[gateway] traces"),
        ({"gateway": {"decision_log": "/dev/null/x/log"}}, "nothing can be written in /dev/null/x"),
        ({"gateway": {"pass_through": ["/v1/chat/completions"]}}, "answers /v1/chat/completions itself"),
        ({"shared": {"url": "nonsense"}}, "[shared]"),
        ({"engine": [{"kind": "command", "command": ["/no/such"], "url": "http://x"}]}, "no program '/no/such'"),
        ({"claim": [{"path": "/no/such"}], "engine": [{"kind": "command", "command": ["sh"], "url": "x"}]}, "/no/such"),
    ],
)
def test_what_is_not_there_on_this_machine_is_a_problem(document: dict[str, object], said: str) -> None:
    config = config_from({"replica": [{"url": "http://127.0.0.1:9"}], **document}, where=Path("fleet.toml"))
    (problem,) = config_problems(config, Path(tempfile.gettempdir()))
    assert said in problem
    assert "secret" not in problem


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"kv_events": "nonsense"}, "kv_events 'nonsense'"),
        ({"kv_replay": "tcp://127.0.0.1:5"}, "kv_replay without kv_events"),
        ({"tokenizer": "/no/such"}, "tokenizer: /no/such"),
        ({"api_key_env": "LONGPROOF_NO_SUCH_KEY"}, "LONGPROOF_NO_SUCH_KEY is not set"),
    ],
)
def test_what_a_replica_names_and_is_not_there_is_a_problem(fields: dict[str, str], said: str) -> None:
    config = config_from({"replica": [{"url": "http://127.0.0.1:9", **fields}]}, where=Path("fleet.toml"))
    (problem,) = config_problems(config, Path(tempfile.gettempdir()))
    assert said in problem


def test_two_of_one_name_or_address_are_a_problem() -> None:
    config = config_from({"replica": [{"url": "http://a:1"}, {"url": "http://a:1/"}]}, where=Path("fleet.toml"))
    called, at = config_problems(config, Path(tempfile.gettempdir()))
    assert "2 replicas are called 'a:1'" in called
    assert "2 replicas are at http://a:1" in at


async def test_files_and_variables_are_problems_when_they_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOT_SET_HERE", raising=False)
    async with lying_engine() as url:
        found = await checked(
            gateway={"tls": {"certificate": "no/chain.pem", "key": "no/key.pem"}},
            replica=[{"name": "a", "url": url, "tokenizer": "no/model", "api_key_env": "NOT_SET_HERE"}],
        )
    said = "\n".join(found.problems)
    for words in (
        "a: tokenizer: ",
        "no/model",
        "no/chain.pem",
        "no/key.pem",
        "NOT_SET_HERE is not set",
    ):
        assert words in said


async def test_all_problems_are_told_when_no_replica_answers() -> None:
    found = await checked(
        replica=[{"url": "http://127.0.0.1:9"}, {"url": "http://127.0.0.1:10"}], pools={"long_pool": "x"}
    )
    assert len(found.problems) == 2
    assert "pool 'x'" in found.problems[0]
    assert found.problems[1].startswith("none of 2 replicas answers; the first: no answer from http://127.0.0.1:9")
