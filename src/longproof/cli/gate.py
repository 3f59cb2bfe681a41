"""`longproof gate`: requirements on a claim, as an exit code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from longproof.cli.options import connection_options, json_option, url_target


@click.command(short_help="Hold requirements against the evidence: exit 0, 1 or 3.")
@click.argument("directory", type=click.Path(path_type=Path))
@click.option(
    "--require",
    "requirements",
    multiple=True,
    metavar="REQUIREMENT",
    help="For example 'context >= 8000' or 'ttft_p95_s@4096 <= 5'. May be given several times.",
)
@click.option(
    "--deployment",
    metavar="URL",
    help="First compare the evidence's configuration with this running server; a difference ends with exit 2.",
)
@click.option(
    "--confidence", type=float, default=0.95, show_default=True, help="One-sided confidence of every decision."
)
@connection_options
@json_option
def gate(
    directory: Path,
    requirements: tuple[str, ...],
    deployment: str | None,
    confidence: float,
    as_json: bool,
    **choices: Any,
) -> int:
    """Decide whether what DIRECTORY shows meets every --require.

    Exits with 0 when all pass, 1 when one fails, 3 when none fails and one is undecided. A missing measurement is
    undecided, never a pass.
    """
    import asyncio

    from longproof.claim.derive import derive as derive_claim
    from longproof.claim.gate import gate as hold
    from longproof.errors import UsageError
    from longproof.prove.check import require_same_deployment
    from longproof.report.text import print_gate

    if not requirements and deployment is None:
        raise UsageError(
            "gate was given nothing to decide", advice="add --require 'context >= 8000' or --deployment URL"
        )
    claim = derive_claim(directory)
    if deployment is not None:
        asyncio.run(require_same_deployment(directory, url_target(deployment, choices)))
    verdict = hold(claim, requirements, confidence=confidence)
    print_gate(verdict, as_json=as_json)
    return verdict.exit_code
