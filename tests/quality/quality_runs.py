"""Short quality runs of an engine whose ability is known, through the whole main job."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from longproof.claim.derive import claim_of
from longproof.claim.quality_replies import FamilyReplies, families_of
from longproof.claim.statements import Claim, Standing
from longproof.claim.view import EvidenceView
from longproof.clock import SystemClock
from longproof.domain.measure import Measured
from longproof.evidence.reading import read
from longproof.evidence.records import Header, RequestBody, WindowBody
from longproof.prove.options import ProveOptions, QualityOptions
from longproof.prove.run import Estimate, ProveResult, prove
from longproof.prove.target import UrlTarget
from longproof.testing.answers import Answers
from longproof.testing.behaviour import Behaviour
from longproof.testing.lying_engine import LyingEngine, lying_engine
from longproof.testing.solver import Ability, Solver, items_of

WINDOW = 2_048
LENGTHS = (300, 600, 1_200)
FAST = Behaviour(window_tokens=WINDOW, prefill_tokens_per_s=1e9, token_s=0.0)


class Silent:
    """A watcher that draws nothing."""

    def step(self, probe: str, what: str) -> None: ...

    def finished(self, key: str, body: RequestBody) -> None: ...

    def window_ended(self, key: str, body: WindowBody) -> None: ...

    def planned(self, header: Header, directory: Path, *, resumed: bool) -> None: ...

    def estimated(self, estimate: Estimate) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What came of it: the engine with its log, the evidence, the claim."""

    result: ProveResult
    view: EvidenceView
    claim: Claim

    @property
    def families(self) -> dict[str, FamilyReplies]:
        return {family.name: family for family in families_of(self.view)}

    def asked(self) -> Counter[tuple[str, str, int]]:
        """Requests by (family, arm, length)."""
        cells = [body.cell for _, body in self.view.requests("quality")]
        return Counter((str(cell["family"]), str(cell["arm"]), int(cell["length"])) for cell in cells)

    def reach(self, name: str) -> tuple[int | None, int | None]:
        """(proven up to, lost by) of a family, or of the "worst"."""
        metric = "effective_context" if name == "worst" else "family_context"
        found: list[int | None] = []
        for standing, ending in ((Standing.SHOWN, ""), (Standing.REFUTED, ".lost")):
            wanted = (f"quality.{metric}.{name}{ending}", standing)
            values = [item.value for item in self.claim.statements if (item.id, item.standing) == wanted]
            found.append(next((round(value.value) for value in values if isinstance(value, Measured)), None))
        shown, lost = found
        return shown, lost

    def findings(self) -> set[str]:
        return {finding.id for finding in self.claim.findings if finding.id.startswith("quality.")}


def options(
    *families: str, lengths: tuple[int, ...] = LENGTHS, budget_tokens: int | None = None, **quality: object
) -> ProveOptions:
    """Only quality. Threshold one half, so that six answers are enough: 0.05^(1/6) = 0.607."""
    chosen: dict[str, object] = {"answers": 6, "threshold": 0.5, **quality}
    return ProveOptions(
        only=("quality",),
        budget_tokens=budget_tokens,
        timeout_s=60.0,
        quality=QualityOptions(families=families, lengths=lengths, **chosen),  # type: ignore[arg-type]
    )


def solver(families: Iterable[str], *, longest: int = max(LENGTHS), n: int = 160, **ability: float) -> Solver:
    """Knows the items that such a run asks. `n`: as many as the run draws, where documents are spread over them."""
    items = items_of(tuple(families), seed=0, longest_tokens=longest, n=n)
    return Solver(items, Ability(**ability))  # type: ignore[arg-type]


def engine_with(answers: Answers, behaviour: Behaviour = FAST) -> LyingEngine:
    return lying_engine(behaviour.but(answers=answers))


def run(answers: Answers, chosen: ProveOptions, directory: Path, behaviour: Behaviour = FAST) -> Run:
    with engine_with(answers, behaviour) as url:
        target = UrlTarget(url=url)
        result = asyncio.run(prove(target, chosen, directory, clock=SystemClock(), watcher=Silent()))
    view = view_of(directory)
    return Run(result=result, view=view, claim=claim_of(view))


def view_of(directory: Path) -> EvidenceView:
    stored = read(directory)
    return EvidenceView(
        header=stored.header,
        records=stored.records,
        sealed=stored.seal is not None,
        complete=stored.complete,
        digest=stored.digest,
    )
