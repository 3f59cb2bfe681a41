"""Windows under load against a real server: what is sent when, what is kept, and what a crash leaves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from probing import Allowance, probing

from longproof.asking.context import BudgetSpent, ProbeContext
from longproof.asking.lot import Lot
from longproof.asking.stock import PromptStock
from longproof.asking.window import Load, LoadRequest, run_window
from longproof.asking.workers import load_workers
from longproof.domain.outcome import Outcome, classify
from longproof.domain.request import ChatPrompt
from longproof.evidence.records import NoteBody, RequestBody, WindowBody
from longproof.testing.behaviour import Behaviour
from longproof.testing.dialects import VLLM
from longproof.testing.lying_engine import HONEST, lying_engine

S = 1_000_000_000
SLOW = HONEST.but(slots=8, prefill_tokens_per_s=20_000.0, token_s=0.01)
"""A prompt of 200 tokens: 10 ms of prefill and 7 × 10 ms of decode, about 80 ms in all."""


def closed(stock: PromptStock, *, concurrency: int, for_ns: int) -> Load:
    lot = Lot(stock, max_tokens=8, timeout_s=60.0)

    def ith(i: int) -> LoadRequest:
        return LoadRequest(name=f"short/{i}", cell={"role": "short"}, request=lot.request(i), nonce=stock.nonce_of(i))

    return Load(concurrency=concurrency, stock=ith, for_ns=for_ns, describe={"concurrency": concurrency})


async def run(ctx: ProbeContext, load: Load, key: str = "busy/before") -> None:
    await run_window(ctx, key, probe="busy", cell={"phase": "before"}, load=load, expected_tokens=1, expected_ns=1)


async def test_every_prompt_has_its_length_when_a_stock_gives_them(tmp_path: Path) -> None:
    with lying_engine() as url:
        async with probing(url, tmp_path) as ctx:
            stock = await ctx.prompts.stock(200, key="stock")
            prompts = [stock.prompt(i) for i in range(40)]
            counts = {(await ctx.engine.count(prompt)).total for prompt in prompts}
            texts = {"".join(m.content for m in p.messages) for p in prompts if isinstance(p, ChatPrompt)}
    assert counts == {200}
    assert len(texts) == 40


async def test_places_are_filled_again_when_a_closed_loop_runs(tmp_path: Path) -> None:
    engine = lying_engine(SLOW)
    with engine as url:
        async with probing(url, tmp_path) as ctx:
            stock = await ctx.prompts.stock(200, key="stock")
            await run(ctx, closed(stock, concurrency=3, for_ns=S))
            bodies = [r.body for r in ctx.journal.records if isinstance(r.body, RequestBody)]
            window = ctx.journal.get("busy/before")
    assert isinstance(window, WindowBody)
    assert window.requests == len(bodies)
    # 3 places, 1 s, at least 80 ms each: no more than 3 × 13, and at least one place filled again
    assert 3 < len(bodies) <= 39
    assert {classify(body.timeline) for body in bodies} == {Outcome.COMPLETED}
    assert all(b.planned_ns is not None and b.planned_ns <= b.timeline.submitted_ns for b in bodies)
    spans = sorted((b.timeline.submitted_ns, b.timeline.finished_ns) for b in bodies)
    together = max(sum(a <= at < b for a, b in spans) for at, _ in spans)
    assert together == 3


async def test_nobody_waits_for_slow_answers_when_sends_are_scheduled(tmp_path: Path) -> None:
    """One slot and 80 ms of work each, 10 sends 10 ms apart: all are sent within 0.1 s plus noise, long before the
    last ones are answered: who waited for answers would send the tenth after the ninth."""
    with lying_engine(SLOW.but(slots=1)) as url:
        async with probing(url, tmp_path) as ctx:
            stock = await ctx.prompts.stock(200, key="stock")
            asked = tuple(
                LoadRequest(
                    name=f"open/{i}",
                    cell={"role": "short"},
                    request=stock.request(i, max_tokens=8, timeout_s=60.0),
                    at_ns=i * 10_000_000,
                )
                for i in range(10)
            )
            await run(ctx, Load(for_ns=0, scheduled=asked))
            found = [r.body for r in ctx.journal.records if isinstance(r.body, RequestBody)]
    assert len(found) == 10
    last_sent = max(body.timeline.submitted_ns for body in found)
    finished = sorted(body.timeline.finished_ns for body in found)
    assert last_sent < finished[8]


async def test_metrics_are_sampled_beside_it_when_the_engine_has_some(tmp_path: Path) -> None:
    with lying_engine(SLOW.but(dialect=VLLM)) as url:
        async with probing(url, tmp_path) as ctx:
            stock = await ctx.prompts.stock(200, key="stock")
            load = closed(stock, concurrency=4, for_ns=S)
            done = await run_window(
                ctx,
                "busy/x",
                probe="busy",
                cell={},
                load=load,
                expected_tokens=1,
                expected_ns=1,
                sample_every_s=0.02,
            )
    assert len(done.samples) >= 3  # of 50 on a machine that has time
    assert max(sample.running or 0 for sample in done.samples) == 4
    assert not any("_bucket" in name for sample in done.samples for name in sample.values)


async def test_a_window_is_asked_once_when_it_stands_in_the_journal(tmp_path: Path) -> None:
    engine = lying_engine(SLOW)
    with engine as url:
        async with probing(url, tmp_path) as ctx:
            stock = await ctx.prompts.stock(200, key="stock")
            await run(ctx, closed(stock, concurrency=1, for_ns=S // 10))
        served = len(engine.log.requests)
        async with probing(url, tmp_path) as ctx:
            await run(ctx, closed(stock, concurrency=1, for_ns=S // 10))
        assert len(engine.log.requests) == served


async def test_a_torn_window_runs_again_when_its_end_is_missing(tmp_path: Path) -> None:
    """A journal that has the beginning of a window and not its end, as a kill leaves it."""
    with lying_engine(SLOW) as url:
        async with probing(url, tmp_path) as ctx:
            ctx.journal.append("busy/before#1/begun", NoteBody(probe="busy", what="window_begun", detail={}))
        async with probing(url, tmp_path) as ctx:
            stock = await ctx.prompts.stock(200, key="stock")
            await run(ctx, closed(stock, concurrency=1, for_ns=S // 10))
            window = ctx.journal.get("busy/before")
    assert isinstance(window, WindowBody)
    assert window.prefix == "busy/before#2/"


async def test_a_window_is_not_begun_when_the_budget_does_not_hold_it(tmp_path: Path) -> None:
    with lying_engine(SLOW) as url:
        async with probing(url, tmp_path, allowance=Allowance(0)) as ctx:
            stock = await ctx.prompts.stock(200, key="stock")
            with pytest.raises(BudgetSpent):
                await run(ctx, closed(stock, concurrency=1, for_ns=S))
            assert not [r for r in ctx.journal.records if r.key.startswith("busy")]


async def test_a_window_ends_early_when_the_server_is_gone(tmp_path: Path) -> None:
    engine = lying_engine(Behaviour())
    with engine as url:
        async with probing(url, tmp_path) as ctx:
            stock = await ctx.prompts.stock(200, key="stock")
            engine.crash()
            await run(ctx, closed(stock, concurrency=4, for_ns=60 * S))
            window = ctx.journal.get("busy/before")
    assert isinstance(window, WindowBody)
    assert window.ended_ns - window.started_ns < 30 * S


async def test_several_processes_send_when_there_are_workers(tmp_path: Path) -> None:
    """The same closed loop, sent by two processes: all complete, and the window says how many sent."""
    with lying_engine(SLOW) as url:
        async with load_workers(url, 2) as workers, probing(url, tmp_path) as alone:
            ctx = replace(alone, workers=workers)
            stock = await ctx.prompts.stock(200, key="stock")
            await run(ctx, closed(stock, concurrency=4, for_ns=S))
            bodies = [r.body for r in ctx.journal.records if isinstance(r.body, RequestBody)]
            window = ctx.journal.get("busy/before")
    assert isinstance(window, WindowBody)
    assert window.workers == 2
    assert len(bodies) > 4  # places are filled again
    assert {classify(body.timeline) for body in bodies} == {Outcome.COMPLETED}
