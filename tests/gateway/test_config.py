"""fleet.toml: what is read out of it, and what is said about mistakes."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from longproof.errors import UsageError
from longproof.gateway.config import FleetConfig, config_from, read_config
from longproof.gateway.keys import key_digest
from longproof.gateway.rules import controller_config, key_rules, price_book, routing_rule
from longproof.gateway.serve import state_directory
from longproof.policy.metering import Kind

FILE = """
[gateway]
port = 9000
body_limit = "32MiB"
keepalive = "5s"

[[replica]]
url = "http://10.0.0.1:8000"
context = "32k"
kv_events = "tcp://10.0.0.1:5557"

[pools]
long_from = "never"

[queue]
age_bound = "20s"

[[tenant]]
name = "research"
weight = 2
kv_token_seconds_per_s = 1000
separate_prefixes = true

[[key]]
name = "a"
tenant = "research"
sha256 = "%s"

[[key]]
name = "b"
tenant = "research"
env = "LONGPROOF_TEST_KEY"

[[price]]
name = "standard"
input = "0.25"
output = "1"
"""


def written(tmp_path: Path, text: str) -> FleetConfig:
    path = tmp_path / "fleet.toml"
    path.write_text(text)
    return read_config(path)


def test_every_section_becomes_a_rule_when_the_file_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LONGPROOF_TEST_KEY", "sk-b")
    config = written(tmp_path, FILE % key_digest("sk-a"))
    assert (config.gateway.port, config.gateway.body_limit, config.gateway.keepalive) == (9000, 32 << 20, 5 * 10**9)
    assert (config.replica[0].context, config.directory) == (32_000, tmp_path)
    rules = controller_config(config, (), {})
    assert rules.queue.age_bound_ns == 20 * 10**9
    budget = rules.tenants[0].budget
    # without a burst of its own: a minute of the rate
    assert budget is not None
    assert (rules.tenants[0].weight, budget.burst_token_seconds) == (2, 60_000)
    assert routing_rule(config).pools.long_from_tokens is None
    first, second = key_rules(config)
    assert (first.digest, second.digest) == (key_digest("sk-a"), key_digest("sk-b"))
    assert first.prefix_salt == second.prefix_salt != ""  # one tenant, one cache
    sku = price_book(config.price).skus[0]
    assert (sku.prices.of(Kind.INPUT_COLD), sku.prices.of(Kind.OUTPUT)) == (250_000, 1_000_000)


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"gatewayy": {}}, "gatewayy"),
        ({"gateway": {"prot": 1}}, "gateway.prot"),
        ({"gateway": {"keepalive": 5}}, "gateway.keepalive"),
        ({"gateway": {"body_limit": "5 acres"}}, "gateway.body_limit"),
        ({"replica": [{"url": "http://x", "context": "many"}]}, "replica.0.context"),
        ({"engine": [{"kind": "magic"}]}, "engine.0.kind"),
        ({"key": [{"sha256": "00"}]}, "key.0.name"),
    ],
)
def test_the_place_is_named_when_something_is_wrong(change: dict[str, object], place: str) -> None:
    with pytest.raises(UsageError) as refused:
        config_from({"engine": [{}], **change}, where=Path("fleet.toml"))
    assert f"fleet.toml: {place}: " in refused.value.problem


@pytest.mark.parametrize(
    ("section", "option", "value"),
    [
        ("gateway", "port", 65_536),
        ("gateway", "count_workers", 0),
        ("gateway", "most_connections", 0),
        ("gateway", "body_limit", 0),
        ("gateway", "silence", "0s"),
        ("gateway", "trace_share", 1.5),
        ("replica", "slots", -1),
        ("replica", "block_tokens", 0),
        ("replica", "prefill_rate", 0),
        ("tenant", "most_running", 0),
        ("key", "per_minute", 0),
        ("key", "most_input_tokens", -1),
    ],
)
def test_a_number_that_would_serve_nobody_is_refused_when_it_is_read(section: str, option: str, value: object) -> None:
    needed: dict[str, object] = {"replica": {"url": "http://x"}, "tenant": {"name": "t"}, "key": {"name": "k"}}
    written = {**needed.get(section, {}), option: value}  # type: ignore[dict-item]
    document = {"engine": [{}], section: written if section == "gateway" else [written]}
    with pytest.raises(UsageError) as refused:
        config_from(document, where=Path("fleet.toml"))
    assert option in refused.value.problem
    assert str(value) in refused.value.problem or isinstance(value, str)


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"tenant": [{"name": "t", "kv_burst_token_seconds": 5}]}, "kv_token_seconds_per_s"),
        ({"engine": [{"kind": "command", "url": "http://x"}]}, "command ="),
        ({"claim": [{"path": "evidence", "on_excess": "route"}]}, "needs the pool"),
    ],
)
def test_an_option_that_means_nothing_without_another_is_refused_when_it_stands_alone(
    section: dict[str, object], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        config_from({"engine": [{}], **section}, where=Path("fleet.toml"))


def test_paths_are_beside_the_file_when_they_are_relative(tmp_path: Path) -> None:
    config = written(tmp_path, '[gateway]\nstate = "state"\n\n[[engine]]\n')
    assert state_directory(config) == tmp_path / "state"


def test_the_file_of_the_documentation_is_a_configuration_when_it_is_read(tmp_path: Path) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "how-to" / "serve.md").read_text(encoding="utf-8")
    config = written(tmp_path, page.partition("```toml\n")[2].partition("```")[0])
    assert [replica.name for replica in config.replica] == ["a", "b", "pair"]
    assert controller_config(config, (), {}).tenants[0].weight == 2
    assert key_rules(config)[0].prefix_salt
    assert price_book(config.price).skus[0].name == "long context"
    assert config.claim[0].expires == date(2027, 6, 30)


def test_a_file_without_engines_is_refused_when_it_is_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"names no \[\[replica\]\]"):
        written(tmp_path, "[gateway]\nport = 1\n")


@pytest.mark.parametrize(
    "keys",
    [
        [{"name": "a"}],
        [{"name": "a", "sha256": "12"}],
        [{"name": "a", "env": "LONGPROOF_NOT_SET"}],
        [{"name": "a", "sha256": key_digest("x")}, {"name": "b", "sha256": key_digest("x")}],
    ],
)
def test_a_key_that_would_let_in_nobody_or_two_is_refused_when_it_is_read(keys: list[dict[str, str]]) -> None:
    config = config_from({"engine": [{}], "key": keys}, where=Path("fleet.toml"))
    with pytest.raises(UsageError):
        key_rules(config)


def test_what_is_shared_is_read_when_there_is_such_a_section(tmp_path: Path) -> None:
    written: dict[str, object] = {"replica": [{"url": "http://10.0.0.1:8000"}]}
    assert config_from(written, where=tmp_path / "fleet.toml").shared is None
    section = {"url": "valkey://10.0.0.5:6379/0", "lease": "5s", "password_env": "SECRET"}
    shared = config_from({**written, "shared": section}, where=tmp_path / "fleet.toml").shared
    assert shared is not None
    assert (shared.url, shared.fleet, shared.lease, shared.password_env) == (
        "valkey://10.0.0.5:6379/0",
        "longproof",
        5_000_000_000,
        "SECRET",
    )
    with pytest.raises(UsageError, match="shared"):
        config_from({**written, "shared": {"lease": "5s"}}, where=tmp_path / "fleet.toml")
