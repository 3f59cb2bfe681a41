"""`longproof corpus`: keeps texts that haystacks are made of, and shows what there is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from longproof.cli.options import json_option

if TYPE_CHECKING:
    from longproof.quality.corpora.kept import Kept


@click.group(short_help="Keep texts of your own to test with.")
def corpus() -> None:
    """Texts that quality tests hide their questions in.

    Two come with longproof: 'generated' (ledgers, minutes and tickets that no model has read) and 'python' (the
    documentation and sources of the Python that runs it). Others are added by name, once.
    """


@corpus.command("add", short_help="Copy a folder, or fetch a well-known text, into the cache.")
@click.argument("name", metavar="NAME_OR_DIR")
@click.argument("directory", metavar="[DIR]", required=False)
@click.option("--licence", metavar="TEXT", default="", help="Licence line to keep with it; default: its licence file.")
@click.option("--replace", is_flag=True, help="Replace a corpus of that name that has other files.")
@json_option
def add(name: str, directory: str | None, licence: str, replace: bool, as_json: bool) -> int:
    """Copy the text, Markdown, HTML, PDF and source files of a folder into the user's cache, with their hashes.

    NAME DIR keeps the folder DIR by the name NAME; DIR alone keeps it by its own name. Well-known names need no folder:
    django-docs (by pip, 11 MB) and python-docs (by apt-get, 13 MB).
    """
    from longproof.quality.corpora.kept import keep_corpus
    from longproof.quality.corpora.packages import KNOWN, keep_known

    if directory is None and name in KNOWN:
        click.echo(f"fetching {KNOWN[name].about}", err=True)
        kept = keep_known(name, replace=replace)
    else:
        place = Path(directory or name)
        kept = keep_corpus(
            name if directory is not None else place.resolve().name.lower(), place, licence=licence, replace=replace
        )
    _print_kept(kept, as_json=as_json)
    return 0


@corpus.command("list", short_help="Name all corpora there are.")
@json_option
def list_(as_json: bool) -> int:
    """Name the corpora that come with longproof, those that are kept, and the well-known ones that can be added."""
    from longproof.quality.corpora import generated, python_own
    from longproof.quality.corpora.kept import kept_corpora
    from longproof.quality.corpora.packages import KNOWN

    kept = kept_corpora()
    if as_json:
        _print_json([_summary(entry) for entry in kept])
        return 0
    click.echo(f"{generated.NAME:<16} comes with longproof; prose; {generated.LICENCE}")
    click.echo(f"{python_own.NAME:<16} comes with longproof; prose and code; {python_own.LICENCE}")
    for entry in kept:
        click.echo(f"{entry.name:<16} kept; {_sizes(entry)}; {entry.licence}")
    names = {entry.name for entry in kept}
    for name, known in KNOWN.items():
        if name not in names:
            click.echo(f"{name:<16} can be added ({known.megabytes} MB); {known.about}; {known.licence}")
    return 0


@corpus.command("show", short_help="Show what a kept corpus holds.")
@click.argument("name")
@json_option
def show(name: str, as_json: bool) -> int:
    """Show a kept corpus: where it came from, its licence line, its hash, and what was left out of it and why."""
    from longproof.errors import UsageError
    from longproof.quality.corpora.kept import kept_named

    kept = kept_named(name)
    if kept is None:
        raise UsageError(f"no corpus is kept by the name {name}", advice="see 'longproof corpus list'")
    _print_kept(kept, as_json=as_json)
    return 0


@corpus.command("remove", short_help="Delete a kept corpus from the cache.")
@click.argument("name")
def remove(name: str) -> int:
    """Delete a kept corpus from the cache. Evidence that was made with it keeps its hash; its source is not touched."""
    from longproof.quality.corpora.kept import remove_kept

    remove_kept(name)
    click.echo(f"removed {name}")
    return 0


_MOST_SKIPPED = 12


def _print_kept(kept: Kept, *, as_json: bool) -> None:
    from longproof.domain.units import format_bytes

    if as_json:
        _print_json(
            _summary(kept)
            | {
                "files": [[file.name, file.bytes, file.sha256, file.kind] for file in kept.files],
                "skipped": [[entry.name, entry.why] for entry in kept.skipped],
            }
        )
        return
    click.echo(f"{kept.name}: {_sizes(kept)}, {format_bytes(sum(file.bytes for file in kept.files))}")
    click.echo(f"  from      {kept.source}")
    click.echo(f"  licence   {kept.licence}")
    click.echo(f"  manifest  sha256 {kept.manifest_sha256}")
    if kept.skipped:
        click.echo(f"  left out  {len(kept.skipped)} files and folders")
    for entry in kept.skipped[:_MOST_SKIPPED]:
        click.echo(f"    {entry.name}: {entry.why}")
    if len(kept.skipped) > _MOST_SKIPPED:
        click.echo(f"    and {len(kept.skipped) - _MOST_SKIPPED} more; all of them with --json")


def _sizes(kept: Kept) -> str:
    prose = sum(file.kind == "prose" for file in kept.files)
    return f"{prose} prose files and {len(kept.files) - prose} of code"


def _summary(kept: Kept) -> dict[str, object]:
    return {
        "name": kept.name,
        "source": kept.source,
        "licence": kept.licence,
        "manifest_sha256": kept.manifest_sha256,
        "bytes": sum(file.bytes for file in kept.files),
    }


def _print_json(value: object) -> None:
    import orjson

    click.echo(orjson.dumps(value, option=orjson.OPT_INDENT_2).decode())
