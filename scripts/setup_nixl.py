"""NIXL beside the vLLM environment, for tests of a prefill/decode pair: one command, done once, a no-op afterwards.

    python scripts/setup_nixl.py          prints a directory for PYTHONPATH on stdout, all else on stderr

vLLM's NixlConnector imports `nixl`, whose wheel needs `nixl-cu12` for its code. That one names CUDA packages of
gigabytes as requirements; moving KV between two processes of one machine needs none of them, so both wheels are
unpacked alone.

Environment: LONGPROOF_NIXL puts it elsewhere (default: nixl-1.5 in longproof's cache directory).
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import platformdirs
from setup_vllm_cpu import set_up, venv_dir, venv_python

WHEELS = ("nixl==1.5.2", "nixl-cu12==1.5.1")
_DONE = ".longproof-complete"


def nixl_dir() -> Path:
    """Where it is: LONGPROOF_NIXL, else the user's cache directory."""
    chosen = os.environ.get("LONGPROOF_NIXL")
    return Path(chosen).expanduser().absolute() if chosen else platformdirs.user_cache_path("longproof") / "nixl-1.5"


def main() -> int:
    """The exit code."""
    set_up(venv_dir())  # its interpreter decides which wheels fit
    target = nixl_dir()
    if not (target / _DONE).exists():
        install = [str(venv_python()), "-m", "pip", "install", "--no-deps", "--quiet", "--target", str(target), *WHEELS]
        if subprocess.run(install, stdout=sys.stderr, check=False).returncode != 0:
            return 1
        (target / _DONE).touch()
    sys.stdout.write(f"{target}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
