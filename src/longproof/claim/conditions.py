"""Under which conditions everything in a claim was measured."""

from __future__ import annotations

from collections.abc import Iterable

from longproof.claim.view import EvidenceView
from longproof.domain.measure import Reading, Unknown
from longproof.domain.request import Route
from longproof.evidence.records import SessionBody, WindowBody

_ROUTES = {Route.CHAT: "/v1/chat/completions", Route.COMPLETIONS: "/v1/completions"}


def conditions_of(view: EvidenceView) -> dict[str, str]:
    """Engine, model, layout, load, route and client, in the order in which they are read. What is unknown says so."""
    deployment, protocol = view.header.deployment, view.header.protocol
    sessions = [record.body for record in view.records if isinstance(record.body, SessionBody)]
    adapted = [str(note.detail["fields"]) for _, note in view.notes("run") if note.what == "fields_refused"]
    return {
        "engine": deployment.engine.value,
        "engine_version": _text(deployment.engine_version),
        "engine_build": _text(deployment.engine_build),
        "model": _text(deployment.model),
        "weights": _text(deployment.weight_dtype),
        "kv_dtype": _text(deployment.kv_dtype),
        "layout": _text(deployment.layout),
        "slots": _text(deployment.slots),
        "load": _load(view),
        "route": _ROUTES[protocol.route],
        "repeats": str(protocol.repeats),
        "output_tokens": str(protocol.output_tokens),
        **({"request_fields": f"{adapted[0]}: the server refuses them"} if adapted else {}),
        "request_timeout": f"{protocol.request_timeout_s:g} s",
        "client": _each_once(_host(session) for session in sessions) or "unknown: no session was begun",
        "sessions": str(len(sessions)),
        "measured_with": _each_once(f"longproof {session.longproof_version}" for session in sessions)
        or f"longproof {view.header.longproof_version}",
    }


def _load(view: EvidenceView) -> str:
    alone = "one request at a time, from one client"
    probes = dict.fromkeys(record.body.probe for record in view.records if isinstance(record.body, WindowBody))
    return f"{alone}; {', '.join(probes)}: under the load that each statement names" if probes else alone


def _text(reading: Reading[str] | Reading[int]) -> str:
    return f"unknown: {reading.reason}" if isinstance(reading, Unknown) else str(reading.value)


def _host(session: SessionBody) -> str:
    host = session.host
    parts = [host.get("cpu"), f"{host['cpus']} cores" if "cpus" in host else None, host.get("memory"), host.get("os")]
    return ", ".join(part for part in (*parts, host.get("python")) if part)


def _each_once(texts: Iterable[str]) -> str:
    """Resumed elsewhere, a run has several: ``a; then b``."""
    return "; then ".join(dict.fromkeys(texts))
