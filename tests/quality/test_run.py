"""The quality probe through the whole main job, against an engine whose ability is known.

The threshold is one half, so that few answers decide: 6 of 6 right give a lower bound of 0.05^(1/6) = 0.607, and 0 of 6
an upper bound of 1 - (0.05/3)^(1/6) = 0.495.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from quality_runs import FAST, LENGTHS, Run, engine_with, options, run, solver, view_of

from longproof.claim.derive import claim_of
from longproof.claim.quality_replies import families_of, plan_of_run
from longproof.claim.view import EvidenceView
from longproof.domain.request import Route
from longproof.evidence.records import ItemBody, RequestBody
from longproof.quality.plan import QualityPlan, cost
from longproof.testing.answers import Asked
from longproof.testing.dialects import LLAMACPP, VLLM, Dialect
from longproof.testing.lies import SlowPrefill

SHARP: dict[str, Any] = {"half_tokens": 850.0, "width": 0.02, "chance": 0.0}
"""Nearly all is right at 600 tokens: logistic(log2(850/600)/0.02) = logistic(25); nearly nothing at 1,200."""


@pytest.fixture(scope="module")
def curve(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Eight answers: 0 of 8 is lost at 0.5 in one of two families of three lengths, 1 - (0.05/8)^(1/8) = 0.47."""
    families = ("literal", "multi-key-8")
    return run(solver(families, **SHARP), options(*families, answers=8), tmp_path_factory.mktemp("curve") / "evidence")


# -- curve ------------------------------------------------------------------------------------------------------------


def test_shares_are_what_the_model_can_do_when_a_curve_is_asked(curve: Run) -> None:
    assert curve.result.complete
    for family in curve.families.values():
        assert (family.control.right, family.control.n) == (8, 8)
        assert (family.closed_book.right, family.closed_book.n) == (0, 4)
        assert {length: (cell.right, cell.n) for length, cell in family.full.items()} == {
            300: (8, 8),
            600: (8, 8),
            1_200: (0, 8),
        }


def test_the_bracket_holds_the_true_length_when_a_curve_is_asked(curve: Run) -> None:
    assert curve.reach("literal") == curve.reach("multi-key-8") == curve.reach("worst") == (600, 1_200)
    assert curve.findings() == set()


def test_every_request_is_as_long_as_its_cell_says_when_the_server_counts(curve: Run) -> None:
    for _, body in curve.view.requests("quality"):
        usage, length = body.timeline.usage, int(body.cell["length"])
        assert usage is not None
        assert usage.prompt_tokens is not None
        assert abs(usage.prompt_tokens - length) <= 1 or not length


def test_the_same_items_are_asked_when_only_the_filler_grows(curve: Run) -> None:
    asked = {length: [r.item.index for r in cell.replies] for length, cell in curve.families["literal"].full.items()}
    assert list(asked) == list(LENGTHS)
    assert len({tuple(indices) for indices in asked.values()}) == 1
    stored = [record for record in curve.view.records if isinstance(record.body, ItemBody)]
    assert len(stored) == 2 * 8  # two families, eight items


def test_what_is_asked_stays_below_its_estimate_when_nothing_is_settled_early(curve: Run) -> None:
    plan = plan_of_run(curve.view)
    assert plan is not None
    requests, tokens = cost(plan, curve.view.header.protocol.output_tokens)
    bodies = [body for _, body in curve.view.requests("quality")]
    assert len(bodies) <= requests
    assert sum(body.timeline.prompt_tokens_sent or 0 for body in bodies) <= tokens


def test_no_long_prompt_is_asked_when_the_evidence_alone_is_too_much(tmp_path: Path) -> None:
    """0 of 6 at 0.85: 0.15^6 = 0.00001."""
    found = run(solver(("literal",), lapse=1.0), options("literal", threshold=0.85), tmp_path / "evidence")
    assert {arm for _, arm, _ in found.asked()} == {"closed_book", "evidence"}
    assert found.reach("worst") == (None, 300)
    assert [note.what for _, note in found.view.notes("quality") if note.what == "cannot"] == ["cannot"]


def test_the_curve_is_drawn_when_the_model_can_do_a_family_in_part(tmp_path: Path) -> None:
    """Right every other time with the evidence alone and at 300 tokens, where 0.85 is asked: cannot, by 10 of 20, and
    still seen to fall to nothing at 1,200."""
    able, unable = solver(("literal",), **SHARP), solver(("literal",), lapse=1.0)
    questions: dict[str, int] = {}

    def every_other_item(asked: Asked) -> str | None:
        number = questions.setdefault(asked.text.rsplit("\n\n", 1)[-1], len(questions))
        return unable(asked) if number % 2 else able(asked)

    found = run(every_other_item, options("literal", threshold=0.85, answers=20), tmp_path / "evidence")
    family = found.families["literal"]
    assert (family.control.right, family.control.n) == (10, 20)
    assert {length: cell.right for length, cell in family.full.items()} == {300: 10, 600: 10, 1_200: 0}
    assert found.reach("worst") == (None, 300)
    assert any(
        "cannot" in item.text for item in found.claim.statements if item.id == "quality.family_context.literal.lost"
    )


def test_questions_are_put_as_text_to_go_on_from_when_no_chat_is_spoken(tmp_path: Path) -> None:
    """The same curve on the completions route, in a form that a base model answers."""
    chosen = replace(options("literal"), route=Route.COMPLETIONS)
    found = run(solver(("literal",), **SHARP), chosen, tmp_path / "evidence")
    assert {length: cell.right for length, cell in found.families["literal"].full.items()} == {300: 6, 600: 6, 1_200: 0}
    asked = [body for _, body in found.view.requests("quality")]
    assert {body.timeline.route for body in asked} == {Route.COMPLETIONS}
    ends = [str(body.cell["end"]) for body in asked]
    assert all(re.search(r"\n\nQuestion: What is .*\nAnswer:$|^Question: What is .*\nAnswer:$", end) for end in ends), (
        ends
    )


# -- climb ------------------------------------------------------------------------------------------------------------

CLIMB = (300, 600, 1_200, 1_800)


def test_the_climb_ends_when_the_first_length_is_lost(tmp_path: Path) -> None:
    """Certified to 600, refuted at 1,200: nothing would be learnt at 1,800."""
    chosen = options("literal", lengths=CLIMB, certify=True, answers=30)
    found = run(solver(("literal",), longest=1_800, **SHARP), chosen, tmp_path / "evidence")
    asked = found.asked()
    assert found.reach("worst") == (600, 1_200)
    assert asked["literal", "full", 1_800] == 0
    full = {length: asked["literal", "full", length] for length in CLIMB}
    assert all(0 < full[length] < 30 for length in (300, 600, 1_200))  # each stopped before its cap


def test_longer_lengths_are_asked_only_to_refute_them_when_one_stays_undecided(tmp_path: Path) -> None:
    """Right every other time at 300 tokens, which is the threshold: undecided there, and never certified above it."""
    able = solver(("literal",), longest=1_200)
    turn = {"asked": 0}

    def every_other_at_300(asked: Asked) -> str | None:
        words = able(asked)
        if words is None or not 290 < asked.tokens < 310:
            return words
        turn["asked"] += 1
        return words if turn["asked"] % 2 else "I do not know."

    chosen = options("literal", certify=True, answers=10)
    found = run(every_other_at_300, chosen, tmp_path / "evidence")
    assert found.reach("worst") == (None, None)
    full = found.families["literal"].full
    assert full[600].n > 0
    assert full[600].right == full[600].n


# -- doubts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("certify", "dialect"), [(False, LLAMACPP), (False, VLLM), (True, LLAMACPP)])
def test_warm_damage_is_named_when_the_prefix_cache_spoils_answers(
    certify: bool, dialect: Dialect, tmp_path: Path
) -> None:
    """Two items at each of two lengths of two families, asked again: 8 of 8 lost, 0.5^8 = 0.004."""
    families = ("literal", "multi-key-8")
    chosen = options(*families, lengths=(300, 600), certify=certify, answers=14)
    answers = solver(families, longest=600, warm_loss=1.0)
    found = run(answers, chosen, tmp_path / "evidence", FAST.but(dialect=dialect))
    assert found.findings() == {"quality.warm_damage"}
    assert found.reach("worst") == (600, None)


def test_a_window_is_named_when_only_the_end_of_the_prompt_is_read(tmp_path: Path) -> None:
    """The distance counts the question and the template behind it: so small a window is found as one."""
    chosen = options("literal", answers=40)
    found = run(solver(("literal",), reads_last_tokens=256), chosen, tmp_path / "evidence")
    (window,) = [finding for finding in found.claim.findings if finding.id.startswith("quality.")]
    assert (window.id, window.details["window_tokens"]) == ("quality.window_bug", "256")


def test_nothing_is_wrong_when_the_output_ends_before_an_answer(tmp_path: Path) -> None:
    able = solver(("literal",))

    def thinks_long(asked: Asked) -> str | None:
        return "Let me think about what the text says here. " * 40 if asked.tokens > 200 else able(asked)

    found = run(thinks_long, options("literal"), tmp_path / "evidence")
    cell = found.families["literal"].full[600]
    assert (cell.n, cell.ended) == (0, {"budget": 6})
    assert found.reach("worst") == (None, None)
    assert any("6 budget" in item.text for item in found.claim.statements)


# -- what cannot be asked ---------------------------------------------------------------------------------------------


def test_a_family_is_left_out_when_the_corpus_is_too_short(tmp_path: Path) -> None:
    """The other one shows three values, so a guess is worth 1/3 and the bar is 2/3: 8 of 8 give
    0.05^(1/8) = 0.688. Long pieces of code may not fit exactly, so there are some more."""
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "short.txt").write_text("A short text.\nIt has two sentences, and no more.\n")
    families = ("literal", "code-definition")
    chosen = options(*families, lengths=(1_200,), corpus=str(folder), code_corpus="python", answers=12)
    found = run(solver(("code-definition",), longest=1_200, n=12), chosen, tmp_path / "evidence")
    assert {family for family, _, _ in found.asked()} == {"code-definition"}
    assert found.reach("code-definition") == (1_200, None)
    assert found.reach("worst") == (None, None)  # the worst of two, of which one is unknown
    assert "quality.literal" in {item.topic for item in found.claim.not_shown}


def test_only_what_the_model_can_counts_when_retention_is_asked(tmp_path: Path) -> None:
    """It cannot answer every other item at all, and loses nothing with length: half of all is right, and all of what it
    can."""
    able, unable = solver(("literal",)), solver(("literal",), lapse=1.0)
    questions: dict[str, int] = {}

    def every_other_item(asked: Asked) -> str | None:
        question = asked.text.rsplit("\n\n", 1)[-1]
        number = questions.setdefault(question, len(questions))
        return unable(asked) if number % 2 else able(asked)

    found = run(every_other_item, options("literal", retention=True, answers=14), tmp_path / "evidence")
    control = found.families["literal"].control
    assert (control.right, control.n) == (7, 14)
    assert found.reach("literal") == (1_200, None)
    assert all((cell.right, cell.n) == (7, 7) for cell in found.families["literal"].full.values())


def test_the_rest_is_named_when_the_budget_ends_in_the_middle(tmp_path: Path) -> None:
    """The estimate takes 16 tokens for an answer. Answers of some 150 need more, so the last questions do not fit."""
    able = solver(("literal",), n=6)

    def wordy(asked: Asked) -> str | None:
        words = able(asked)
        return None if words is None else f"{words}\n{'That is what the text says, I think. ' * 15}"

    plan = QualityPlan(families=("literal",), lengths=LENGTHS, answers=6)
    budget = cost(plan, 16)[1] + 1_500  # calibration takes some 1,200
    chosen = options("literal", budget_tokens=budget, thinking_tokens=200)
    found = run(wordy, chosen, tmp_path / "evidence")
    assert 0 < found.families["literal"].full[1_200].n < 6
    assert "budget.quality" in {item.topic for item in found.claim.not_shown}
    assert sum(found.asked().values()) < cost(plan, 16)[0]


# -- resume -----------------------------------------------------------------------------------------------------------


def command(url: str, directory: Path) -> list[str]:
    chosen = ["--only", "quality", "--families", "literal", "--quality-lengths", "300,600", "--answers", "6"]
    fixed = ["--threshold", "0.5", "--timeout", "120s", "--json"]
    return [sys.executable, "-m", "longproof", "prove", url, "--out", str(directory), *chosen, *fixed]


def lines(directory: Path) -> int:
    path = directory / "records.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def judged(view: EvidenceView) -> list[tuple[str, bool | None]]:
    return [
        (reply.key, reply.right)
        for family in families_of(view)
        for cell in (family.control, family.closed_book, *family.full.values(), *family.warm.values())
        for reply in cell.replies
    ]


def test_nothing_is_asked_twice_when_the_run_is_killed_in_the_middle(tmp_path: Path) -> None:
    """Session, two calibrations, then items and requests: at 14 and 24 records some of them are there and some not."""
    directory = tmp_path / "evidence"
    able = solver(("literal",), longest=600, half_tokens=420.0, width=0.02)
    slow = replace(FAST, token_s=0.004, answers=able)
    engine = engine_with(able, slow)
    with engine as url:
        for at_least in (14, 24):
            # nine requests are answered, of 29 in all, and the next waits: the run cannot be over before it is killed
            engine.behave(slow.lying(SlowPrefill(delay_s=600.0, skip=9)))
            process = subprocess.Popen(
                command(url, directory), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=tmp_path
            )
            while process.poll() is None and lines(directory) < at_least:
                time.sleep(0.005)
            process.send_signal(signal.SIGKILL)
            assert process.wait() == -signal.SIGKILL
        engine.behave(slow)
        done = subprocess.run(command(url, directory), capture_output=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr.decode()
    view = view_of(directory)
    keys = Counter(record.key for record in view.records)
    assert max(keys.values()) == 1
    prompts = Counter(
        record.body.prompt_sha256
        for record in view.records
        if isinstance(record.body, RequestBody) and record.body.cell.get("arm") != "warm"
    )
    assert max(prompts.values()) == 1
    whole = run(able, options("literal", lengths=(300, 600)), tmp_path / "whole")
    assert judged(view) == judged(whole.view)
    texts = [
        [item.text for item in claim.statements if item.id.startswith("quality.")]
        for claim in (claim_of(view), whole.claim)
    ]
    assert texts[0] == texts[1]
    assert json.loads(done.stdout)["complete"] is True
