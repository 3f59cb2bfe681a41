"""`longproof derive`: the claim, recomputed from the evidence alone."""

from __future__ import annotations

from pathlib import Path

import click

from longproof.cli.options import json_option


@click.command(short_help="Recompute the claim from an evidence directory.")
@click.argument("directory", type=click.Path(path_type=Path))
@json_option
def derive(directory: Path, as_json: bool) -> int:
    """Recompute the claim from DIRECTORY alone, without any server. The same evidence gives the same bytes.

    Fails when the seal is broken: a record was removed, changed or added.
    """
    from longproof.claim.derive import claim_bytes, write_claim
    from longproof.claim.derive import derive as derive_claim
    from longproof.errors import EvidenceError
    from longproof.report.text import print_card

    claim = derive_claim(directory)
    try:
        write_claim(directory)
    except EvidenceError as problem:  # kept evidence may well be read-only: the claim is shown all the same
        click.echo(f"claim.json is not written: {problem.problem}", err=True)
    if as_json:
        click.echo(claim_bytes(claim).decode())
    else:
        print_card(claim, directory=directory, report=None)
    return 0
