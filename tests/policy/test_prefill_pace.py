"""What a prefill's duration may be learned from."""

from __future__ import annotations

import pytest

from longproof.policy.actions import Dispatch
from longproof.policy.arrivals import Ended, EndKind
from longproof.policy.controller import Controller
from longproof.policy.controller_config import ControllerConfig
from longproof.testing.controllers import LeastBacklog, S, arrival, replica_rule


@pytest.mark.parametrize(("streamed", "predicted_s"), [(True, 4), (False, 1)])
def test_only_streams_teach_how_fast_a_replica_prefills(streamed: bool, predicted_s: int) -> None:
    rule = replica_rule(capacity_blocks=100_000, tokens_per_s=1_000, learn_prefill=True)
    gateway = Controller(ControllerConfig(replicas=(rule,)), LeastBacklog())
    for number in range(3):
        at_ns = number * 10 * S
        gateway.on_arrival(arrival(str(number), 1_000, 10, streamed=streamed), at_ns)
        gateway.on_first_token(str(number), at_ns + 4 * S)  # without a stream, that is the whole answer
        gateway.on_finish(str(number), Ended(kind=EndKind.COMPLETED), at_ns + 4 * S)
    sent = gateway.on_arrival(arrival("next", 1_000, 10), 40 * S)
    assert isinstance(sent, Dispatch)
    assert sent.predicted_ttft_ns == predicted_s * S  # assumed: 1,000 tokens a second
