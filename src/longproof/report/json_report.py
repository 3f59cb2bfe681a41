"""Machine-readable forms of what the card shows; the claim's own document is `claim.json`. Keys are sorted, bytes
are stable."""

from __future__ import annotations

import json

from longproof.claim.gate import GateReport
from longproof.domain.deployment import Deployment
from longproof.domain.measure import Measured
from longproof.domain.verdict import Undecided, Verdict


def deployment_json(deployment: Deployment) -> str:
    """Every field as ``{"value", "provenance", "source"}`` or ``{"unknown": reason}``."""
    fields: dict[str, dict[str, object]] = {}
    for name, reading in deployment.readings():
        if isinstance(reading, Measured):
            fields[name] = {"value": reading.value, "provenance": reading.provenance.value, "source": reading.source}
        else:
            fields[name] = {"unknown": reading.reason}
    return _dump({"engine": deployment.engine.value, "fields": fields})


def gate_json(report: GateReport) -> str:
    """Verdicts in the order of their requirements, warnings, and the exit code."""
    return _dump(
        {
            "exit_code": report.exit_code,
            "confidence": report.confidence,
            "verdicts": [_verdict(item) for item in report.verdicts],
            "warnings": list(report.warnings),
        }
    )


def _verdict(item: Verdict) -> dict[str, object]:
    document: dict[str, object] = {
        "verdict": type(item).__name__.lower(),
        "requirement": item.requirement,
        "sentence": item.sentence,
        "statements": list(item.statements),
    }
    if isinstance(item, Undecided) and item.repeats_needed is not None:
        document["repeats_needed"] = item.repeats_needed
    return document


def _dump(document: dict[str, object]) -> str:
    return json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False)
