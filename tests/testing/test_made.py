"""Paths that scripts print."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from longproof.testing.made import made_by


def test_the_path_is_what_the_script_prints(tmp_path: Path) -> None:
    script = tmp_path / "make.py"
    script.write_text("import sys\nprint('busy', file=sys.stderr)\nprint('/some/where')\n", encoding="utf-8")
    assert made_by(script) == Path("/some/where")


def test_a_script_that_fails_is_told(tmp_path: Path) -> None:
    script = tmp_path / "make.py"
    script.write_text("raise SystemExit(3)\n", encoding="utf-8")
    with pytest.raises(subprocess.CalledProcessError):
        made_by(script)
