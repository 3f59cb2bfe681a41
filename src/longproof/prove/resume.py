"""Where a run's evidence goes, and whether what lies there is the same run."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

from longproof.errors import EvidenceError
from longproof.evidence.fingerprint import differences
from longproof.evidence.reading import holds_run, read
from longproof.evidence.records import Header, Protocol
from longproof.evidence.store import Journal
from longproof.prove.options import ProveOptions
from longproof.prove.protocol import LEFT_OUT, usual_probes

_OF_LENGTHS = ("speed", "warmth", "compare")
_NUMBERED = re.compile(r"-(\d{3,})$")


def evidence_directory(base: Path, label: str, *, finished: Callable[[Path], bool] | None = None) -> Path:
    """The newest unfinished directory of this target below `base`, else the next number: ``http-localhost-8000-001``.

    The same command, run again after a kill, finds its own evidence; after a finished run it begins a new one.
    `finished`: what finished means there; default: `is_complete`.
    """
    slug = re.sub(r"[^A-Za-z0-9.]+", "-", label).strip("-.").lower()[:80] or "target"
    numbers = [
        int(found.group(1))
        for path in (base.glob(f"{slug}-*") if base.is_dir() else ())
        if (found := _NUMBERED.search(path.name)) and path.name == f"{slug}-{found.group(1)}"
    ]
    newest = max(numbers, default=0)
    if newest and not (finished or is_complete)(base / f"{slug}-{newest:03d}"):
        return base / f"{slug}-{newest:03d}"
    return base / f"{slug}-{newest + 1:03d}"


def is_complete(directory: Path) -> bool:
    """Whether a finished run lies there: its protocol ran to its end and it is sealed."""
    return holds_run(directory) and read(directory).complete


def open_journal(directory: Path, header: Header) -> Journal:
    """The journal of a new run, or of the same run begun there before. EvidenceError where it is another one."""
    if not holds_run(directory):
        return Journal.create(directory, header)
    journal = Journal.resume(directory)
    try:
        require_same(journal.header, header, directory)
    except BaseException:
        journal.close()
        raise
    return journal


def require_same(stored: Header, wanted: Header, directory: Path) -> None:
    """EvidenceError naming the first things that differ when `directory` holds another run than the one asked for."""
    if stored.target != wanted.target:
        raise EvidenceError(
            f"{directory} holds evidence about {stored.target}, not {wanted.target}",
            advice="name a new directory with --out",
        )
    changed = differences(stored.fingerprint, wanted.fingerprint)
    if changed:
        what = "; ".join(f"{field} was {was}, is {now}" for field, was, now in changed[:4])
        raise EvidenceError(
            f"the server is not the one this evidence was begun with: {what}",
            advice="start the server as it was, or begin anew with another --out",
        )
    asked = [
        item.name
        for item in fields(Protocol)
        if getattr(stored.protocol, item.name) != getattr(wanted.protocol, item.name)
    ]
    if asked:
        raise EvidenceError(
            f"{directory} was begun with other options ({', '.join(asked)})",
            advice="repeat the first command word by word to go on, or begin anew with another --out",
        )


def require_same_question(directory: Path, label: str, options: ProveOptions) -> None:
    """EvidenceError when a finished run in `directory` answers another question than the one asked now. The server is
    not asked: choices that were left to it count as the same."""
    stored = read(directory).header
    protocol = stored.protocol
    if stored.target != label:
        raise EvidenceError(
            f"{directory} holds evidence about {stored.target}, not {label}", advice="name a new directory with --out"
        )
    chosen: dict[str, tuple[object, object]] = {
        "seed": (protocol.seed, options.seed),
        "context": (protocol.context_tokens, options.context_tokens),
        "repeats": (protocol.repeats, options.repeats),
        "output tokens": (protocol.output_tokens, options.output_tokens),
        "budget": ((protocol.budget_ns, protocol.budget_tokens), (options.budget_ns, options.budget_tokens)),
        "probes": (_wanted(protocol), set(options.only) if options.only else _wanted(protocol, usual=True)),
        "load or quality": (protocol.choices, {**options.load.words(), **options.quality.words()}),
    }
    if options.timeout_s is not None:
        chosen["timeout"] = (protocol.request_timeout_s, options.timeout_s)
    if options.route is not None:
        chosen["route"] = (protocol.route, options.route)
    if options.lengths is not None:
        asked = {str(step.parameters["lengths"]) for step in protocol.steps if step.probe in _OF_LENGTHS}
        chosen["lengths"] = (asked, {str(list(options.lengths))} if asked else asked)
    changed = [name for name, (was, now) in chosen.items() if was != now]
    if changed:
        raise EvidenceError(
            f"{directory} holds a finished run with other options ({', '.join(changed)})",
            advice="prove again into a new directory with --out",
        )


def _wanted(protocol: Protocol, *, usual: bool = False) -> set[str]:
    """The probes that were wanted: those that ran, and those that the server made impossible. `usual`: those that are
    wanted where nobody chose."""
    if usual:
        return set(usual_probes(pair=any(step.probe == "disaggregated" for step in protocol.steps)))
    impossible = {probe for probe, reason in protocol.not_run.items() if reason != LEFT_OUT}
    return {step.probe for step in protocol.steps} | impossible
