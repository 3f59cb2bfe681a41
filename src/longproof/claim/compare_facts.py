"""In what two configurations differ, and whether that is the one thing a comparison is about."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields

from longproof.domain.deployment import Deployment
from longproof.domain.measure import Unknown
from longproof.errors import ConfigurationMismatch, UsageError
from longproof.evidence.fingerprint import differences
from longproof.evidence.records import Header

FACTORS: dict[str, tuple[str, ...]] = {
    "engine": ("engine", "engine_version", "engine_build", "block_size_tokens", "kv_unified"),  # how each keeps its KV
    "engine-version": ("engine_version", "engine_build"),
    "kv-dtype": ("kv_dtype",),
    "model": (
        "model",
        "model_file",
        "model_sha256",
        "weight_dtype",
        "trained_limit_tokens",
        "chat_template_sha256",
        "other.quantization",
    ),
    "prefix-caching": ("prefix_caching", "other.enable_prefix_caching"),
    "quantization": ("weight_dtype", "model", "model_file", "model_sha256", "other.quantization"),
    "speculative": ("other.spec",),
}
"""Names for what people vary, with the facts that then differ. A fact that ends in none of them but begins with one
counts too: ``other.spec`` covers ``other.speculative_method``."""
_FOLLOW = frozenset(
    {
        "kv_capacity_tokens",
        "kv_blocks",
        "other.kv_usable_tokens",
        "other.log_kv_tokens",
        "other.log_max_concurrency",
    }
)
"""What an engine works out from the rest: it follows from a factor and is none."""
_HASHED = re.compile(r"(?P<shown>vllm-.+)-[0-9a-f]{8}$")
"""vLLM's build ends in eight digits of a hash over its whole configuration (entrypoints/serve/utils/fingerprint.py,
0.32): that it differs says that something does, not what."""
_UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class FactDifference:
    """A fact that both sides tell, differently. `role`: ``factor`` or ``follows``."""

    name: str
    a: str
    b: str
    role: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FactsCompared:
    """`factor` is what the comparison is about, None where nothing that the servers tell differs and nobody named it.
    `unknown` are facts that a side does not tell: (name, which side, why)."""

    factor: str | None
    named: bool
    differing: tuple[FactDifference, ...]
    unknown: tuple[tuple[str, str, str], ...]

    @property
    def told(self) -> bool:
        """Whether the servers' own words show that the factor, or at least something, differs."""
        return bool(self.differing)


def compare_facts(a: Header, b: Header, factors: Sequence[str]) -> FactsCompared:
    """Facts of two headers. ConfigurationMismatch, with all that differ, when it is more than the named factors, or,
    without any named, more than one fact. UsageError for a factor that is none."""
    covered = [name for factor in factors for name in _covered(factor, (a.deployment, b.deployment))]
    told = [
        (name, was, now) for name, was, now in differences(a.fingerprint, b.fingerprint) if _UNKNOWN not in (was, now)
    ]
    own = [item for item in told if not _follows(*item) or _is_in(item[0], covered)]
    beyond = [item for item in own if not _is_in(item[0], covered)] if factors else own[1:]
    if beyond:
        _refuse(own, beyond, factors)
    factor = ", ".join(factors) if factors else (own[0][0] if own else None)
    mine = {name for name, _, _ in own}
    return FactsCompared(
        factor=factor,
        named=bool(factors),
        differing=tuple(
            FactDifference(name=name, a=was, b=now, role="factor" if name in mine else "follows")
            for name, was, now in told
        ),
        unknown=tuple(_unknown(a.deployment, b.deployment)),
    )


def require_same_questions(a: Header, b: Header) -> None:
    """ConfigurationMismatch when the two proofs did not ask the same: their times cannot be held against each other."""
    asked = {
        "route": (a.protocol.route.value, b.protocol.route.value),
        "output tokens": (str(a.protocol.output_tokens), str(b.protocol.output_tokens)),
    }
    different = tuple((name, was, now) for name, (was, now) in asked.items() if was != now)
    if different:
        lines = "".join(f"\n  {name}: A {was}, B {now}" for name, was, now in different)
        raise ConfigurationMismatch(
            f"the two proofs asked different questions:{lines}",
            advice="prove both with the same options",
            fields=different,
        )


def _covered(factor: str, deployments: Sequence[Deployment]) -> tuple[str, ...]:
    known = FACTORS.get(factor)
    if known is not None:
        return known
    name = factor.replace("-", "_")
    declared = {item.name for item in fields(Deployment)} - {"other"}
    others = {other for deployment in deployments for other in deployment.other}
    if name in declared:
        return (name,)
    if name.removeprefix("other.") in others:
        return (f"other.{name.removeprefix('other.')}",)
    raise UsageError(
        f"--factor {factor} names nothing that servers tell",
        advice=f"name one of {', '.join(sorted(FACTORS))}, or a fact of 'longproof inspect'",
    )


def _follows(name: str, a: str, b: str) -> bool:
    """Whether a difference follows from others and is no choice of its own."""
    builds = _HASHED.match(a), _HASHED.match(b)
    hashed = name == "engine_build" and all(builds) and len({found["shown"] for found in builds if found}) == 1
    return name in _FOLLOW or hashed


def _is_in(name: str, covered: Sequence[str]) -> bool:
    return any(name == item or (item.startswith("other.") and name.startswith(item)) for item in covered)


def _refuse(
    own: Sequence[tuple[str, str, str]], beyond: Sequence[tuple[str, str, str]], factors: Sequence[str]
) -> None:
    lines = "".join(f"\n  {name}: A {was}, B {now}" for name, was, now in own)
    if factors:
        also = ", ".join(name for name, _, _ in beyond)
        problem = f"the configurations differ in more than {', '.join(factors)} (also in {also}):{lines}"
    else:
        problem = f"the configurations differ in {len(own)} facts, so no difference can be laid at one of them:{lines}"
    raise ConfigurationMismatch(
        problem,
        advice="make them equal but for one, or name all that may differ with --factor (it may be given several times)",
        fields=tuple(own),
    )


def _unknown(a: Deployment, b: Deployment) -> list[tuple[str, str, str]]:
    mine, theirs = dict(a.readings()), dict(b.readings())
    found: list[tuple[str, str, str]] = []
    for name in [*mine, *(name for name in theirs if name not in mine)]:
        sides = {"A": mine.get(name), "B": theirs.get(name)}
        silent = {
            side: reading.reason if isinstance(reading, Unknown) else "it does not tell"
            for side, reading in sides.items()
            if reading is None or isinstance(reading, Unknown)
        }
        if silent:
            found.append((name, " and ".join(silent), next(iter(silent.values()))))
    return found
