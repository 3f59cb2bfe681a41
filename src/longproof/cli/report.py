"""`longproof report`: the claim as one HTML file."""

from __future__ import annotations

from pathlib import Path

import click

from longproof.cli.options import json_option


@click.command(short_help="Write the report of an evidence directory as one HTML file.")
@click.argument("directory", type=click.Path(path_type=Path))
@json_option
def report(directory: Path, as_json: bool) -> int:
    """Write DIRECTORY/report.html: one file that works offline. Prints its path."""
    import json

    from longproof.report.html import write_report

    path = write_report(directory)
    click.echo(json.dumps({"report": str(path)}) if as_json else str(path))
    return 0
