"""The whole gateway, put together: the one place where its parts know each other.

engines started, met ─▶ rules ─▶ controller + router ─▶ desk
                              └▶ counting, meter, keys ─▶ routes ─▶ listener ─▶ … ─▶ SIGTERM ─▶ drained
"""

from __future__ import annotations

import asyncio
import gc
import logging
import secrets
import signal
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from longproof.clock import NS_PER_S, Clock, SystemClock
from longproof.domain.deployment import Deployment
from longproof.domain.units import format_tokens
from longproof.gateway.config import FleetConfig
from longproof.gateway.deciding import Deciding, deciding_for
from longproof.gateway.desk import Desk
from longproof.gateway.exchange import Surroundings
from longproof.gateway.fleet import Fleet
from longproof.gateway.front import front_of
from longproof.gateway.introduce import Met, asked_again, meet
from longproof.gateway.kept_prefixes import KeptPrefixes
from longproof.gateway.keys import KeyRing
from longproof.gateway.launched import standing_replicas, stop_all
from longproof.gateway.ledger_store import open_ledger
from longproof.gateway.listener import Listener, Tls
from longproof.gateway.meter import MeterSettings, UsageMeter
from longproof.gateway.recognise import Recognition
from longproof.gateway.rules import key_rules, price_book
from longproof.gateway.shared_store import SharedStore, StoreAddress
from longproof.gateway.sharing import Sharing, SharingRule
from longproof.gateway.sight import sight_of
from longproof.gateway.supervise import Supervision
from longproof.gateway.upstream import Upstream
from longproof.gateway.watching import watch_fleet
from longproof.policy.claim_gate import ProvenLimits

_COLLECT_AFTER = (10_000, 10, 10)
"""Objects more than there were, before circles among them are looked for: a request has about three hundred while it
runs and leaves hardly any behind, so the default of 700 would look at the same ones again and again."""
_log = logging.getLogger("longproof.gateway")


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """What `serve` is told besides the file. `proven` gives what claims say, by model, of the deployments that serve
    it; it may raise UserError. `engines_within_s`: how long engines may take to answer at the start. `ready`: called
    once with the URL when the gateway listens."""

    proven: Callable[[Mapping[str, Sequence[Deployment]]], Mapping[str, ProvenLimits]] = lambda _: {}
    engines_within_s: float = 30.0
    ready: Callable[[str], None] = lambda _: None


async def serve(config: FleetConfig, serving: Serving) -> int:
    """Serves until SIGTERM or SIGINT, then drains; a second signal ends it at once. Returns how many requests were cut
    off. Raises UserError when it cannot start."""
    stop = _Signals()
    logging.getLogger("longproof.gateway").setLevel(logging.INFO)
    section, clock = config.gateway, SystemClock()
    async with AsyncExitStack() as closing:
        state = state_directory(config)
        standing = await standing_replicas(config, state / "engines")
        closing.push_async_callback(stop_all, standing)
        supervision = Supervision(standing)
        closing.push_async_callback(supervision.close)
        met = await meet(standing, within_s=serving.engines_within_s, count_workers=section.count_workers)
        closing.push_async_callback(met.aclose)
        proven = serving.proven(_deployments(met))
        for limits in proven.values():
            _log.info("claim %s: %s", limits.claim, _enforced(limits))
        deciding = deciding_for(config, proven, met, clock)
        closing.push_async_callback(asyncio.to_thread, deciding.close)
        meter = _meter(config, state, clock)
        await asyncio.to_thread(meter.start)
        closing.push_async_callback(asyncio.to_thread, meter.close)
        upstream = await closing.enter_async_context(Upstream())
        desk = Desk(deciding.controller, clock)
        recognition = _recognition(met, serving, proven, deciding, clock)
        watch = watch_fleet(met, desk, deciding.controller, deciding.router, clock, recognition.back)
        prefixes = KeptPrefixes(met.counting, deciding.router, state / "prefixes")
        sharing = _sharing(config, deciding, desk, clock)
        fleet = Fleet(tuple(one.replica for one in met.replicas), upstream, int(clock.wall().timestamp()))
        sight = sight_of(section, desk, meter, deciding, watch, prefixes, fleet, sharing, recognition.problems)
        closing.push_async_callback(asyncio.to_thread, sight.close)
        around = Surroundings(
            desk=desk,
            fleet=fleet,
            counting=met.counting,
            meter=sight.meter,
            clock=clock,
            silence_s=section.silence / NS_PER_S,
        )
        keys = KeyRing.of(key_rules(config))
        front = front_of(section, around, keys, sight, prefixes, deciding.why_not_ready)
        supervision.start()
        desk.start()
        closing.callback(desk.stop)
        recognition.start()
        closing.push_async_callback(recognition.close)
        watch.start()
        closing.push_async_callback(watch.close)
        if sharing is not None:
            sharing.start()
            closing.push_async_callback(sharing.close)
        front.warming.start()
        closing.push_async_callback(front.warming.close)
        front.dashboard.start()
        closing.callback(front.dashboard.close)
        sight.metrics.start()
        closing.callback(sight.metrics.close)
        listener = Listener(
            front.routes,
            host=section.host,
            port=section.port,
            tls=_tls(config),
            head_s=section.head_timeout / NS_PER_S,
            most_connections=section.most_connections,
        )
        url = await listener.start()
        closing.push_async_callback(listener.close)
        gc.collect()
        gc.freeze()  # what exists now stays: it need not be looked through again at every collection
        gc.set_threshold(*_COLLECT_AFTER)
        serving.ready(url)
        await stop.first.wait()
        front.health.draining = True
        front.dashboard.close()  # whoever watches must not keep the gateway alive
        _log.info("draining: %d requests are open", front.routes.open)
        drained = asyncio.create_task(
            listener.drain(grace_s=section.drain_grace / NS_PER_S, within_s=section.drain_within / NS_PER_S)
        )
        hurried = asyncio.create_task(stop.second.wait())
        await asyncio.wait((drained, hurried), return_when=asyncio.FIRST_COMPLETED)
        hurried.cancel()
        if drained.done():
            return drained.result()
        drained.cancel()
        return await listener.close()


def state_directory(config: FleetConfig) -> Path:
    """Where usage and engine logs are kept: as configured, else the user's own, one per port."""
    section = config.gateway
    if section.state is not None:
        return config.directory / section.state
    if section.port == 0:
        return Path(tempfile.mkdtemp(prefix="longproof-gateway-"))
    return platformdirs.user_state_path("longproof") / f"gateway-{section.port}"


def _deployments(met: Met) -> dict[str, list[Deployment]]:
    found: dict[str, list[Deployment]] = {}
    for one in met.replicas:
        for model in one.replica.models:
            found.setdefault(model, []).append(one.deployment)
    return found


def _recognition(
    met: Met, serving: Serving, proven: Mapping[str, ProvenLimits], deciding: Deciding, clock: Clock
) -> Recognition:
    known = {one.replica.name: one for one in met.replicas}
    return Recognition(
        {name: one.replica.models for name, one in known.items()},
        {name: one.deployment for name, one in known.items()},
        lambda name: asked_again(known[name]),
        serving.proven,
        proven,
        deciding.controller,
        clock,
    )


def _enforced(limits: ProvenLimits) -> str:
    said = [
        f"{word} {format_tokens(tokens)} tokens"
        for word, tokens in (("admitted", limits.admitted_tokens), ("effective", limits.effective_tokens))
        if tokens is not None
    ]
    return f"{limits.model}: {', '.join(said)}; beyond: {limits.on_excess.value}" + (
        f"; PROBLEM: {limits.problem}" if limits.problem else ""
    )


def _meter(config: FleetConfig, state: Path, clock: Clock) -> UsageMeter:
    directory = state / "usage"
    directory.mkdir(parents=True, exist_ok=True)
    settings = MeterSettings(gateway=config.gateway.name, book=price_book(config.price))
    return UsageMeter(directory, open_ledger(_ledger(config, directory)), settings, clock)


def _ledger(config: FleetConfig, usage: Path) -> str | Path:
    address = config.gateway.ledger
    if address is None:
        return usage / "ledger.sqlite"
    return address if "://" in address else config.directory / address


def _sharing(config: FleetConfig, deciding: Deciding, desk: Desk, clock: Clock) -> Sharing | None:
    """As the configuration has it; None where nothing is shared. UsageError for an address that is none."""
    shared = config.shared
    if shared is None:
        return None
    rule = SharingRule(lease_s=shared.lease / NS_PER_S)
    address = StoreAddress(
        url=shared.url,
        fleet=shared.fleet,
        lease_ms=max(1, int(rule.kept_s * 1_000)),
        timeout_s=rule.answer_s,
        password_env=shared.password_env,
    )
    store = SharedStore(address, f"{config.gateway.name}-{secrets.token_hex(4)}")
    return Sharing(store, deciding.controller, deciding.router, desk.act, clock, rule)


def _tls(config: FleetConfig) -> Tls | None:
    section, base = config.gateway.tls, config.directory
    if section is None:
        return None
    return Tls(
        certificate=base / section.certificate,
        key=base / section.key,
        client_ca=None if section.client_ca is None else base / section.client_ca,
    )


class _Signals:
    """SIGTERM and SIGINT: the first asks for order, the second for haste."""

    def __init__(self) -> None:
        self.first, self.second = asyncio.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()
        for name in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(name, self._came)

    def _came(self) -> None:
        (self.second if self.first.is_set() else self.first).set()
