"""`longproof inspect`: what a server tells of itself and what it does not, or what a model file says of its cost."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click

from longproof.cli.options import connection_options, json_option, url_target

_HUB_ID = re.compile(r"[A-Za-z0-9][\w-]*/[\w.-]+")
"""owner/name. An owner has no dot, so that a host is told apart; ``localhost`` is a host."""


@click.command(short_help="Show what a server tells of itself, or what a model costs.")
@click.argument("target")
@connection_options
@json_option
def inspect(target: str, as_json: bool, **choices: Any) -> int:
    """Show what the server at a URL tells of itself: every field with where it comes from, or why it is unknown.

    TARGET may also be a model: a config.json, a directory, a .gguf file or a hub id (owner/name). Then its geometry is
    shown: layers by kind, weights, and the bytes its cache takes.
    """
    if names_model(target):
        return _inspect_model(target, as_json=as_json)
    import asyncio

    from longproof.prove.check import inspect_target
    from longproof.report.text import print_inspect

    deployment = asyncio.run(inspect_target(url_target(target, choices)))
    print_inspect(deployment, as_json=as_json)
    return 0


def names_model(target: str) -> bool:
    """Whether this is a model file, a directory or a hub id rather than a server's address."""
    if "://" in target:
        return False
    if target.endswith((".gguf", ".json")) or Path(target).exists():
        return True
    return _HUB_ID.fullmatch(target) is not None and not target.startswith("localhost/")


def _inspect_model(target: str, *, as_json: bool) -> int:
    from longproof.geometry.read import read_geometry
    from longproof.plan.summary import summarize
    from longproof.report.plan_text import print_summary

    print_summary(summarize(read_geometry(target)), as_json=as_json)
    return 0
