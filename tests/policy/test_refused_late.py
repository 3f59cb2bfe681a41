"""An engine's refusal that comes when the controller already takes the prefill as done, or the replica as restarted:
somebody waits for an answer, so there has to be one."""

from __future__ import annotations

import pytest

from longproof.domain.fleet import ReplicaState
from longproof.policy.actions import Dispatch
from longproof.policy.admission import INCREMENTAL, AdmissionRule
from longproof.policy.arrivals import Arrival, Ended, EndKind
from longproof.policy.controller import Controller
from longproof.policy.controller_config import ControllerConfig, ReplicaRule
from longproof.policy.ledger import Pool
from longproof.policy.need import BlockNeed
from longproof.policy.prefill_cost import PrefillCost
from longproof.policy.routing import PrefixRouter

NS_PER_S = 1_000_000_000


def replica(name: str) -> ReplicaRule:
    return ReplicaRule(
        name=name,
        models=("m",),
        pools=(Pool(stage="kv", capacity_blocks=64, need=BlockNeed(block_tokens=16)),),
        admission=AdmissionRule(limit_tokens=1_024, reservation=INCREMENTAL),
        prefill=PrefillCost.at_rate(1_000),
    )


@pytest.mark.parametrize("before", ["a tick after its prefill should be done", "a restart of its replica"])
def test_another_replica_is_named_when_the_refusal_comes_late(before: str) -> None:
    controller = Controller(ControllerConfig(replicas=(replica("a"), replica("b"))), PrefixRouter())
    arrival = Arrival(id="1", tenant="", model="m", input_tokens=100, exact=True, output_tokens=8, streamed=False)
    first = controller.on_arrival(arrival, 0)
    assert isinstance(first, Dispatch)
    if before.startswith("a tick"):
        controller.on_tick(60 * NS_PER_S)  # a hundred tokens at a thousand a second are long over
    else:
        controller.on_replica(first.replica, ReplicaState.RESTARTED, NS_PER_S)
    (second,) = controller.on_refused_by_engine("1", 5 * NS_PER_S, 61 * NS_PER_S)
    assert isinstance(second, Dispatch)
    if before.startswith("a tick"):
        assert second.replica != first.replica
    controller.on_finish("1", Ended(kind=EndKind.COMPLETED), 62 * NS_PER_S)
    fleet = controller.snapshot(62 * NS_PER_S)
    assert fleet.running_count == 0
    assert [(r.prefilling, r.decoding, r.stages[0].held_blocks) for r in fleet.replicas] == [(0, 0, 0), (0, 0, 0)]
