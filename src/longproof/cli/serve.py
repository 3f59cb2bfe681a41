"""`longproof serve`: the gateway, in front of an embedded engine or a fleet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from longproof.cli.options import TokensType
from longproof.errors import EXIT_GATE_FAILED, EXIT_OK, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from longproof.domain.deployment import Deployment
    from longproof.gateway.check import Proven
    from longproof.gateway.config import FleetConfig
    from longproof.policy.claim_gate import ProvenLimits


_EMBEDDED_SLOTS = 2


@click.command(short_help="Serve: admit, route, meter and gate requests to engines.")
@click.argument("fleet", required=False, type=click.Path(exists=True, dir_okay=False), metavar="[FLEET.TOML]")
@click.option("--host", help="Address to listen on; default: as in the file, else 127.0.0.1.")
@click.option("--port", type=click.IntRange(0, 65_535), help="Port; default: as in the file, else 8080. 0: any.")
@click.option("--engines", metavar="URL,URL", help="Engines that run already, instead of a file.")
@click.option("--kv-events", metavar="ENDPOINT,…", help="Their KV events (tcp://host:port), in the same order.")
@click.option("--kv-capacity", type=TokensType(), help="KV tokens of each engine, where it does not tell or is wrong.")
@click.option("--context", type=TokensType(), help="Longest sequence of each engine; embedded: window of each slot.")
@click.option("--prefill-rate", type=float, metavar="TOKENS/S", help="Prefill speed of each engine, for predictions.")
@click.option("--model", metavar="MODEL", help="Embedded engine: GGUF path or hf://owner/repo/file.gguf.")
@click.option("--slots", type=click.IntRange(1), help="Embedded engine: sequences that run together; default: 2.")
@click.option("--threads", type=click.IntRange(1), help="Embedded engine: CPU threads; default: all cores.")
@click.option("--claim", metavar="DIRECTORY", type=click.Path(exists=True), help="Enforce what this evidence proves.")
@click.option(
    "--engines-within",
    metavar="TIME",
    default="30s",
    show_default=True,
    envvar="LONGPROOF_ENGINES_WITHIN",
    help="How long to wait for engines at the start; whoever does not answer by then is taken to be down.",
)
@click.option("--state", type=click.Path(file_okay=False), help="Directory for usage and engine logs.")
@click.option("--body-limit", metavar="SIZE", help="Longest request body, e.g. 64MiB.")
@click.option("--check", is_flag=True, help="Check the configuration against its engines and stop.")
def serve(fleet: str | None, check: bool, **choices: Any) -> int:
    """Serve an OpenAI-compatible API in front of one embedded engine (no arguments), of engines that run already
    (--engines), or of a fleet described in a file.

    Every request is counted, admitted or refused by what its engine's KV cache holds, sent where most of its prompt is
    cached, and metered. SIGTERM drains: what is open is finished, then the gateway ends.
    """
    import asyncio
    import logging

    config = _config(fleet, choices)
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.INFO)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    from longproof.clock import NS_PER_S, SystemClock
    from longproof.domain.units import parse_duration_ns
    from longproof.gateway.serve import Serving
    from longproof.gateway.serve import serve as serve_fleet

    def ready(url: str) -> None:
        click.echo(f"serving at {url}/v1", err=True)
        click.echo(f"to watch it: {url}/dashboard", err=True)

    within_s = parse_duration_ns(choices["engines_within"]) / NS_PER_S

    def proven(running: Mapping[str, Sequence[Deployment]]) -> Mapping[str, ProvenLimits]:
        if not config.claim:
            return {}
        from longproof.cli.proven_limits import proven_limits  # statistics: half a second that only a claim costs

        return proven_limits(config.claim, config.directory, running, SystemClock().wall().date())

    if check:
        return _check(config, proven, within_s)
    serving = Serving(proven=proven, engines_within_s=within_s, ready=ready)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        cut_off = runner.run(serve_fleet(config, serving))
    return EXIT_GATE_FAILED if cut_off else EXIT_OK


def _check(config: FleetConfig, proven: Proven, within_s: float) -> int:
    import asyncio
    import tempfile
    from pathlib import Path

    from longproof.gateway.check import check_config
    from longproof.gateway.serve import state_directory

    section = config.gateway
    state = Path(tempfile.gettempdir()) if section.port == 0 and section.state is None else state_directory(config)
    checked = asyncio.run(check_config(config, proven, within_s=within_s, state=state))
    for fact in checked.facts:
        click.echo(fact)
    for problem in checked.problems:
        click.echo(f"problem: {problem}")
    count = len(checked.problems)
    click.echo("the configuration serves as written" if not count else f"{count} problem{'s' if count > 1 else ''}")
    return EXIT_GATE_FAILED if checked.problems else EXIT_OK


def _loop_factory() -> Any:
    try:
        import uvloop
    except ImportError:  # Windows has none: asyncio's own loop serves, at a third more processor time
        return None
    return uvloop.new_event_loop


def _config(fleet: str | None, choices: dict[str, Any]) -> FleetConfig:
    from dataclasses import replace
    from pathlib import Path

    from longproof.gateway.byte_size import parse_bytes
    from longproof.gateway.config import ClaimSection, config_from, read_config

    if fleet is not None:
        for name in ("engines", "kv_events", "kv_capacity", "context", "prefill_rate", "model", "slots", "threads"):
            if choices[name] is not None:
                option = "--" + name.replace("_", "-")
                raise UsageError(
                    f"{option} goes without a file", advice=f"write it into {fleet}, or leave the file out"
                )
        config = read_config(Path(fleet))
    else:
        config = config_from(_document(choices), where=Path("command line"))
    overrules = {
        name: value
        for name, value in (
            ("host", choices["host"]),
            ("port", choices["port"]),
            ("state", None if choices["state"] is None else Path(choices["state"])),
            ("body_limit", None if choices["body_limit"] is None else parse_bytes(choices["body_limit"])),
        )
        if value is not None
    }
    claims = config.claim
    if choices["claim"] is not None:
        claims = (*claims, ClaimSection(path=Path(choices["claim"]).resolve()))
    return replace(config, gateway=replace(config.gateway, **overrules), claim=claims)


def _document(choices: dict[str, Any]) -> dict[str, object]:
    served = {name: choices[name] for name in ("kv_capacity", "context", "prefill_rate") if choices[name] is not None}
    if choices["engines"] is None:
        if choices["kv_events"] is not None:
            raise UsageError("--kv-events goes with --engines", advice="the embedded engine publishes none")
        engine = {name: choices[name] for name in ("model", "slots", "threads") if choices[name] is not None}
        return {"engine": [{"slots": _EMBEDDED_SLOTS, **served, **engine}]}
    for name in ("model", "slots", "threads"):
        if choices[name] is not None:
            raise UsageError(
                f"--{name} is for the embedded engine", advice="leave it out: engines that run have theirs"
            )
    urls = [url.strip() for url in choices["engines"].split(",") if url.strip()]
    events = [end.strip() for end in (choices["kv_events"] or "").split(",") if end.strip()]
    if events and len(events) != len(urls):
        raise UsageError(
            f"{len(urls)} engines and {len(events)} --kv-events were given", advice="give one endpoint per engine"
        )
    replicas: list[dict[str, object]] = [{"url": url, **served} for url in urls]
    for replica, endpoint in zip(replicas, events, strict=False):
        replica["kv_events"] = endpoint
    return {"replica": replicas}
