"""`longproof plan`: what fits on every stage and rank, what binds, how fast and for how much, before renting."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from longproof.cli.options import json_option
from longproof.cli.plan_options import Asked, plan_options, understood
from longproof.cli.plan_search import launch_text, search, search_options
from longproof.errors import EXIT_GATE_FAILED, EXIT_OK, EXIT_UNDECIDED, UsageError

if TYPE_CHECKING:
    from longproof.plan.planner import Plan


@click.command(short_help="Say what fits, how fast and for how much, before a GPU is rented.")
@click.argument("model")
@plan_options
@search_options
@click.option("--picture", type=click.Path(dir_okay=False), metavar="FILE.svg", help="Draw memory and concurrency.")
@json_option
def plan(model: str, picture: str | None, as_json: bool, **given: Any) -> int:
    """Plan MODEL (a config.json, a directory, a .gguf file or a hub id) on an engine, a layout and a device.

    Answers three questions about one request (does it fit the limit, could every stage hold it, may it enter now), by
    the engine's own arithmetic; with --search it ranks the layouts instead. KV memory is estimated with a band where
    --available-kv-gib does not give it. Exit code: 0 it may enter, 1 it may not, 3 the capacity is not known.
    """
    from longproof.plan.layouts import Arrangement
    from longproof.plan.planner import make_plan
    from longproof.report.plan_text import print_plan

    asked = understood(model, given)
    if given["search"]:
        return _search(model, asked, given, as_json=as_json)
    found = make_plan(asked.geometry, asked.launch, asked.request, asked.device, asked.choices)
    if picture is not None:
        _draw(found, Path(picture))
    if given["emit"] is not None:
        click.echo(launch_text(model, asked, Arrangement(layout=asked.launch.layout), given), nl=False)
    else:
        print_plan(found, as_json=as_json)
    return _exit_code(found)


def _search(model: str, asked: Asked, given: dict[str, Any], *, as_json: bool) -> int:
    from longproof.report.search_text import print_search

    result = search(asked, given)
    best = result.winner
    if given["emit"] is None or best is None:
        print_search(result, as_json=as_json)
    else:
        click.echo(launch_text(model, asked, best.arrangement, given), nl=False)
    return EXIT_OK if best is not None and not best.misses else EXIT_GATE_FAILED


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
