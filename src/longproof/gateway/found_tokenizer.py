"""The tokenizer of a model that an engine names, where it lies on this machine already. Nothing is fetched.

    "root": "/models/Qwen3"         and the engine is on this machine     that directory
    "root": "Qwen/Qwen3-32B"                                              its place in the Hugging Face cache

It is only a guess, like every tokenizer here: `count_check` compares it with the engine's before it counts.
"""

from __future__ import annotations

import re
from pathlib import Path

from longproof.domain.deployment import Deployment, EngineKind
from longproof.domain.measure import value_or_none
from longproof.engines.address import is_loopback

_FILE, _SETTINGS = "tokenizer.json", "tokenizer_config.json"
_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")


def found_tokenizer(deployment: Deployment, url: str) -> Path | None:
    """A directory with a tokenizer.json, or None."""
    name = value_or_none(deployment.model_file)
    if name is None or deployment.engine not in (EngineKind.VLLM, EngineKind.SGLANG):
        return None
    path = Path(name)
    if path.is_absolute():
        return path if is_loopback(url) and (path / _FILE).is_file() else None
    return _cached(name) if _REPOSITORY.fullmatch(name) else None


def _cached(repository: str) -> Path | None:
    # here and not above: a client for a hub that most fleets never name
    from huggingface_hub import try_to_load_from_cache  # noqa: PLC0415

    found = try_to_load_from_cache(repository, _FILE)
    settings = try_to_load_from_cache(repository, _SETTINGS)  # without it there is no template, and no special token
    return Path(found).parent if isinstance(found, str) and isinstance(settings, str) else None
