"""What a claim is about, in words: target, engine, model, and the names of a deployment's fields."""

from __future__ import annotations

from collections.abc import Iterator

from longproof.claim.view import EvidenceView
from longproof.domain.measure import Measured, Unknown
from longproof.report.numbers import tokens


def who(view: EvidenceView) -> Iterator[tuple[str, str]]:
    """Target, engine and model in words: what stands below the headline."""
    deployment = view.header.deployment
    version = deployment.engine_version
    yield "Target", view.header.target
    yield (
        "Engine",
        f"{deployment.engine.value} {version.value if isinstance(version, Measured) else '(version unknown)'}",
    )
    model, dtype = deployment.model, deployment.weight_dtype
    name = model.value if isinstance(model, Measured) else f"unknown: {model.reason}"
    yield "Model", f"{name} ({dtype.value})" if isinstance(dtype, Measured) else name


def field_name(name: str) -> str:
    """``kv_capacity_tokens`` → ``KV capacity (tokens)``."""
    plain, unit = (name[: -len("_tokens")], " (tokens)") if name.endswith("_tokens") else (name, "")
    if plain.startswith("other."):
        return plain.removeprefix("other.") + unit
    text = plain.replace("_", " ").replace("kv ", "KV ").replace("sha256", "SHA-256")
    return text[0].upper() + text[1:] + unit


def shown_value(value: object) -> str:
    """A reading's value as people read it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return tokens(value) if isinstance(value, int) else str(value)


def unknown_by_reason(view: EvidenceView) -> tuple[tuple[str, str], ...]:
    """(reason, field names) of everything about the deployment that is unknown."""
    reasons: dict[str, list[str]] = {}
    for name, reading in view.header.deployment.readings():
        if isinstance(reading, Unknown):
            reasons.setdefault(reading.reason, []).append(field_name(name))
    return tuple((reason, ", ".join(names)) for reason, names in reasons.items())
