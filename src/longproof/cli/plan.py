"""`longproof plan`: what fits on every stage and rank, what binds, how fast and for how much, before renting."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from longproof.cli.options import json_option
from longproof.cli.plan_options import plan_options, understood
from longproof.errors import EXIT_GATE_FAILED, EXIT_OK, EXIT_UNDECIDED, UsageError

if TYPE_CHECKING:
    from longproof.plan.planner import Plan


@click.command(short_help="Say what fits, how fast and for how much, before a GPU is rented.")
@click.argument("model")
@plan_options
@click.option("--picture", type=click.Path(dir_okay=False), metavar="FILE.svg", help="Draw memory and concurrency.")
@json_option
def plan(model: str, picture: str | None, as_json: bool, **given: Any) -> int:
    """Plan MODEL (a config.json, a directory, a .gguf file or a hub id) on an engine, a layout and a device.

    Answers three questions about one request (does it fit the limit, could every stage hold it, may it enter now), by
    the engine's own arithmetic. KV memory is estimated with a band where --available-kv-gib does not give it. Exit
    code: 0 it may enter, 1 it may not, 3 the capacity is not known.
    """
    from longproof.plan.planner import make_plan
    from longproof.report.plan_text import print_plan

    asked = understood(model, given)
    found = make_plan(asked.geometry, asked.launch, asked.request, asked.device, asked.choices)
    if picture is not None:
        _draw(found, Path(picture))
    print_plan(found, as_json=as_json)
    return _exit_code(found)


def _exit_code(found: Plan) -> int:
    from longproof.domain.measure import Unknown
    from longproof.domain.verdict import Admit

    if found.capacity.refusal is not None:
        return EXIT_GATE_FAILED
    if isinstance(found.judgement, Unknown):
        return EXIT_UNDECIDED
    return EXIT_OK if isinstance(found.judgement.value.verdict, Admit) else EXIT_GATE_FAILED


def _draw(found: Plan, path: Path) -> None:
    from longproof.report.plan_plots import plan_picture

    try:
        path.write_text(plan_picture(found), encoding="utf-8")
    except ValueError as problem:
        raise UsageError(str(problem), advice="give --device or --available-kv-gib") from problem
    except OSError as problem:
        raise UsageError(f"{path} cannot be written: {problem.strerror}", advice="name another file") from problem
