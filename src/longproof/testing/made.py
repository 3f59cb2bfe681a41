"""What the project's scripts make once and keep (an environment with vLLM, a model's directory), for tests and
benchmarks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def made_by(script: Path) -> Path:
    """Runs a script and takes the path it prints; its progress goes to our stderr. CalledProcessError where it
    fails."""
    done = subprocess.run([sys.executable, str(script)], stdout=subprocess.PIPE, text=True, check=True)
    return Path(done.stdout.strip())
