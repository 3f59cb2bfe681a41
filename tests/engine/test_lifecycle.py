"""What the real llama.cpp does when clients leave, and after a restart of its own process."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "asking"))

from probing import findings, probing, requests

from longproof.asking.restarter import restarter_for
from longproof.claim.findings import reclaim as reclaim_reader
from longproof.claim.findings import restart as restart_reader
from longproof.claim.statements import Finding, NotShown, Standing, Statement
from longproof.domain.outcome import Outcome, classify, completed_as_asked
from longproof.engines.base import Engine
from longproof.probe import reclaim, restart
from longproof.probe.reclaim import ReclaimPlan
from longproof.probe.restart import RestartPlan
from longproof.prove.target import EmbeddedTarget
from longproof.testing.builders import build_protocol, build_view

pytestmark = pytest.mark.engine
PROTOCOL = build_protocol(output_tokens=4, request_timeout_s=300.0)


async def open_engine(directory: Path) -> Engine:
    return await EmbeddedTarget(window_tokens=512, slots=1).open(directory / "llamacpp.log")


async def test_a_slot_is_free_again_and_the_largest_fits_when_clients_left(tmp_path: Path) -> None:
    """One slot: one request in front is enough to make another wait."""
    plan = ReclaimPlan(length_tokens=200, largest_tokens=480, decode_tokens=32, cycles=1, blockers=1)
    async with probing(await open_engine(tmp_path), tmp_path / "run", protocol=PROTOCOL) as ctx:
        await reclaim.run(ctx, plan)
        sent = requests(ctx)
        view = build_view(*((record.key, record.body) for record in ctx.journal.records), header=ctx.journal.header)
    said: list[Statement | Finding | NotShown] = list(reclaim_reader.read(view))
    assert findings(said) == []
    left = [body for key, body in sent.items() if key.endswith("/cancelled")]
    assert {classify(body.timeline) for body in left} == {Outcome.CANCELLED}
    found = {item.metric: item for item in said if isinstance(item, Statement)}
    assert found["reclaim_time_decode"].standing is Standing.SHOWN
    assert found["readmitted"].samples == (1.0,) * 3
    assert "reclaim_kv" in {item.topic for item in said if isinstance(item, NotShown)}


async def test_it_is_the_same_engine_when_our_process_was_restarted(tmp_path: Path) -> None:
    plan = RestartPlan(lengths=(100, 200), largest_tokens=480, warm_tokens=200, limit_tokens=512, repeats=1)
    engine = await open_engine(tmp_path)
    async with probing(engine, tmp_path / "run", protocol=PROTOCOL) as ctx:
        await restart.run(replace(ctx, restarter=restarter_for(engine, None)), plan)
        sent = requests(ctx)
        view = build_view(*((record.key, record.body) for record in ctx.journal.records), header=ctx.journal.header)
    said = list(restart_reader.read(view))
    assert not {"restart.failed", "restart.changed"} & set(findings(said))
    assert completed_as_asked(sent["restart/first"].timeline)
    before = {key.removeprefix("restart/before/"): body for key, body in sent.items() if "/before/" in key}
    after = {key.removeprefix("restart/after/"): body for key, body in sent.items() if "/after/" in key}
    assert {key: classify(body.timeline) for key, body in before.items()} == {
        key: classify(body.timeline) for key, body in after.items()
    }
