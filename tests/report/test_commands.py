"""Command lines that repeat a proof: the options named are ones the command line has."""

from __future__ import annotations

import shlex

import pytest
from click.testing import CliRunner

from longproof.claim.derive import claim_of
from longproof.claim.view import EvidenceView
from longproof.cli.main import cli
from longproof.domain.measure import reported
from longproof.evidence.records import Step
from longproof.report.commands import commands
from longproof.testing.builders import build_deployment, build_header, build_protocol, build_view


def _commands(view: EvidenceView) -> list[list[str]]:
    return [shlex.split(line) for _, line in commands(claim_of(view), view)]


def _embedded(target: str) -> EvidenceView:
    deployment = build_deployment(limit_tokens=2048, slots=2, kv_dtype=reported("q8_0", "command line"))
    steps = (Step(probe="speed", parameters={"lengths": [256, 512], "repeats": 3}),)
    protocol = build_protocol(steps=steps, not_run={"warmth": "left out with --only"}, budget_ns=90 * 10**9)
    return build_view(header=build_header(target=target, deployment=deployment, protocol=protocol))


def test_url_is_proved_again_when_the_target_was_a_url() -> None:
    view = build_view(header=build_header(target="http://127.0.0.1:8080"))
    assert _commands(view)[0][:3] == ["longproof", "prove", "http://127.0.0.1:8080"]


def test_engine_is_started_the_same_way_when_it_was_embedded() -> None:
    line = _commands(_embedded("embedded /models/a model.gguf"))[0]
    options = dict(zip(line[2::2], line[3::2], strict=True))
    assert line[:2] == ["longproof", "demo"]
    assert options == {
        "--model": "/models/a model.gguf",
        "--window": "2048",
        "--slots": "2",
        "--kv-type": "q8_0",
        "--lengths": "256,512",
        "--only": "speed",
        "--budget": "90s",
        "--repeats": "3",
        "--output-tokens": "16",
        "--timeout": "60s",
        "--route": "chat",
        "--seed": "0",
    }


def test_default_model_is_not_named_when_it_was_not() -> None:
    assert "--model" not in _commands(_embedded("embedded SmolLM2-135M-Instruct"))[0]


@pytest.mark.parametrize("target", ["http://127.0.0.1:8080", "embedded /models/m.gguf"])
def test_every_option_exists_when_the_command_is_asked_for_help(target: str) -> None:
    for line in _commands(_embedded(target)):
        help_text = CliRunner().invoke(cli, [line[1], "--help"]).output
        assert help_text.startswith("Usage:")
        for option in (word for word in line if word.startswith("--")):
            assert option in help_text
