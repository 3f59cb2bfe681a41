"""Options about what the probes under load do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from longproof.cli.options import Command

if TYPE_CHECKING:
    from longproof.prove.options import LoadOptions


def load_options(command: Command) -> Command:
    """What the background load is, and what counts as good."""
    for decorate in reversed(
        (
            click.option(
                "--concurrency", type=int, help="Requests of the background load; default: by what the server holds."
            ),
            click.option(
                "--rate", "rate_per_s", type=float, metavar="PER_S", help="Arrivals per second instead (Poisson)."
            ),
            click.option(
                "--trace",
                type=click.Path(exists=True, dir_okay=False),
                help="Lengths and times of the background load from a trace: Mooncake .jsonl or Azure .csv.",
            ),
            click.option(
                "--load-window",
                metavar="TIME",
                help="How long busy watches the background alone, and each step of overload lasts; default: 10s.",
            ),
            click.option(
                "--sustained",
                metavar="TIME",
                help="How long the sustained load lasts; default: 60s, or a twentieth of the budget.",
            ),
            click.option(
                "--slo-ttft", "slo_ttft", metavar="TIME", help="Time to first token that still counts as good."
            ),
            click.option(
                "--slo-tpot", "slo_tpot", metavar="TIME", help="Time per output token that still counts as good."
            ),
            click.option(
                "--restart-cmd", "restart_command", metavar="COMMAND", help="Restarts a server that is not ours."
            ),
            click.option("--idle", metavar="TIME", help="Stand idle that long before the repeat after a restart."),
            click.option(
                "--workers", type=int, default=1, show_default=True, help="Processes that send requests under load."
            ),
        )
    ):
        command = decorate(command)
    return command


def load_options_from(choices: dict[str, Any]) -> LoadOptions:
    """The command line's words as `LoadOptions`."""
    from longproof.domain.units import parse_duration_ns
    from longproof.prove.options import LoadOptions

    def seconds(name: str) -> float | None:
        return parse_duration_ns(choices[name]) / 1e9 if choices.get(name) else None

    sustained, idle, window = choices.get("sustained"), choices.get("idle"), choices.get("load_window")
    return LoadOptions(
        concurrency=choices.get("concurrency"),
        rate_per_s=choices.get("rate_per_s"),
        trace=choices.get("trace"),
        window_ns=parse_duration_ns(window) if window else None,
        sustained_ns=parse_duration_ns(sustained) if sustained else None,
        slo_ttft_s=seconds("slo_ttft"),
        slo_tpot_s=seconds("slo_tpot"),
        restart_command=choices.get("restart_command"),
        idle_ns=parse_duration_ns(idle) if idle else 0,
        workers=choices.get("workers") or 1,
    )
