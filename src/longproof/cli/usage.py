"""`longproof usage`: the usage ledger as a table."""

from __future__ import annotations

import sys
from datetime import datetime
from pathlib import Path

import click

_TIMES = ["%Y-%m-%d"] + [
    f"%Y-%m-%d{between}%H:%M:%S{part}{zone}" for between in "T " for part in ("", ".%f") for zone in ("", "%z")
]


@click.command(short_help="Usage and money from a gateway's ledger.")
@click.argument("ledger")
@click.option(
    "--by",
    metavar="NAMES",
    help="Sums by these, with commas between them: tenant, key, model, sku, pool, gateway, ending, day, month."
    " Without it every request is listed.",
)
@click.option(
    "--since",
    type=click.DateTime(_TIMES),
    metavar="TIME",
    help="Only requests that ended then or later: 2026-11-30 or 2026-11-30T18:00:00, UTC unless an offset follows:"
    " 2026-11-30T18:00:00+02:00.",
)
@click.option("--until", type=click.DateTime(_TIMES), metavar="TIME", help="Only requests that ended before.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["csv", "json", "parquet"]),
    default="csv",
    show_default=True,
    help="json: one object per line.",
)
@click.option("--out", type=click.Path(path_type=Path), help="Into this file instead of stdout.")
def usage(
    ledger: str, by: str | None, since: datetime | None, until: datetime | None, form: str, out: Path | None
) -> int:
    """Show what LEDGER has on its books: a file, or postgresql://user:password@host/database.

    Amounts are exact decimals in USD. The ledger of a running gateway can be read at any time; what ended within the
    last fraction of a second may still be on its way into it.
    """
    from contextlib import closing

    from longproof.gateway.export import parquet_bytes, requests_sheet, sums_sheet, write_csv, write_json_lines
    from longproof.gateway.ledger_sql import FOR_EVER_NS
    from longproof.gateway.ledger_store import open_ledger

    with closing(open_ledger(ledger, must_exist=True)) as store:
        settled = store.settled(_unix_ns(since) or 0, _unix_ns(until) or FOR_EVER_NS)
        names = None if by is None else [name.strip() for name in by.split(",")]
        sheet = requests_sheet(settled) if names is None else sums_sheet(settled, names)
        if form == "parquet":
            data = parquet_bytes(sheet)
            if out is None:
                sys.stdout.buffer.write(data)
            else:
                out.write_bytes(data)
            return 0
        write = write_csv if form == "csv" else write_json_lines
        if out is None:
            write(sheet, sys.stdout)
        else:
            with out.open("w", encoding="utf-8", newline="") as target:
                write(sheet, target)
    return 0


def _unix_ns(moment: datetime | None) -> int | None:
    from datetime import UTC

    if moment is None:
        return None
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    since_epoch = aware - datetime.fromtimestamp(0, UTC)
    return (since_epoch.days * 86_400 + since_epoch.seconds) * 1_000_000_000 + since_epoch.microseconds * 1_000
