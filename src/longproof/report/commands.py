"""The command lines that repeat a proof, recompute its claim and hold it against a requirement."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from longproof.claim.statements import Claim
from longproof.claim.view import EvidenceView
from longproof.domain.deployment import Deployment
from longproof.domain.measure import Measured
from longproof.evidence.records import Protocol
from longproof.report import verdict

_EMBEDDED = "embedded "
"""How the target of a model that longproof served itself begins; the model as it was named follows."""


def commands(claim: Claim, view: EvidenceView) -> Iterator[tuple[str, str]]:
    """(what it does, command line). DIR is the evidence directory."""
    header = view.header
    yield (
        "Ask the server again, with the same protocol",
        shlex.join(["longproof", *_target(header.target, header.deployment), *_protocol(header.protocol)]),
    )
    yield "Recompute this claim from the evidence alone, byte for byte", "longproof derive DIR"
    yield "Draw this page again", "longproof report DIR"
    boundary = verdict.boundary_tokens(claim)
    requirement = f"context >= {boundary}" if boundary is not None else "context >= 8000"
    yield "Hold a requirement against it", shlex.join(["longproof", "gate", "DIR", "--require", requirement])


def _target(target: str, deployment: Deployment) -> Iterator[str]:
    """``prove URL``, or ``demo`` with what the embedded engine was started with."""
    if not target.startswith(_EMBEDDED):
        yield from ("prove", target)
        return
    yield "demo"
    model, window, slots, kv = (
        target.removeprefix(_EMBEDDED),
        deployment.configured_limit_tokens,
        deployment.slots,
        deployment.kv_dtype,
    )
    if "/" in model or model.endswith(".gguf"):  # anything else is the name of the default model
        yield from ("--model", model)
    if isinstance(window, Measured):
        yield from ("--window", str(window.value))
    if isinstance(slots, Measured) and slots.value != 1:
        yield from ("--slots", str(slots.value))
    if isinstance(kv, Measured) and kv.value != "f16":
        yield from ("--kv-type", kv.value)


def _protocol(protocol: Protocol) -> Iterator[str]:
    lengths = next((step.parameters.get("lengths") for step in protocol.steps if step.probe == "speed"), None)
    if isinstance(lengths, list) and lengths:
        yield from ("--lengths", ",".join(str(length) for length in lengths))
    if protocol.context_tokens is not None:
        yield from ("--context", str(protocol.context_tokens))
    if protocol.not_run:
        yield from ("--only", ",".join(step.probe for step in protocol.steps))
    budget = [] if protocol.budget_ns is None else [f"{protocol.budget_ns // 1_000_000_000}s"]
    budget += [] if protocol.budget_tokens is None else [f"{protocol.budget_tokens}tok"]
    if budget:
        yield from ("--budget", ",".join(budget))
    yield from ("--repeats", str(protocol.repeats), "--output-tokens", str(protocol.output_tokens))
    yield from ("--timeout", f"{protocol.request_timeout_s:g}s", "--route", protocol.route.value)
    yield from ("--seed", str(protocol.seed))
