"""A prefill side and a decode side as one deployment: what a request meets, and each side's own facts beside it."""

from __future__ import annotations

from dataclasses import replace

from longproof.domain.deployment import Deployment
from longproof.domain.measure import Measured, Reading, Unknown, derived, value_or_none
from longproof.errors import UsageError

_EACH_SIDES_OWN = (
    "engine_version",
    "slots",
    "kv_capacity_tokens",
    "kv_blocks",
    "block_size_tokens",
    "kv_dtype",
    "max_batched_tokens",
    "layout",
    "prefix_caching",
)


def pair_deployment(prefill: Deployment, decode: Deployment) -> Deployment:
    """A request must fit both sides, so limits and capacity are the smaller ones; the rest is the decode side's, and
    ``other`` has each side's own.

    Raises UsageError where the sides serve different models or engines: KV of one means nothing to the other.
    """
    for name, one, two in (
        ("engine", prefill.engine.value, decode.engine.value),
        ("model", value_or_none(prefill.model), value_or_none(decode.model)),
    ):
        if one != two:
            raise UsageError(
                f"the prefill side's {name} is {one}, the decode side's {two}",
                advice="give two URLs of one deployment: the same model behind the same engine",
            )
    other: dict[str, Reading[str]] = dict(decode.other)
    other["topology"] = derived("prefill/decode pair", "two URLs")
    for side, facts in (("prefill", prefill), ("decode", decode)):
        for name, reading in facts.readings():
            if name in _EACH_SIDES_OWN and isinstance(reading, Measured):
                other[f"{side}.{name}"] = Measured(
                    value=str(reading.value), provenance=reading.provenance, source=reading.source
                )
    return replace(
        decode,
        configured_limit_tokens=_smaller(prefill.configured_limit_tokens, decode.configured_limit_tokens),
        kv_capacity_tokens=_smaller(prefill.kv_capacity_tokens, decode.kv_capacity_tokens),
        other=other,
    )


def side_number(deployment: Deployment, side: str, name: str) -> int | None:
    """A number of one side's own facts; None where that side does not tell it, or the deployment is no pair."""
    told = deployment.other.get(f"{side}.{name}")
    return int(told.value) if isinstance(told, Measured) and told.value.isdecimal() else None


def _smaller(prefill: Reading[int], decode: Reading[int]) -> Reading[int]:
    if isinstance(prefill, Unknown) or isinstance(decode, Unknown):
        return prefill if isinstance(prefill, Unknown) else decode
    words = f"the smaller of prefill {prefill.value:,} ({prefill.source}) and decode {decode.value:,} ({decode.source})"
    return derived(min(prefill.value, decode.value), words)
