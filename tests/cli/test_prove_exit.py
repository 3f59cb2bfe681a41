"""What `prove` answers where nothing can be shown, and where a directory already answers something else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from longproof.claim.derive import derive
from longproof.cli.main import run
from longproof.errors import EXIT_GATE_FAILED, EXIT_OK, EXIT_USER_ERROR
from longproof.testing.behaviour import Behaviour
from longproof.testing.dialects import OPENAI
from longproof.testing.lies import NoUsage, Refuse
from longproof.testing.lying_engine import lying_engine

WINDOW = 1024
SHORT = ("--lengths", "512", "--repeats", "1", "--only", "speed")


def test_no_usage_on_a_server_that_does_not_count_is_a_finding_and_no_success(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    behaviour = Behaviour(window_tokens=WINDOW, dialect=OPENAI).lying(NoUsage())
    with lying_engine(behaviour) as url:
        code = run(("prove", url, *SHORT, "--out", str(tmp_path / "e"), "--json"))
    claim = json.loads(capsys.readouterr().out)
    assert code == EXIT_GATE_FAILED
    assert [item["id"] for item in claim["findings"]] == ["accounting.usage_missing"]
    assert "reports usage" in claim["headline"]


def test_refusing_everything_is_a_finding_and_no_success(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    behaviour = Behaviour(window_tokens=WINDOW, dialect=OPENAI).lying(Refuse(status=429))
    with lying_engine(behaviour) as url:
        code = run(("prove", url, *SHORT, "--out", str(tmp_path / "e")))
    capsys.readouterr()
    assert code == EXIT_GATE_FAILED
    assert {item.id for item in derive(tmp_path / "e").findings} == {"stream.refused_while_idle"}


def test_a_finished_run_answers_only_the_same_question(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = ("--out", str(tmp_path / "e"))
    with lying_engine(Behaviour(window_tokens=WINDOW)) as url, lying_engine(Behaviour(window_tokens=WINDOW)) as other:
        assert run(("prove", url, *SHORT, *out)) == EXIT_OK
        assert run(("prove", url, *SHORT, *out)) == EXIT_OK
        for command, word in (
            (("prove", other, *SHORT, *out), other),
            (("prove", url, *SHORT, "--repeats", "2", *out), "repeats"),
            (("prove", url, *SHORT, "--lengths", "256", *out), "lengths"),
            (("prove", url, *SHORT, "--seed", "1", *out), "seed"),
            (("prove", url, *SHORT, "--only", "warmth", *out), "probes"),
        ):
            capsys.readouterr()
            assert run(command) == EXIT_USER_ERROR
            assert word in capsys.readouterr().err


@pytest.mark.parametrize("name", ["/proc/longproof", "/dev/null/below"])
def test_a_directory_that_cannot_be_made_is_named(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(("prove", "http://127.0.0.1:1", "--out", name)) == EXIT_USER_ERROR
    err = capsys.readouterr().err
    assert f"{name} cannot be written" in err
    assert "--out" in err


@pytest.mark.parametrize(
    "options", [("--timeout", "0s"), ("--resolution", "0"), ("--context", "0"), ("--output-tokens", "2000")]
)
def test_choices_that_measure_nothing_are_refused(
    options: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with lying_engine(Behaviour(window_tokens=WINDOW)) as url:
        assert run(("prove", url, *options, "--out", str(tmp_path / "e"))) == EXIT_USER_ERROR
    err = capsys.readouterr().err
    assert "next:" in err
    assert "-976" not in err
