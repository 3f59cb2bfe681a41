"""`longproof inspect`: what a server tells of itself, and what it does not."""

from __future__ import annotations

import click

from longproof.cli.options import api_key, connection_options, json_option


@click.command(short_help="Show what a server tells of itself.")
@click.argument("url")
@connection_options
@json_option
def inspect(url: str, model: str | None, api_key_env: str | None, tokenizer: str | None, as_json: bool) -> int:
    """Show what the server at URL tells of itself: every field with where it comes from, or why it is unknown."""
    import asyncio

    from longproof.prove.check import inspect_target
    from longproof.prove.target import UrlTarget
    from longproof.report.text import print_inspect

    target = UrlTarget(url=url, model=model, api_key=api_key(api_key_env), tokenizer=tokenizer)
    deployment = asyncio.run(inspect_target(target))
    print_inspect(deployment, as_json=as_json)
    return 0
