"""What `prove` and `demo` share: run, derive, report, show."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import click

from longproof.claim.derive import derive, load_view, write_claim
from longproof.cli.options import DEFAULT_EVIDENCE
from longproof.cli.options_load import load_options_from
from longproof.cli.options_quality import quality_options_from
from longproof.cli.progress import TerminalWatcher
from longproof.clock import SystemClock
from longproof.domain.outcome import completed_as_asked
from longproof.domain.request import Route
from longproof.domain.units import parse_duration_ns
from longproof.errors import EXIT_GATE_FAILED, EXIT_OK, EXIT_UNDECIDED
from longproof.prove.options import ProveOptions
from longproof.prove.resume import evidence_directory, is_complete, require_same_question
from longproof.prove.run import prove
from longproof.prove.target import Target
from longproof.report.html import write_report
from longproof.report.text import print_card


def proof_options_from(choices: dict[str, Any]) -> ProveOptions:
    """The command line's words as options."""
    budget = choices["budget"] or (None, None)
    timeout = choices["timeout"]
    only = choices["only"]
    return ProveOptions(
        context_tokens=choices["context_tokens"],
        lengths=choices["lengths"],
        repeats=choices["repeats"],
        only=tuple(part.strip() for part in only.split(",")) if only else None,
        budget_ns=budget[0],
        budget_tokens=budget[1],
        output_tokens=choices["output_tokens"],
        timeout_s=parse_duration_ns(timeout) / 1e9 if timeout else None,
        resolution_tokens=choices["resolution"],
        route=Route(choices["route"]) if choices["route"] else None,
        seed=choices["seed"],
        load=load_options_from(choices),
        quality=quality_options_from(choices),
    )


def prove_and_show(target: Target, options: ProveOptions, *, out: str | None, as_json: bool) -> int:
    """Proves, then shows the claim: card or JSON on stdout, progress on stderr. Returns the exit code."""
    directory = Path(out) if out else evidence_directory(Path(DEFAULT_EVIDENCE), target.label)
    click.echo(f"seed {options.seed}; evidence in {directory}", err=True)
    if is_complete(directory):
        require_same_question(directory, target.label, options)
        click.echo("this run is complete: nothing is repeated (name another --out to prove again)", err=True)
        stopped_by = None
    else:
        with TerminalWatcher(sys.stderr) as watcher:
            result = asyncio.run(prove(target, options, directory, clock=SystemClock(), watcher=watcher))
        stopped_by = result.stopped_by
    claim = derive(directory)
    document = write_claim(directory)
    report = write_report(directory)
    if as_json:
        click.echo(document.decode())
    else:
        print_card(claim, directory=directory, report=report)
    if stopped_by is not None:
        click.echo(f"stopped early: {stopped_by}", err=True)
        return EXIT_UNDECIDED
    return EXIT_OK if something_completed(directory) else EXIT_GATE_FAILED


def something_completed(directory: Path) -> bool:
    """False when every request of every probe was refused or broke, and when none could be sent at all."""
    return any(
        body.probe != "calibration" and completed_as_asked(body.timeline)
        for _, body in load_view(directory).all_requests()
    )
