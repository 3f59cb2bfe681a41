"""What vLLM gives back after a cancel: by disconnect and by its abort endpoint, in prefill and in decode."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "asking"))

from probing import probing

from longproof.claim.findings.reclaim import read
from longproof.claim.statements import Finding, NotShown, Standing, Statement
from longproof.domain.measure import Measured
from longproof.domain.outcome import Outcome, classify
from longproof.engines.vllm import VllmEngine
from longproof.evidence.records import RequestBody
from longproof.probe import reclaim
from longproof.probe.reclaim import ReclaimPlan
from longproof.testing.builders import build_protocol, build_view

PLAN = ReclaimPlan(length_tokens=1_500, largest_tokens=4_000, decode_tokens=64, cycles=1, abort=True)


async def test_kv_comes_back_and_the_largest_is_admitted_when_requests_are_cancelled(
    vllm: VllmEngine, tmp_path: Path
) -> None:
    async with probing(vllm, tmp_path, protocol=build_protocol(output_tokens=8, request_timeout_s=300.0)) as ctx:
        await reclaim.run(ctx, PLAN)
        entries = [(record.key, record.body) for record in ctx.journal.records]
        header = ctx.journal.header
    said: list[Statement | Finding | NotShown] = list(read(build_view(*entries, header=header)))
    bodies = {key: body for key, body in entries if isinstance(body, RequestBody)}
    assert [item.id for item in said if isinstance(item, Finding)] == []
    found = {item.metric: item for item in said if isinstance(item, Statement)}
    assert found["reclaim_time_decode"].standing is Standing.SHOWN
    assert found["abort_time_decode"].standing is Standing.SHOWN
    lost = found["kv_lost_per_cancel"].value
    assert isinstance(lost, Measured)
    assert lost.value == 0
    assert found["readmitted"].samples == (1.0,) * 5  # after prefill and decode, each left and aborted, and at the end
    assert classify(bodies["reclaim/decode/disconnect/0#1/cancelled"].timeline) is Outcome.CANCELLED
    assert classify(bodies["reclaim/decode/abort/0#1/cancelled"].timeline) is Outcome.ABORTED
