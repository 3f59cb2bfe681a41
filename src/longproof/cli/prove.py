"""`longproof prove`: prove a running server, or a model file that longproof serves itself."""

from __future__ import annotations

from typing import Any

import click

from longproof.cli.options import connection_options, json_option, proof_options, url_target
from longproof.cli.options_load import load_options
from longproof.cli.options_quality import quality_options


@click.command(short_help="Prove a running server: evidence, claim and report.")
@click.argument("url")
@proof_options
@load_options
@quality_options
@connection_options
@json_option
def prove(url: str, as_json: bool, **choices: Any) -> int:
    """Prove the OpenAI-compatible server at URL: what it admits, starts, completes and how fast, near its limit too.

    Evidence is written as it comes in. After a crash or Ctrl-C the same command goes on where it stopped and repeats
    nothing.

    Exits with 0 when the protocol ran to its end or to its budget, 1 when not one length completed, 3 when the server
    went away before.
    """
    from longproof.cli.proving import proof_options_from, prove_and_show

    return prove_and_show(url_target(url, choices), proof_options_from(choices), out=choices["out"], as_json=as_json)
