"""`longproof inspect`: what a server tells of itself, and what it does not."""

from __future__ import annotations

from typing import Any

import click

from longproof.cli.options import connection_options, json_option, url_target


@click.command(short_help="Show what a server tells of itself.")
@click.argument("url")
@connection_options
@json_option
def inspect(url: str, as_json: bool, **choices: Any) -> int:
    """Show what the server at URL tells of itself: every field with where it comes from, or why it is unknown."""
    import asyncio

    from longproof.prove.check import inspect_target
    from longproof.report.text import print_inspect

    deployment = asyncio.run(inspect_target(url_target(url, choices)))
    print_inspect(deployment, as_json=as_json)
    return 0
