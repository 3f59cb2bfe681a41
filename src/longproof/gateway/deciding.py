"""The controller of a fleet that was met, with its router and, where it is wanted, its log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from longproof.clock import Clock
from longproof.domain.fleet import FleetSnapshot, ReplicaState
from longproof.gateway.config import FleetConfig
from longproof.gateway.decision_codec import LogHeader
from longproof.gateway.decisions import DecisionLog, LoggedRouter
from longproof.gateway.introduce import Met
from longproof.gateway.rules import controller_config, routing_rule
from longproof.policy.claim_gate import ProvenLimits
from longproof.policy.controller import Controller
from longproof.policy.decision_record import Recorded
from longproof.policy.routing import PrefixRouter


@dataclass(frozen=True, slots=True, kw_only=True)
class Deciding:
    """Who decides. `controller` is what everybody calls; with a log it writes down what it is told and answers."""

    controller: Controller | Recorded
    router: PrefixRouter
    log: DecisionLog | None
    clock: Clock

    def snapshot(self) -> FleetSnapshot:
        """The fleet now."""
        return self.controller.snapshot(self.clock.now_ns())

    def why_not_ready(self) -> str | None:
        """Why nothing can be served now; None = it can."""
        states = [replica.state for replica in self.snapshot().replicas]
        return None if ReplicaState.UP in states else "no replica is up"

    def records_dropped(self) -> int:
        """Decisions that the log could not take."""
        return 0 if self.log is None else self.log.dropped

    def close(self) -> None:
        """Writes the end of the log."""
        if self.log is not None:
            self.log.close()


def deciding_for(config: FleetConfig, proven: Mapping[str, ProvenLimits], met: Met, clock: Clock) -> Deciding:
    """Knows all replicas; those that did not answer are down. UserError for rules that are none, or a log that cannot
    be written."""
    rules = controller_config(config, (one.ruled.rule for one in met.replicas), proven)
    routing, log = routing_rule(config, {one.replica.name: one.standing.section for one in met.replicas}), None
    if config.gateway.decision_log is None:
        router = PrefixRouter(routing)
        controller: Controller | Recorded = Controller(rules, router)
    else:
        path = config.directory / config.gateway.decision_log
        section = config.gateway
        log = DecisionLog(
            path,
            LogHeader(config=rules, routing=routing),
            file_bytes=section.decision_log_size,
            files=section.decision_log_files,
        )
        router = LoggedRouter(routing, log)
        controller = Recorded(Controller(rules, router), log.sink)
    for one in met.replicas:
        router.follow(
            one.replica.name,
            block_tokens=one.ruled.rule.block_tokens,
            cache_blocks=one.ruled.cache_blocks,
            events=one.standing.section.kv_events is not None,
        )
        if one.engine is None:
            controller.on_replica(one.replica.name, ReplicaState.DOWN, clock.now_ns())
    return Deciding(controller=controller, router=router, log=log, clock=clock)
