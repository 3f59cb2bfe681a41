"""The busy probe on a real vLLM: short requests in a closed loop, a long prompt of two chunks among them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "asking"))

from probing import findings, probing, requests, statement

from longproof.asking.arrivals import Lengths
from longproof.asking.background import Background
from longproof.claim.findings import busy as reader
from longproof.domain.measure import Measured
from longproof.domain.outcome import Outcome, classify
from longproof.probe import busy
from longproof.testing.builders import build_protocol, build_view

S = 1_000_000_000


async def test_a_long_request_is_served_among_short_ones_when_vllm_is_busy(vllm_server: Any, tmp_path: Path) -> None:
    """3,000 tokens take two steps of at most 2,048 tokens: short requests under way get a token in each, so their
    longest pause is about one step, and nobody is starved. vLLM counts preemptions, and there is room enough for
    none."""
    lengths = Lengths(source="test", input_tokens=(48, 96), output_tokens=(8, 12), weights=(1, 1))
    plan = busy.BusyPlan(
        background=Background(lengths=lengths, concurrency=4),
        long_tokens=3000,
        long_output_tokens=8,
        injections=1,
        twins=1,
        alone_ns=3 * S,
        lead_ns=S,
        tail_ns=S,
        least_patience_s=120.0,
    )
    protocol = build_protocol(output_tokens=8, request_timeout_s=300.0)
    async with probing(vllm_server.url, tmp_path, protocol=protocol) as ctx:
        await busy.run(ctx, plan)
        sent = requests(ctx)
        view = build_view(*((record.key, record.body) for record in ctx.journal.records), header=ctx.journal.header)
    said = list(reader.read(view))
    assert {classify(body.timeline) for body in sent.values()} == {Outcome.COMPLETED}
    assert not any(body.timeline.usage.cached_tokens for body in sent.values() if body.timeline.usage)
    assert findings(said) == []
    preempted = statement(said, "busy_preemptions", None)
    assert isinstance(preempted.value, Measured)
    assert preempted.value.value == 0
    assert statement(said, "busy_long_wait", 3000).n == 1
