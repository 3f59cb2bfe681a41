"""Which configuration a claim is about: the known facts of a deployment, and one hash over them."""

from __future__ import annotations

import hashlib
from pathlib import PurePosixPath

from longproof.domain.deployment import Deployment
from longproof.evidence.codec import encode
from longproof.evidence.records import Fingerprint

_UNKNOWN = "unknown"
_WHERE_NOT_WHAT = frozenset(
    f"other.{name}" for name in ("host", "hostname", "port", "url", "base_url", "bind", "api_key", "pid", "log_file")
)
"""Where a server listens and what it is called there; the same configuration elsewhere is the same configuration."""
_FILES = frozenset({"model_file"})
"""Facts that are paths: the name identifies the file, the directory tells about the machine."""


def fingerprint(deployment: Deployment) -> Fingerprint:
    """The facts that define a configuration, as text, and their sha256 (hex), without unknown facts and addresses."""
    facts = {
        name: PurePosixPath(value).name if name in _FILES else value
        for name, value in deployment.known().items()
        if name not in _WHERE_NOT_WHAT
    }
    return Fingerprint(facts=facts, digest=hashlib.sha256(encode(facts)).hexdigest())


def differences(claimed: Fingerprint, actual: Fingerprint) -> tuple[tuple[str, str, str], ...]:
    """(field, claimed, actual) for every fact that differs, by name. A fact known on one side alone is ``unknown`` on
    the other: it cannot be shown to be the same."""
    names = sorted(claimed.facts.keys() | actual.facts.keys())
    pairs = ((name, claimed.facts.get(name, _UNKNOWN), actual.facts.get(name, _UNKNOWN)) for name in names)
    return tuple((name, was, now) for name, was, now in pairs if was != now)
