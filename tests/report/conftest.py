"""Fixtures of the report's tests: whole runs made by hand, and a directory that holds one."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from longproof.claim.view import EvidenceView
from longproof.evidence.store import Journal
from longproof.testing.scenarios import SCENARIOS
from longproof.testing.scenarios_load import bare

sys.path.insert(0, str(Path(__file__).parent))

WriteRun = Callable[[EvidenceView, Path], Path]


_EVERY = {**SCENARIOS, "bare load": bare}
"""The one run under load that is drawn quickly; the others have tests of their own."""


@pytest.fixture(params=sorted(_EVERY))
def view(request: pytest.FixtureRequest) -> EvidenceView:
    """Every scenario in turn."""
    return _EVERY[request.param]()


@pytest.fixture
def write_run() -> WriteRun:
    """Writes a view as a real evidence directory, sealed when the view is."""

    def write(view: EvidenceView, directory: Path) -> Path:
        with Journal.create(directory, view.header) as journal:
            for record in view.records:
                journal.append(record.key, record.body)
            if view.sealed:
                journal.seal(complete=view.complete)
        return directory

    return write
