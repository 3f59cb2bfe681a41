"""The conditions that stand above a claim."""

from __future__ import annotations

from longproof.claim.conditions import conditions_of
from longproof.evidence.records import NoteBody
from longproof.testing.builders import build_view


def test_fields_that_the_server_refused_are_a_condition() -> None:
    note = NoteBody(probe="run", what="fields_refused", detail={"fields": "without seed"})
    assert conditions_of(build_view(note))["request_fields"] == "without seed: the server refuses them"
    assert "request_fields" not in conditions_of(build_view())
