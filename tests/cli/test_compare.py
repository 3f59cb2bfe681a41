"""`longproof compare`: two servers in turns, two directories, refusals, and exit codes."""

from __future__ import annotations

import json
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from longproof.cli.main import run
from longproof.errors import EXIT_GATE_FAILED, EXIT_OK, EXIT_USER_ERROR
from longproof.evidence.reading import read
from longproof.evidence.records import RequestBody
from longproof.testing.dialects import VLLM
from longproof.testing.lies_of_load import SpecDecodeOutputChanges
from longproof.testing.lying_engine import HONEST, lying_engine
from longproof.testing.solver import Ability, Solver, items_of

ENGINE = HONEST.but(dialect=VLLM, window_tokens=2048, token_s=0.01, prefill_tokens_per_s=20_000.0)
SPECULATING = ENGINE.but(speculation=3, acceptance=0.8)
ASK = ("--lengths", "300,900", "--repeats", "4", "--output-tokens", "24")
FEW = ("--lengths", "300", "--repeats", "3", "--output-tokens", "16")
WANTED = ("--factor", "speculative", "--require", "tpot_ratio <= 1000", "--require", "output_equal >= 40%")


def requests(directory: Path) -> list[tuple[str, RequestBody]]:
    return [(record.key, record.body) for record in read(directory).records if isinstance(record.body, RequestBody)]


@dataclass(frozen=True)
class Asked:
    """One comparison of two servers: its exit code, its document, and where the evidence lies."""

    code: int
    told: dict[str, Any]
    out: Path


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Asked:
    """A plain server and one that speculates, asked in turns once."""
    out = tmp_path_factory.mktemp("compare") / "both"
    with lying_engine(ENGINE) as a, lying_engine(SPECULATING) as b, redirect_stdout(StringIO()) as said:
        code = run(("compare", "--url-a", a, "--url-b", b, *ASK, *WANTED, "--out", str(out), "--json"))
    return Asked(code=code, told=json.loads(said.getvalue()), out=out)


def test_both_servers_are_asked_the_same_when_they_take_turns(asked: Asked) -> None:
    """What is asked is the same, byte for byte. What times show is left to tests without a clock."""
    told = asked.told
    assert asked.code == EXIT_OK
    assert [row["length"] for row in told["rows"] if row["metric"] == "tpot_ratio"] == [300, 900]
    assert (told["outputs"]["compared"], told["outputs"]["equal"]) == (8, 8)
    assert told["outputs"]["again_a"] == told["outputs"]["again_b"] == [2, 2]
    assert told["a"]["speculation"] is None
    assert told["b"]["speculation"]["drafted_tokens"] > 0
    assert told["in_turns"]
    assert [verdict["verdict"] for verdict in told["gate"]["verdicts"]] == ["pass", "pass"]
    mine, theirs = requests(asked.out / "a"), requests(asked.out / "b")
    assert [key for key, _ in mine] == [key for key, _ in theirs]
    assert [body.prompt_sha256 for _, body in mine] == [body.prompt_sha256 for _, body in theirs]
    first = [body.cell["turn"] for _, body in mine if body.cell["arm"] == "pair"]
    assert first == [0, 1, 1, 0, 0, 1, 1, 0]  # two lengths a round, the sides swapped each time


def test_stored_evidence_is_compared_again_when_directories_are_named(
    asked: Asked, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same document, and the same page byte for byte."""
    both = (str(asked.out / "a"), str(asked.out / "b"))
    page = tmp_path / "page.html"
    assert run(("compare", *both, *WANTED, "--json", "--report", str(page))) == EXIT_OK
    assert json.loads(capsys.readouterr().out) == asked.told
    assert page.read_bytes() == (asked.out / "report.html").read_bytes()
    assert run(("compare", *both)) == EXIT_OK
    assert "B speculated, by its own counters" in capsys.readouterr().out
    assert run(("compare", *both, "--require", "tpot_ratio >= 1")) == EXIT_GATE_FAILED
    assert "FAIL" in capsys.readouterr().out


def test_changed_answers_are_told_when_speculation_changes_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lying = SPECULATING.lying(SpecDecodeOutputChanges(after_tokens=4))
    with lying_engine(ENGINE) as a, lying_engine(lying) as b:
        run(("compare", "--url-a", a, "--url-b", b, *FEW, "--out", str(tmp_path / "both"), "--json"))
    told = json.loads(capsys.readouterr().out)
    assert told["outputs"]["equal"] == 0
    assert [finding["id"] for finding in told["findings"]] == ["compare.outputs_differ"]
    assert "it is the configurations that differ" in told["findings"][0]["text"]


def test_no_difference_is_named_when_both_servers_are_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with lying_engine(ENGINE) as a, lying_engine(ENGINE) as b:
        out = ("--confidence", "0.9999", "--out", str(tmp_path / "both"), "--json")
        run(("compare", "--url-a", a, "--url-b", b, *FEW, *out))
    told = json.loads(capsys.readouterr().out)
    assert {row["said"] for row in told["rows"]} <= {"same", "undecided"}
    assert told["outputs"]["equal"] == 3


def test_proofs_of_two_configurations_are_refused_or_compared_by_their_factors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prove = ("--only", "speed", "--lengths", "300", "--repeats", "3", "--output-tokens", "8")
    for name, engine in (("a", ENGINE), ("b", ENGINE.but(model="another-1b", window_tokens=1024))):
        with lying_engine(engine) as url:
            assert run(("prove", url, *prove, "--out", str(tmp_path / name))) == EXIT_OK
    both = (str(tmp_path / "a"), str(tmp_path / "b"))
    capsys.readouterr()
    assert run(("compare", *both)) == EXIT_USER_ERROR
    told = capsys.readouterr().err
    assert "model: A fake-135m, B another-1b" in told
    assert "--factor" in told
    code = run(("compare", *both, "--factor", "model", "--factor", "configured_limit_tokens"))
    card = capsys.readouterr()
    assert code == EXIT_OK, card.err
    assert "proved one after the other" in card.out
    assert "not compared: no prompt was sent to both" in card.out


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ((), "two evidence directories"),
        (("one",), "two evidence directories"),
        (("--url-a", "http://127.0.0.1:1"), "one URL"),
        (("one", "two"), "one"),
        (("one", "two", "--confidence", "2"), "confidence"),
        (("one", "two", "--require", "speed <= 2"), "names no metric"),
    ],
)
def test_what_cannot_be_meant_is_refused_when_asked(
    arguments: tuple[str, ...], word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(("compare", *arguments)) == EXIT_USER_ERROR
    assert word in capsys.readouterr().err


def proved(directory: Path, ability: Ability, *more: str) -> str:
    """The evidence of a quality run of an engine that can do so much."""
    items = items_of(("literal",), seed=0, longest_tokens=600, n=40)
    ask = ("--only", "quality", "--families", "literal", "--quality-lengths", "300,600", "--threshold", "0.5")
    with lying_engine(ENGINE.but(token_s=0.0, prefill_tokens_per_s=1e9, answers=Solver(items, ability))) as url:
        run(("prove", url, *ask, *more, "--out", str(directory)))
    return str(directory)


def test_quality_is_compared_when_both_were_asked_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A has all of 12 right everywhere, B none beyond 400 tokens: 12 only A, 2 x 0.5^12 = 0.0005, times 3 cells."""
    a = proved(tmp_path / "a", Ability(), "--answers", "12")
    b = proved(tmp_path / "b", Ability(half_tokens=420.0, width=0.02), "--answers", "12")
    capsys.readouterr()
    assert run(("compare", a, b, "--json")) == EXIT_OK
    told = json.loads(capsys.readouterr().out)
    rows = {row["length"]: row for row in told["quality"]["rows"]}
    assert {length: (row["pairs"]["both"], row["pairs"]["only_first"]) for length, row in rows.items()} == {
        0: (12, 0),
        300: (12, 0),
        600: (0, 12),
    }
    assert [rows[length]["said"] for length in (300, 600)] == ["undecided", "less"]
    assert rows[600]["adjusted_p"] == pytest.approx(3 * 2 * 0.5**12)
    assert told["quality"]["unpaired"] == 0
    # two proofs have nonces of their own, and where these take other tokens, other lines make up the length
    assert told["quality"]["same_text"] + told["quality"]["other_text"] == 24
    assert [finding["id"] for finding in told["findings"]] == ["compare.accuracy_differs"]
    assert "literal at 600 tokens: 0 of 12 against 12" in told["findings"][0]["text"]
    assert "B is right less often in 1 of 3 cells" in told["headline"]
    page = tmp_path / "page.html"
    run(("compare", a, b, "--report", str(page)))
    card = capsys.readouterr().out
    assert "literal: A holds to 600; B holds to 300, lost by 600." in card
    assert "of 24 questions under filler were the same text on both sides" in " ".join(card.split())
    text = page.read_text()
    assert '<section id="right"' in text
    # no prompt but the questions of quality went to both: nothing is said of ratios, outputs and outcomes
    assert "0 comparisons" not in text
    assert "Answers and outcomes" not in text
    assert "Answers and outcomes" not in card
    assert "accuracy_difference@600" in text
    assert '<td class="num">12/12</td><td class="num">0/12</td><td class="num">12</td>' in text
    code = run(("compare", a, b, "--require", "accuracy_difference@600 >= -0.05"))
    assert code == EXIT_GATE_FAILED


def test_two_servers_are_asked_about_quality_in_turns_when_only_quality_is_wanted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A has all of 12 right, B none at 600 tokens. The same items with the same filler, sent by turns: A B B A."""
    items = items_of(("literal",), seed=0, longest_tokens=600, n=40)
    quick = ENGINE.but(token_s=0.0, prefill_tokens_per_s=1e9)
    able, unable = (Solver(items, ability) for ability in (Ability(), Ability(half_tokens=420.0, width=0.02)))
    ask = ("--only", "quality", "--families", "literal", "--quality-lengths", "300,600", "--threshold", "0.5")
    out = tmp_path / "both"
    with lying_engine(quick.but(answers=able)) as a, lying_engine(quick.but(answers=unable)) as b:
        command = ("compare", "--url-a", a, "--url-b", b, *ask, "--answers", "12", "--out", str(out))
        assert run((*command, "--factor", "quantization", "--json")) == EXIT_OK
        told = json.loads(capsys.readouterr().out)
        asked = [requests(out / side) for side in "ab"]
        assert run((*command, "--factor", "quantization")) == EXIT_OK  # complete: nothing is repeated
        assert [requests(out / side) for side in "ab"] == asked
    assert told["in_turns"]
    rows = {row["length"]: row["pairs"] for row in told["quality"]["rows"]}
    assert {length: (row["both"], row["only_first"]) for length, row in rows.items()} == {
        0: (12, 0),
        300: (12, 0),
        600: (0, 12),
    }
    sent = [{key: body.prompt_sha256 for key, body in side if body.probe == "quality"} for side in asked]
    assert sent[0] == sent[1]
    assert (told["quality"]["same_text"], told["quality"]["other_text"]) == (24, 0)
    # a round is two lengths; the sides are swapped from round to round
    times = sorted((b.timeline.submitted_ns, at) for at in (0, 1) for _, b in asked[at] if b.cell.get("arm") == "full")
    assert [at for _, at in times] == [0, 0, 1, 1, 1, 1, 0, 0] * 6
    assert "asked in turns by one client" in capsys.readouterr().out


def test_quality_options_are_refused_when_they_mean_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    urls = ("--url-a", "http://127.0.0.1:9", "--url-b", "http://127.0.0.1:9")
    assert run(("compare", *urls, "--answers", "12")) == EXIT_USER_ERROR
    assert "add --only quality" in capsys.readouterr().err
    assert run(("compare", "a", "b", "--only", "quality")) == EXIT_USER_ERROR
    assert "directories" in capsys.readouterr().err


def test_no_difference_of_quality_is_named_when_both_are_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Certified, each side stops on its own answers: brackets side by side, and no test of the cells."""
    a, b = (proved(tmp_path / name, Ability(), "--certify", "--answers", "20") for name in "ab")
    capsys.readouterr()
    assert run(("compare", a, b)) == EXIT_OK
    card = capsys.readouterr().out
    assert "literal: A holds to 600; B holds to 600." in card
    assert "no difference of quality shown" in card


def test_other_questions_are_not_paired_when_the_seeds_differ(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a = proved(tmp_path / "a", Ability(), "--answers", "2")
    b = proved(tmp_path / "b", Ability(), "--answers", "2", "--seed", "1")
    capsys.readouterr()
    assert run(("compare", a, b)) == EXIT_USER_ERROR
    assert "no question in common" in capsys.readouterr().err
