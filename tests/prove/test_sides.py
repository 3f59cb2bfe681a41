"""Two servers in turns: what an interruption leaves, what a budget lets be asked, and that nothing is asked twice."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from proof import Silent, view_of

from longproof.claim.compare import compare
from longproof.clock import SystemClock
from longproof.errors import BudgetError, EvidenceError
from longproof.evidence.records import RequestBody
from longproof.prove.options import ProveOptions
from longproof.prove.sides import SidesResult, ask_sides, is_finished, require_same_comparison
from longproof.prove.target import UrlTarget
from longproof.testing.dialects import VLLM
from longproof.testing.lying_engine import HONEST, lying_engine

ENGINE = HONEST.but(dialect=VLLM, window_tokens=2048, token_s=0.001, prefill_tokens_per_s=200_000.0)
OPTIONS = ProveOptions(lengths=(300, 600), repeats=3, output_tokens=4)


class Interrupted(Exception):  # noqa: N818 - what Ctrl-C does to a run, without the signal
    """The run ends here."""


class StopsAfter(Silent):
    """Interrupts after so many recorded requests."""

    def __init__(self, requests: int) -> None:
        self._left = requests

    def finished(self, key: str, body: RequestBody) -> None:
        self._left -= 1
        if not self._left:
            raise Interrupted


async def ask(
    urls: tuple[str, str], directory: Path, options: ProveOptions = OPTIONS, watcher: Silent | None = None
) -> SidesResult:
    a, b = (UrlTarget(url=url) for url in urls)
    return await ask_sides(a, b, options, directory, clock=SystemClock(), watcher=watcher or Silent())


def asked(directory: Path) -> list[tuple[str, RequestBody]]:
    return [(r.key, r.body) for r in view_of(directory).records if isinstance(r.body, RequestBody)]


async def test_nothing_is_asked_twice_when_a_comparison_goes_on(tmp_path: Path) -> None:
    """Interrupted after 7 requests: both warmed up, the first length asked and asked again on both sides, and the
    second on one side only. That one is asked anew on both, close together; the rest stands."""
    with lying_engine(ENGINE) as a, lying_engine(ENGINE) as b:
        with pytest.raises((Interrupted, ExceptionGroup)):
            await ask((a, b), tmp_path, watcher=StopsAfter(7))
        before = {side: asked(tmp_path / side) for side in "ab"}
        assert len(before["a"]) + len(before["b"]) == 7
        await ask((a, b), tmp_path)
    assert is_finished(tmp_path)
    first, second = view_of(tmp_path / "a"), view_of(tmp_path / "b")
    compared = compare(first, second)
    assert [row.n for row in compared.rows if row.metric == "ttft_ratio"] == [3, 3]
    assert (compared.outputs.compared, compared.outputs.equal) == (6, 6)
    assert compared.outputs.again_a == compared.outputs.again_b == (2, 2)
    for side, stood in before.items():
        now = asked(tmp_path / side)
        assert [key for key, _ in now[: len(stood)]] == [key for key, _ in stood]
        sent = Counter(body.prompt_sha256 for _, body in now if body.cell["arm"] == "pair")
        assert max(sent.values()) == 1
    torn = {key for key, _ in before["a"]} ^ {key for key, _ in before["b"]}
    assert torn == {"compare/600/0"}
    assert {key for key, _ in asked(tmp_path / "a")} >= {"compare/600/0/2", "compare/600/0/2/again"}


async def test_whole_questions_are_left_out_when_the_budget_ends(tmp_path: Path) -> None:
    """Warm-up 2 × 304, the first round (304 + 604) × 4, the second (304 + 604) × 2: 6,056 tokens. Of 6,200 nothing is
    left for the third."""
    options = ProveOptions(lengths=(300, 600), repeats=3, output_tokens=4, budget_tokens=6_200)
    with lying_engine(ENGINE) as a, lying_engine(ENGINE) as b:
        result = await ask((a, b), tmp_path, options)
        assert result.stopped_by is None
        targets = UrlTarget(url=a), UrlTarget(url=b)
    compared = compare(view_of(tmp_path / "a"), view_of(tmp_path / "b"))
    assert compared.cut_short is not None
    assert "after 4 of 6 questions" in compared.cut_short
    assert is_finished(tmp_path)
    require_same_comparison(tmp_path, *targets, options)
    with pytest.raises(EvidenceError, match="budget"):
        require_same_comparison(tmp_path, *targets, OPTIONS)


async def test_a_budget_below_one_question_is_refused(tmp_path: Path) -> None:
    options = ProveOptions(lengths=(300, 600), repeats=3, output_tokens=4, budget_tokens=1_000)
    with lying_engine(ENGINE) as a, lying_engine(ENGINE) as b, pytest.raises(BudgetError, match="1,216"):
        await ask((a, b), tmp_path, options)
