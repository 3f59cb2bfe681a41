"""A seed means the same items in every process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
PROGRAM = """
import hashlib
from small_corpora import corpus_for
from longproof.quality.tasks import FAMILIES
for name, family in FAMILIES.items():
    items = family.items(seed=1, n=4, corpus=corpus_for(family))
    print(name, hashlib.sha256(repr(items).encode()).hexdigest())
"""


def digests(hash_seed: str) -> str:
    """What a process prints in which strings have other hashes, so that sets have another order."""
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    environment["PYTHONPATH"] = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, check=True, text=True
    ).stdout


def test_items_are_the_same_when_another_process_draws_them() -> None:
    one, other = digests("1"), digests("2")
    assert one == other
    assert len(one.splitlines()) >= 17
