"""`longproof plan --search`: options to a question, and the launch of a plan or a winner as text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from longproof.cli.options import Command
from longproof.cli.plan_options import Asked
from longproof.errors import UsageError

if TYPE_CHECKING:
    from longproof.plan.layouts import Arrangement
    from longproof.plan.search_question import SearchResult, Slo

TARGETS = ("vllm", "sglang", "llamacpp", "k8s")

_OPTIONS = (
    click.option("--search", is_flag=True, help="Try every layout on --devices and rank those that fit."),
    click.option("--devices", type=click.IntRange(1), default=8, show_default=True, help="Devices to search on."),
    click.option("--sessions", type=click.IntRange(1), help="Requests that must run at once; default: as many as fit."),
    click.option("--ttft", metavar="TIME", help="The longest wait for a first token, e.g. 5s."),
    click.option("--tpot", metavar="TIME", help="The longest time from token to token, e.g. 50ms."),
    click.option("--emit", type=click.Choice(TARGETS), help="Print the exact launch, and nothing else."),
    click.option("--devices-per-host", type=click.IntRange(1), default=8, show_default=True, help="Of one machine."),
)


def search_options(command: Command) -> Command:
    """What a search looks for, and how a launch is written."""
    for decorate in reversed(_OPTIONS):
        command = decorate(command)
    return command


def search(asked: Asked, given: dict[str, Any]) -> SearchResult:
    """Every layout of the engine on the devices, ranked for the request. Raises UserError."""
    from longproof.domain.measure import Reading, Unknown, derived
    from longproof.domain.measure import given as stated
    from longproof.plan.cost import price_band
    from longproof.plan.search_fit import search_devices
    from longproof.plan.search_question import Hardware, Workload

    if asked.device is None:
        raise UsageError("a search needs to know the devices", advice="name them: --device h100-sxm --devices 8")
    band = price_band(asked.device)
    usd: Reading[float] = band if isinstance(band, Unknown) else derived(band.value.typical, band.source)
    if asked.choices.usd_per_hour is not None:
        usd = stated(asked.choices.usd_per_hour.typical, "--usd-per-hour")
    return search_devices(
        asked.geometry,
        asked.launch,
        Hardware(device=asked.device, count=given["devices"], usd_per_hour=usd),
        Workload(
            input_tokens=max(1, asked.request.input_tokens),
            output_tokens=max(1, asked.request.output_tokens),
            sessions=given["sessions"],
        ),
        slo=_slo(given),
        rates=asked.choices.rates,
        eager=asked.choices.eager,
    )


def launch_text(model: str, asked: Asked, arrangement: Arrangement, given: dict[str, Any]) -> str:
    """The launch of an arrangement, as `--emit` asks for it. Raises UserError."""
    from longproof.plan.emit import EmitTarget, emit
    from longproof.plan.emit_order import LaunchOrder

    order = LaunchOrder(
        model=str(Path(model).parent) if Path(model).name == "config.json" else model,
        geometry=asked.geometry,
        launch=asked.launch,
        arrangement=arrangement,
        devices_per_host=given["devices_per_host"],
    )
    return emit(order, EmitTarget(given["emit"]))


def _slo(given: dict[str, Any]) -> Slo:
    from longproof.domain.units import parse_duration_ns
    from longproof.plan.search_question import Slo

    def seconds(text: str | None) -> float | None:
        return None if text is None else parse_duration_ns(text) / 1e9

    return Slo(first_token_seconds=seconds(given["ttft"]), token_seconds=seconds(given["tpot"]))
