"""Steps that a budget left out get their turn after all, where those before them took less than was feared."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from proof import OPTIONS, prove_url, said, view_of

from longproof.claim.statements import NotShown
from longproof.evidence.records import NoteBody
from longproof.testing.behaviour import Behaviour
from longproof.testing.lies import SlowPrefill
from longproof.testing.lying_engine import lying_engine


async def test_a_step_is_regained_when_the_server_was_slow_at_first_alone(tmp_path: Path) -> None:
    """The calibration's three requests take a second more each: at that speed 15 s hold neither speed nor warmth."""
    options = replace(OPTIONS, budget_ns=15_000_000_000)
    slow = Behaviour(window_tokens=2048, lies=(SlowPrefill(delay_s=1.0, times=3),))
    async with lying_engine(slow) as url:
        await prove_url(url, tmp_path, options)
    notes = [record.body for record in view_of(tmp_path).records if isinstance(record.body, NoteBody)]
    assert {note.probe for note in notes if note.what == "dropped"} == {"speed", "warmth"}
    assert {note.probe for note in notes if note.what == "regained"} == {"speed", "warmth"}
    missing = {item.topic for item in said(tmp_path) if isinstance(item, NotShown)}
    assert not missing & {"speed", "warmth"}
