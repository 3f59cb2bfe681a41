"""Looking at a server without proving it: inspection, and whether evidence is about it."""

from __future__ import annotations

import tempfile
from pathlib import Path

from longproof.domain.deployment import Deployment
from longproof.errors import ConfigurationMismatch
from longproof.evidence.fingerprint import differences, fingerprint
from longproof.evidence.reading import read
from longproof.prove.target import Target


async def inspect_target(target: Target) -> Deployment:
    """What the target tells of itself. Raises UserError when it cannot be reached or is not what it should be."""
    with tempfile.TemporaryDirectory(prefix="longproof-") as scratch:
        engine = await target.open(Path(scratch) / "engine.log")
        try:
            return await engine.introspect()
        finally:
            await engine.aclose()


async def require_same_deployment(directory: Path, target: Target) -> None:
    """ConfigurationMismatch, naming every field that differs, when the evidence is not about the running target."""
    claimed = read(directory).header.fingerprint
    actual = fingerprint(await inspect_target(target))
    different = differences(claimed, actual)
    if different:
        lines = "".join(f"\n  {field}: the claim has {was}, the server has {now}" for field, was, now in different)
        raise ConfigurationMismatch(
            f"the claim in {directory} is not about {target.label}; {len(different)} fields differ:{lines}",
            advice="prove this configuration, or point --deployment at the one the claim is about",
            fields=different,
        )
