"""Load from several processes: every request is a timeline, whoever sent it, also when its sender dies."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import psutil
import pytest

from longproof.asking.workers import Job, Workers, load_workers
from longproof.domain.events import EndedBy, RequestTimeline
from longproof.domain.outcome import Outcome, classify
from longproof.domain.request import ChatMessage, ChatPrompt, CountSource, GenerationRequest, IdsPrompt, TextPrompt
from longproof.engines.link import Link
from longproof.engines.openai import OpenAIEngine
from longproof.engines.registry import connect
from longproof.testing.behaviour import Behaviour
from longproof.testing.dialects import VLLM
from longproof.testing.lying_engine import lying_engine
from longproof.testing.scripted_http import HANG, Reply, ScriptedHttp

TOKEN = b'data: {"choices":[{"index":0,"text":"a","finish_reason":"length"}]}\n\ndata: [DONE]\n\n'
PATH = "POST /v1/completions"
HELLO = GenerationRequest(prompt=TextPrompt(text="x"), max_tokens=4, timeout_s=30.0)


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - the server counts, it does not announce
            await asyncio.sleep(0.005)


@pytest.fixture
async def hanging() -> AsyncIterator[ScriptedHttp]:
    async with ScriptedHttp({PATH: Reply.stream(HANG)}) as server:
        yield server


async def test_timelines_are_those_of_an_engine_asked_directly() -> None:
    # the vLLM dialect wants a key, takes ids, and is told to produce exactly 5 tokens
    behaviour = Behaviour(dialect=VLLM, api_key="key-123456", slots=8)
    done: dict[str, RequestTimeline] = {}
    async with lying_engine(behaviour) as url:
        engine = await connect(url, api_key="key-123456")
        prompts = [
            IdsPrompt(ids=tuple(range(500, 540))),
            ChatPrompt(messages=(ChatMessage(role="user", content="Hi"),)),
        ]
        jobs = [
            Job(
                name=f"{i}",
                prepared=await engine.prepare(
                    GenerationRequest(
                        prompt=prompts[i % 2], max_tokens=5, prompt_tokens=40, count_source=CountSource.IDS
                    )
                ),
            )
            for i in range(12)
        ]
        async with load_workers(url, 2, api_key="key-123456") as workers:
            await workers.send_all(jobs, on_done=lambda job, timeline: done.update({job.name: timeline}))
            assert len(workers) == 2
            assert workers.lost == []
        await engine.aclose()
    assert sorted(done) == sorted(job.name for job in jobs)
    for job in jobs:
        timeline = done[job.name]
        assert classify(timeline) is Outcome.COMPLETED
        assert (timeline.request_id, timeline.route) == (job.prepared.request_id, job.prepared.request.route)
        assert (timeline.prompt_tokens_sent, timeline.count_source) == (40, CountSource.IDS)
        assert timeline.body_bytes == job.prepared.body.size_bytes
        assert timeline.usage is not None
        assert timeline.usage.completion_tokens == 5


async def test_requests_are_spread_over_all_workers(hanging: ScriptedHttp) -> None:
    engine = OpenAIEngine(Link(hanging.url), model="m")
    async with load_workers(hanging.url, 3) as workers:
        sending = [asyncio.create_task(workers.send(await engine.prepare(HELLO))) for _ in range(6)]
        await _until(lambda: len(hanging.received) == 6)
        children = _children()
        ports = {c.raddr.port for child in children for c in child.net_connections() if c.raddr}
        held = [sum(c.status == "ESTABLISHED" for c in child.net_connections("tcp")) for child in children]
        assert held == [2, 2, 2]
        assert ports == {int(hanging.url.rpartition(":")[2])}
        for task in sending:
            task.cancel()
        await asyncio.gather(*sending, return_exceptions=True)
        await _until(lambda: hanging.gone == 6)  # a cancelled task closes its connection in the worker
    await engine.aclose()


async def test_request_leaves_at_its_time_by_the_same_clock() -> None:
    async with ScriptedHttp({PATH: Reply.stream(TOKEN)}) as server:
        engine = OpenAIEngine(Link(server.url), model="m")
        async with load_workers(server.url, 1) as workers:
            began_ns = time.monotonic_ns()
            planned_ns = began_ns + 300_000_000
            timeline = await workers.send(await engine.prepare(HELLO), at_ns=planned_ns)
        # timers count in floats and may end a hair early
        assert planned_ns - 30_000_000 <= timeline.submitted_ns <= timeline.finished_ns <= time.monotonic_ns()
        await engine.aclose()


async def test_open_and_waiting_requests_end_as_cancelled_when_all_are_told_to_leave(hanging: ScriptedHttp) -> None:
    engine = OpenAIEngine(Link(hanging.url), model="m")
    leave = asyncio.Event()
    done: list[tuple[str, RequestTimeline]] = []
    async with load_workers(hanging.url, 2) as workers:
        later_ns = time.monotonic_ns() + 3_600_000_000_000
        jobs = [Job(name=f"now {i}", prepared=await engine.prepare(HELLO)) for i in range(3)]
        jobs += [Job(name="later", prepared=await engine.prepare(HELLO), at_ns=later_ns)]
        sending = asyncio.create_task(
            workers.send_all(jobs, on_done=lambda job, timeline: done.append((job.name, timeline)), leave=leave)
        )
        await _until(lambda: len(hanging.received) == 3)
        leave.set()
        await sending
        await _until(lambda: hanging.gone == 3)
    assert {name for name, _ in done} == {job.name for job in jobs}
    assert {timeline.ended_by for _, timeline in done} == {EndedBy.CANCELLED}
    assert {timeline.status for name, timeline in done if name != "later"} == {200}
    assert len(hanging.received) == 3
    await engine.aclose()


async def test_request_is_left_after_its_time_when_it_has_one(hanging: ScriptedHttp) -> None:
    engine = OpenAIEngine(Link(hanging.url), model="m")
    async with load_workers(hanging.url, 1) as workers:
        timeline = await workers.send(await engine.prepare(HELLO), leave_after_ns=100_000_000)
        assert timeline.ended_by is EndedBy.CANCELLED
        assert timeline.e2e_ns >= 90_000_000
        await _until(lambda: hanging.gone == 1)
    await engine.aclose()


async def test_long_bodies_arrive_whole_and_commands_do_not_break_into_them() -> None:
    async with ScriptedHttp({PATH: Reply.stream(TOKEN)}) as server:
        engine = OpenAIEngine(Link(server.url), model="m")
        long = GenerationRequest(prompt=IdsPrompt(ids=tuple(range(400_000))), max_tokens=1)
        leave = asyncio.Event()
        async with load_workers(server.url, 1) as workers:
            prepared = [await engine.prepare(long) for _ in range(4)]
            sending = [asyncio.create_task(workers.send(one)) for one in prepared]
            waiting = asyncio.create_task(
                workers.send(await engine.prepare(HELLO), at_ns=time.monotonic_ns() + 10**12, leave=leave)
            )
            await asyncio.sleep(0)
            leave.set()  # while the long ones are being written
            assert (await waiting).ended_by is EndedBy.CANCELLED
            timelines = await asyncio.gather(*sending)
        assert {timeline.ended_by for timeline in timelines} == {EndedBy.DONE}
        bodies = {json.loads(b"".join(one.body.pieces))["prompt"][-1]: b"".join(one.body.pieces) for one in prepared}
        assert all(received.body == bodies[399_999] for received in server.received)
        assert len(server.received) == 4
        await engine.aclose()


def _children() -> list[psutil.Process]:
    found = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):  # ended meanwhile, or a zombie that is about to be waited for
            if "load_worker" in " ".join(child.cmdline()):
                found.append(child)
    return found


async def test_requests_of_a_worker_that_dies_are_recorded_and_the_others_go_on(hanging: ScriptedHttp) -> None:
    engine = OpenAIEngine(Link(hanging.url), model="m")
    async with load_workers(hanging.url, 2) as workers:
        first = asyncio.create_task(workers.send(await engine.prepare(HELLO)))
        await _until(lambda: len(hanging.received) == 1)
        victim = next(child for child in _children() if child.net_connections("tcp"))
        os.kill(victim.pid, signal.SIGKILL)
        lost = await first
        assert lost.ended_by is EndedBy.CANCELLED
        assert lost.transport_error == workers.lost[0]
        assert "ended (signal 9)" in workers.lost[0]
        assert lost.finished_ns >= lost.submitted_ns
        assert (len(workers), len(workers.lost)) == (1, 1)
        hanging.routes[PATH] = Reply.stream(TOKEN)
        assert (await workers.send(await engine.prepare(HELLO))).ended_by is EndedBy.DONE
        os.kill(_children()[0].pid, signal.SIGKILL)
        await _until(lambda: len(workers) == 0)
        with pytest.raises(RuntimeError, match="no load worker is left"):
            await workers.send(await engine.prepare(HELLO))
    await engine.aclose()


async def test_workers_are_gone_when_their_context_ends_with_open_requests(hanging: ScriptedHttp) -> None:
    engine = OpenAIEngine(Link(hanging.url), model="m")

    async def leave_early() -> None:
        async with load_workers(hanging.url, 2) as workers:
            asking = asyncio.create_task(workers.send(await engine.prepare(HELLO)))
            await _until(lambda: len(hanging.received) == 1)
            raise ZeroDivisionError(asking)

    with pytest.raises(ZeroDivisionError):
        await leave_early()
    assert _children() == []
    await _until(lambda: hanging.gone == 1)
    await engine.aclose()


async def test_workers_die_with_their_parent(hanging: ScriptedHttp, tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(
        "import asyncio, sys\n"
        "from longproof.asking.workers import load_workers\n"
        "async def main():\n"
        "    async with load_workers(sys.argv[1], 2):\n"
        "        print('ready', flush=True)\n"
        "        await asyncio.sleep(3600)\n"
        "asyncio.run(main())\n"
    )
    parent = await asyncio.create_subprocess_exec(
        sys.executable, str(script), hanging.url, stdout=asyncio.subprocess.PIPE
    )
    assert parent.stdout is not None
    assert await parent.stdout.readline() == b"ready\n"
    children = psutil.Process(parent.pid).children()
    assert len(children) == 2
    parent.kill()
    _, alive = await asyncio.to_thread(psutil.wait_procs, children, 60)
    assert alive == []
    await parent.wait()


async def test_key_is_not_on_the_command_line_and_not_left_in_the_environment(hanging: ScriptedHttp) -> None:
    engine = OpenAIEngine(Link(hanging.url), model="m")
    async with load_workers(hanging.url, 1, api_key="key-123456") as workers:
        asking = asyncio.create_task(workers.send(await engine.prepare(HELLO)))
        await _until(lambda: len(hanging.received) == 1)
        (child,) = _children()
        assert "key-123456" not in " ".join(child.cmdline())
        assert hanging.received[0].headers["authorization"] == "Bearer key-123456"
        asking.cancel()
    assert "LONGPROOF_LOAD_WORKER_KEY" not in os.environ
    await engine.aclose()


async def test_workers_report_how_often_they_looked_at_their_loop(hanging: ScriptedHttp) -> None:
    seen = 0

    async def look(workers: Workers) -> None:
        nonlocal seen
        async with asyncio.timeout(60):
            while not seen:
                await asyncio.sleep(0.05)
                lags, checks = workers.take_lags()
                seen += checks
                assert len(lags) <= checks

    async with load_workers(hanging.url, 1) as workers:
        await look(workers)
    assert seen > 0
