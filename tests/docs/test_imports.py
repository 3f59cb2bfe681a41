"""Quiet on import, quick to help: what gets loaded, seen from a fresh interpreter."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

HEAVY = {
    "httpx",
    "huggingface_hub",
    "jinja2",
    "matplotlib",
    "numpy",
    "orjson",
    "PIL",
    "pip",
    "prometheus_client",
    "psutil",
    "pydantic",
    "pydantic_core",
    "rich",
    "scipy",
    "starlette",
    "tokenizers",
    "uvicorn",
    "xllamacpp",
}


def loaded_by(code: str) -> set[str]:
    """Top-level modules that are loaded after `code` and were not before."""
    program = f"""
import sys
before = set(sys.modules)
import contextlib, io, json
with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
    {code}
print(json.dumps(sorted({{name.partition('.')[0] for name in set(sys.modules) - before}})))
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(json.loads(ran.stdout.splitlines()[-1]))


def test_nothing_outside_the_standard_library_is_loaded_when_longproof_is_imported() -> None:
    loaded = loaded_by("import longproof")
    assert "longproof" in loaded
    assert loaded - set(sys.stdlib_module_names) == {"longproof"}


def test_only_click_is_loaded_when_help_is_asked_for() -> None:
    loaded = loaded_by("from longproof.cli.main import main; sys.argv = ['longproof', '--help']; main()")
    assert "click" in loaded
    assert loaded - set(sys.stdlib_module_names) == {"longproof", "click"}


@pytest.mark.parametrize("command", ["plan", "demo", "prove", "derive", "report", "gate", "inspect"])
def test_no_heavy_package_is_loaded_when_a_commands_help_is_asked_for(command: str) -> None:
    loaded = loaded_by(f"from longproof.cli.main import main; sys.argv = ['longproof', '{command}', '--help']; main()")
    assert "click" in loaded
    assert loaded & HEAVY == set()


def test_no_reader_of_documents_is_loaded_when_evidence_is_read() -> None:
    loaded = loaded_by("import longproof.claim.derive")
    assert "longproof" in loaded
    assert loaded & {"pypdf", "selectolax"} == set()  # charset_normalizer comes with numpy.f2py
