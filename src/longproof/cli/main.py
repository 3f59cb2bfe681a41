"""The `longproof` command. The only place that prints errors and turns them into exit codes."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence

import click

import longproof
from longproof.cli.compare import compare
from longproof.cli.corpus import corpus
from longproof.cli.demo import demo
from longproof.cli.derive import derive
from longproof.cli.gate import gate
from longproof.cli.inspect import inspect
from longproof.cli.plan import plan
from longproof.cli.prove import prove
from longproof.cli.replay_decisions import replay_decisions
from longproof.cli.report import report
from longproof.cli.serve import serve
from longproof.cli.usage import usage
from longproof.errors import EXIT_INTERRUPTED, EXIT_OUR_BUG, EXIT_USER_ERROR, LongproofError, UserError


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(longproof.__version__, prog_name="longproof")
def cli() -> None:
    """Plans, proves and serves long-context LLM deployments, and serves only what has been proven.

    Results go to stdout, everything else to stderr. Exit codes: 0 done or passed, 1 a gate failed or nothing completed,
    2 something to change in the command or its surroundings, 3 undecided or incomplete, 70 a bug in longproof, 130
    interrupted.
    """


for _command in (plan, demo, prove, derive, report, gate, compare, serve, usage, replay_decisions, inspect, corpus):
    cli.add_command(_command)


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line and exits with its code."""
    sys.exit(run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code; prints what went wrong to stderr."""
    try:
        code = cli.main(
            args=None if arguments is None else list(arguments), prog_name="longproof", standalone_mode=False
        )
    except click.exceptions.NoArgsIsHelpError as help_text:
        click.echo(help_text.format_message(), err=True)
        return EXIT_USER_ERROR
    except click.ClickException as problem:
        problem.show(sys.stderr)
        return EXIT_USER_ERROR
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted; the evidence so far is kept, and the same command goes on from here", err=True)
        return EXIT_INTERRUPTED
    except UserError as problem:
        click.echo(f"error: {problem.problem}\n  next: {problem.advice}", err=True)
        return problem.exit_code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except LongproofError as problem:
        click.echo(f"error: the server misbehaved outside a probe: {problem}", err=True)
        return EXIT_USER_ERROR
    except Exception:
        click.echo("this is a bug in longproof; please report it with the lines below", err=True)
        traceback.print_exc()
        return EXIT_OUR_BUG
    return code if isinstance(code, int) else 0
