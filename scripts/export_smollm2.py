"""Turns the demo GGUF into a Hugging Face directory that vLLM serves, so that both engines serve the same model.

    python scripts/export_smollm2.py [GGUF]      prints the directory on stdout, all else on stderr

Without an argument the GGUF is longproof's default model. The work happens in the environment of
scripts/setup_vllm_cpu.py (see scripts/gguf_to_hf.py). A file that was exported before is not exported again: the
directory is named after the file's hash and appears only when it is whole.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import platformdirs
from setup_vllm_cpu import is_complete, venv_dir, venv_python

from longproof.engines.model_files import resolve_model

CONVERTER = Path(__file__).with_name("gguf_to_hf.py")


def export(gguf: Path) -> Path:
    """The exported directory of a GGUF file, made if it is not there yet. Raises SystemExit with a message."""
    if not is_complete(venv_dir()):
        raise SystemExit(f"export_smollm2: {venv_dir()} is not complete; run scripts/setup_vllm_cpu.py first")
    with gguf.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    target = platformdirs.user_cache_path("longproof") / f"{gguf.stem}-hf-{digest[:12]}"
    if target.is_dir():
        say(f"{target} is there, nothing to do")
        return target
    unfinished = target.with_name(f"{target.name}.{os.getpid()}.part")
    unfinished.mkdir(parents=True)
    try:
        say(f"exporting {gguf}")
        command = [str(venv_python()), str(CONVERTER), str(gguf), str(unfinished)]
        offline = {**os.environ, "HF_HUB_OFFLINE": "1"}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=offline)
        if done.returncode != 0:
            raise SystemExit(f"export_smollm2: the export ended with {done.returncode}:\n{done.stderr[-3000:]}")
        publish(unfinished, target)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return target


def publish(unfinished: Path, target: Path) -> None:
    """Gives the directory its name; when somebody else was faster, theirs stays."""
    try:
        unfinished.rename(target)
    except OSError:
        if not target.is_dir():
            raise


def say(text: str) -> None:
    """One line for whoever waits, on stderr."""
    sys.stderr.write(f"export_smollm2: {text}\n")
    sys.stderr.flush()


def main() -> int:
    """Parse, export, say where."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("gguf", nargs="?", type=Path, help="the GGUF file (default: longproof's default model)")
    chosen = parser.parse_args().gguf
    sys.stdout.write(f"{export(resolve_model(chosen))}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
