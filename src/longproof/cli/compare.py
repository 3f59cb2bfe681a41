"""`longproof compare`: two proofs, or two servers in turns, held against each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from longproof.cli.options import BudgetType, LengthsType, api_key, json_option
from longproof.cli.options_quality import quality_options


@click.command(short_help="Hold two proofs against each other: B over A, with intervals.")
@click.argument("a", required=False, type=click.Path(path_type=Path))
@click.argument("b", required=False, type=click.Path(path_type=Path))
@click.option("--url-a", metavar="URL", help="Instead of directories: ask this server …")
@click.option("--url-b", metavar="URL", help="… and this one in turns, the same prompts byte for byte.")
@click.option(
    "--factor",
    "factors",
    multiple=True,
    metavar="NAME",
    help="What may differ: speculative, kv-dtype, quantization, engine-version …, or a fact's name. May be given"
    " several times. Without it the two may differ in one fact alone.",
)
@click.option(
    "--require",
    "requirements",
    multiple=True,
    metavar="REQUIREMENT",
    help="For example 'tpot_ratio <= 1.05' or 'output_equal >= 99%'. May be given several times.",
)
@click.option("--confidence", type=float, default=0.95, show_default=True, help="Of intervals and decisions.")
@click.option(
    "--lengths", type=LengthsType(), help="With URLs: prompt lengths; default: the four longest powers of two."
)
@click.option("--repeats", type=int, default=5, show_default=True, help="With URLs: how often each length is asked.")
@click.option(
    "--output-tokens", type=int, default=64, show_default=True, help="With URLs: output tokens of each request."
)
@click.option(
    "--only",
    type=click.Choice(["quality"]),
    help="With URLs: put questions of quality to both and time nothing; --families and what follows say which.",
)
@click.option(
    "--budget",
    type=BudgetType(),
    help="With URLs: end before both together exceed this: 10m, 500ktok, or 10m,500ktok.",
)
@click.option("--timeout", metavar="TIME", help="With URLs: a request without an end by then counts as hung.")
@click.option("--route", type=click.Choice(["chat", "completions"]), help="With URLs: OpenAI route.")
@click.option("--model-a", metavar="NAME", help="Served model name of A, where it serves several.")
@click.option("--model-b", metavar="NAME", help="Served model name of B.")
@click.option("--api-key-env", metavar="VARIABLE", help="Environment variable that holds the API key of both.")
@click.option("--seed", type=int, default=0, show_default=True, help="With URLs: seed of every random choice.")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="With URLs: where both evidences and the page go; default: a new numbered directory.",
)
@click.option(
    "--report",
    "report",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the comparison as one HTML page here; with URLs OUT/report.html is written anyway.",
)
@quality_options
@json_option
def compare(
    a: Path | None,
    b: Path | None,
    factors: tuple[str, ...],
    requirements: tuple[str, ...],
    confidence: float,
    report: Path | None,
    as_json: bool,
    **choices: Any,
) -> int:
    """Compare evidence A with evidence B, or two running servers.

    Times are paired by question (length, arm, repeat) and told as B over A with intervals; a difference is named only
    where chance does not explain it, all comparisons together, and where it is at least 5 %. Two configurations that
    differ in more than the named factor are refused with exit code 2.

    With URLs evidence is written as it comes in. After a crash or Ctrl-C the same command goes on where it stopped and
    repeats nothing.

    Exits with 0; with --require as gate does: 0 when all pass, 1 when one fails, 3 when none fails and one is
    undecided.
    """
    from longproof.claim.compare import compare as hold_against
    from longproof.claim.compare import gate_comparison
    from longproof.claim.derive import load_view
    from longproof.claim.requirement import check_confidence, parse_requirement
    from longproof.errors import EXIT_OK, EXIT_UNDECIDED, UsageError
    from longproof.report.compare_html import write_comparison
    from longproof.report.compare_text import print_comparison
    from longproof.report.html import REPORT_NAME

    check_confidence(confidence, "--confidence")  # a slip must not cost a run of two servers
    for text in requirements:
        parse_requirement(text)
    stopped_by, pages = None, [] if report is None else [report]
    if choices["only"] and not (choices["url_a"] or choices["url_b"]):
        raise UsageError(
            "--only says what two servers are asked, and directories were given", advice="leave --only out"
        )
    if choices["url_a"] or choices["url_b"]:
        a, b, stopped_by = _ask(a, b, choices)
        pages.append(a.parent / REPORT_NAME)
    first, second = (load_view(directory) for directory in _directories(a, b))
    comparison = hold_against(first, second, factors=factors, confidence=confidence)
    verdicts = gate_comparison(comparison, requirements) if requirements else None
    print_comparison(comparison, verdicts, as_json=as_json)
    for page in pages:
        write_comparison(page, comparison, first, second, verdicts)
        click.echo(f"page {page}", err=True)
    if stopped_by is not None:
        click.echo(f"stopped early: {stopped_by}", err=True)
    if verdicts is not None:
        return verdicts.exit_code
    return EXIT_OK if stopped_by is None else EXIT_UNDECIDED


def _directories(a: Path | None, b: Path | None) -> tuple[Path, Path]:
    from longproof.errors import UsageError

    if a is None or b is None:
        raise UsageError(
            "compare takes two evidence directories, or two URLs",
            advice="write 'longproof compare A B' or 'longproof compare --url-a … --url-b …'",
        )
    return a, b


def _ask(a: Path | None, b: Path | None, choices: dict[str, Any]) -> tuple[Path, Path, str | None]:
    """Asks both servers in turns; returns where their evidence lies, and why it ended early."""
    import asyncio
    import sys

    from longproof.cli.options import DEFAULT_EVIDENCE
    from longproof.cli.options_quality import quality_options_from
    from longproof.cli.progress import TerminalWatcher
    from longproof.clock import SystemClock
    from longproof.domain.request import Route
    from longproof.domain.units import parse_duration_ns
    from longproof.errors import UsageError
    from longproof.prove.options import ProveOptions
    from longproof.prove.resume import evidence_directory
    from longproof.prove.sides import ask_sides, is_finished, places_of, require_same_comparison
    from longproof.prove.target import UrlTarget

    if a is not None or b is not None or not (choices["url_a"] and choices["url_b"]):
        raise UsageError(
            "compare was given one URL, or URLs and directories",
            advice="give two directories, or both --url-a and --url-b",
        )
    key = api_key(choices["api_key_env"])
    targets = [
        UrlTarget(url=choices[f"url_{side}"], model=choices[f"model_{side}"], api_key=key) for side in ("a", "b")
    ]
    budget = choices["budget"] or (None, None)
    options = ProveOptions(
        budget_ns=budget[0],
        budget_tokens=budget[1],
        lengths=choices["lengths"],
        repeats=choices["repeats"],
        output_tokens=choices["output_tokens"],
        timeout_s=parse_duration_ns(choices["timeout"]) / 1e9 if choices["timeout"] else None,
        route=Route(choices["route"]) if choices["route"] else None,
        seed=choices["seed"],
        only=(choices["only"],) if choices["only"] else None,
        quality=quality_options_from(choices),
    )
    if options.only is None and options.quality.words():
        raise UsageError(
            f"{', '.join(options.quality.words())}: these are about questions of quality", advice="add --only quality"
        )
    label = f"compare {targets[0].label} {targets[1].label}"
    out = choices["out"] or evidence_directory(Path(DEFAULT_EVIDENCE), label, finished=is_finished)
    click.echo(f"seed {options.seed}; evidence in {out}", err=True)
    if is_finished(out):
        require_same_comparison(out, targets[0], targets[1], options)
        click.echo("this comparison is complete: nothing is repeated (name another --out to ask again)", err=True)
        return (*places_of(out), None)
    with TerminalWatcher(sys.stderr) as watcher:
        result = asyncio.run(ask_sides(targets[0], targets[1], options, out, clock=SystemClock(), watcher=watcher))
    return result.a, result.b, result.stopped_by
