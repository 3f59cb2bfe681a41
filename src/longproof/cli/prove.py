"""`longproof prove`: prove a running server, or a model file that longproof serves itself."""

from __future__ import annotations

from typing import Any

import click

from longproof.cli.options import any_target, connection_options, json_option, proof_options
from longproof.cli.options_load import load_options
from longproof.cli.options_quality import quality_options


@click.command(short_help="Prove a running server: evidence, claim and report.")
@click.argument("url", required=False)
@click.option("--prefill", "prefill_url", metavar="URL", help="Prefill server of a disaggregated pair.")
@click.option("--decode", "decode_url", metavar="URL", help="Its decode server.")
@proof_options
@load_options
@quality_options
@connection_options
@json_option
def prove(url: str | None, as_json: bool, prefill_url: str | None, decode_url: str | None, **choices: Any) -> int:
    """Prove the OpenAI-compatible server at URL: what it admits, starts, completes and how fast, near its limit too.
    Two servers that hand KV from prefill to decode are named with --prefill and --decode instead.

    Evidence is written as it comes in. After a crash or Ctrl-C the same command goes on where it stopped and repeats
    nothing.

    Exits with 0 when the protocol ran to its end or to its budget, 1 when not one length completed, 3 when the server
    went away before.
    """
    from longproof.cli.proving import proof_options_from, prove_and_show

    target = any_target(url, prefill_url, decode_url, choices)
    return prove_and_show(target, proof_options_from(choices), out=choices["out"], as_json=as_json)
