"""`longproof replay-decisions`: a gateway's decision log, looked into and decided again."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("replay-decisions", short_help="Look into a gateway's decision log, and decide it again.")
@click.argument("log", type=click.Path(path_type=Path))
@click.option("--request", "request_id", metavar="ID", help="Show everything the log says about one request instead.")
def replay_decisions(log: Path, request_id: str | None) -> int:
    """Feed every input in LOG, older parts first, to a fresh controller and compare what it answers.

    Exit code 0 when everything is decided as it was, 1 when something is not: the log, the rules or the code were
    changed in between, or records are missing. Needs no engine and no gateway.
    """
    from longproof.gateway.decision_codec import encode_record
    from longproof.gateway.decisions import records_about, replay_log

    if request_id is not None:
        known = False
        for record in records_about(log, request_id):
            known = True
            click.echo(encode_record(record), nl=False)
        return 0 if known else 1
    found = replay_log(log)
    click.echo(f"{found.inputs:,} inputs: {found.sent:,} sent, {found.waits:,} had to wait, {found.refused:,} refused")
    if found.torn:
        click.echo("the last line is half a one: the gateway was killed while it wrote")
    if found.missing:
        click.echo(f"{found.missing:,} records are missing; what follows a gap may differ for that reason alone")
    for one in found.differences:
        click.echo(f"record {one.record.number} at {one.record.at_ns / 1e9:.3f} s: {type(one.record.input).__name__}")
        click.echo(f"  was     {', '.join(map(str, one.record.actions)) or 'nothing'}")
        click.echo(f"  is now  {', '.join(map(str, one.replayed)) or 'nothing'}")
    if found.differing:
        click.echo(f"{found.differing:,} inputs are answered otherwise")
    if found.same:
        click.echo("everything is decided as it was")
    return 0 if found.same else 1
