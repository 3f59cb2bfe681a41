"""What is proved: something that can be opened into an Engine. A URL, or a model that we serve ourselves."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from longproof.engines.base import Engine


class Target(Protocol):
    """Opens an engine. `label` says the same for the same command line: it names the evidence and is stored in it."""

    @property
    def label(self) -> str: ...

    async def open(self, log_path: Path) -> Engine:
        """Connects, or starts the engine with its log appended to `log_path`. Raises UserError when that cannot be
        done."""
        ...
