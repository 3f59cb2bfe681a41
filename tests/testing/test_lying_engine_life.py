"""The server's life: start, stop, restart, other lies on the fly, clients that leave, use by hand."""

from __future__ import annotations

import asyncio
import pickle
import subprocess
import sys
import threading

import httpx
import pytest

from longproof.testing import HONEST, VLLM, Behaviour
from longproof.testing.dialects import DIALECTS, Dialect
from longproof.testing.engine_log import Ending, EngineLog
from longproof.testing.lies import Hang, IgnoreDisconnect, Refuse, SlowPrefill, StallStream
from longproof.testing.lying_engine import lying_engine

BODY = {"prompt": "Hi", "stream": True, "max_tokens": 4}


async def test_engine_serves_when_entered_asynchronously() -> None:
    engine = lying_engine()
    async with engine as url, httpx.AsyncClient(base_url=url) as client:
        assert engine.url == url
        answers = await asyncio.gather(*(client.post("/v1/completions", json={"prompt": "Hi"}) for _ in range(8)))
    assert {answer.status_code for answer in answers} == {200}
    assert not engine.alive
    assert len(engine.log.requests) == 8


def test_nothing_listens_when_it_is_left() -> None:
    engine = lying_engine()
    with pytest.raises(RuntimeError, match="never started"):
        _ = engine.url
    with engine as url:
        assert engine.alive
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/health")
    engine.stop()  # a second time does no harm
    assert not [thread for thread in threading.enumerate() if thread.name == "lying-engine"]


def test_open_requests_do_not_hold_up_the_end() -> None:
    engine = lying_engine(HONEST.lying(Hang(headers="at_once")))
    engine.start()
    with httpx.stream("POST", f"{engine.url}/v1/completions", json=BODY) as response:
        engine.stop()
        with pytest.raises(httpx.TransportError):
            response.read()
    # its connection was aborted, which the exchange sees as a client that left, or it was stopped first
    assert engine.log.last.ending in (Ending.DISCONNECTED, Ending.STOPPED)


def test_cache_is_empty_and_the_address_the_same_after_a_crash(complete) -> None:
    engine = lying_engine()
    with engine as url:
        complete(url, [300] * 50)
        engine.crash()
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{url}/health")
        assert engine.start() == url
        assert complete(url, [300] * 50).cached == 0
        assert complete(url, [300] * 50).cached == 49


def test_lies_change_from_the_next_request_on(complete) -> None:
    engine = lying_engine()
    with engine as url:
        assert complete(url, "Hi").status == 200
        engine.behave(HONEST.lying(Refuse(status=503)))
        assert complete(url, "Hi").status == 503
        engine.behave(HONEST)
        assert complete(url, "Hi").status == 200
        with pytest.raises(ValueError, match="dialect, slots"):
            engine.behave(Behaviour(dialect=VLLM, slots=2))


def left(log: EngineLog) -> bool:
    return log.last.disconnected_ns is not None


@pytest.mark.parametrize("lie", [SlowPrefill(delay_s=600, times=1), StallStream(after_tokens=2, for_s=600, times=1)])
def test_slot_is_free_again_when_the_client_leaves(lie, complete) -> None:
    engine = lying_engine(Behaviour(slots=1, lies=(lie,)))
    with engine as url:
        with httpx.stream("POST", f"{url}/v1/completions", json=BODY) as response:
            assert response.status_code == 200
        engine.log.wait_for(left)
        assert len(complete(url, "Hi").deltas) == 8
    gone, after = engine.log.requests
    assert (gone.ending, after.ending) == (Ending.DISCONNECTED, Ending.COMPLETED)
    assert gone.received_ns < gone.disconnected_ns <= gone.finished_ns
    assert gone.claimed_usage is None


def test_work_goes_on_when_the_engine_does_not_notice_the_client_leaving(complete) -> None:
    lies = (IgnoreDisconnect(times=1), SlowPrefill(delay_s=0.2, times=1))
    engine = lying_engine(Behaviour(slots=1, lies=lies))
    with engine as url:
        with httpx.stream("POST", f"{url}/v1/completions", json=BODY) as response:
            assert response.status_code == 200
        engine.log.wait_for(left)
        complete(url, "Hi")
    gone, after = engine.log.requests
    assert (gone.ending, gone.output_tokens) == (Ending.COMPLETED, 4)
    assert after.admitted_ns >= gone.finished_ns  # the only slot was held to the end


def test_waiting_client_gives_up_its_place_when_it_leaves() -> None:
    engine = lying_engine(Behaviour(slots=1, lies=(SlowPrefill(delay_s=600),)))
    with engine as url, httpx.stream("POST", f"{url}/v1/completions", json=BODY):
        with httpx.stream("POST", f"{url}/v1/completions", json=BODY):
            assert "llamacpp:requests_deferred 1\n" in httpx.get(f"{url}/metrics").text
        engine.log.wait_for(left)
        engine.log.wait_for(lambda log: log.last.finished_ns is not None)
        assert "llamacpp:requests_deferred 0\n" in httpx.get(f"{url}/metrics").text
        assert "llamacpp:requests_processing 1\n" in httpx.get(f"{url}/metrics").text


def test_log_has_every_call_and_what_was_asked(complete) -> None:
    engine = lying_engine()
    with engine as url:
        httpx.get(f"{url}/props")
        complete(url, "Hi", seed=7, headers={"x-test": "yes"})
    assert [(call.method, call.path) for call in engine.log.calls] == [("GET", "/props"), ("POST", "/v1/completions")]
    assert engine.log.last.options == {"max_tokens": 8, "stream": True, "seed": 7}
    assert engine.log.last.headers["x-test"] == "yes"
    with pytest.raises(TimeoutError):
        engine.log.wait_for(lambda log: len(log.requests) > 1, timeout_s=0.01)


def test_engine_runs_by_hand_until_it_is_told_to_stop(complete) -> None:
    command = [
        sys.executable,
        "-m",
        "longproof.testing.lying_engine",
        "--lie",
        "clamp_output:tokens=2",
        "--window",
        "64",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        try:
            assert len(complete(url, "Hi").deltas) == 2
            assert complete(url, [300] * 64).status == 400
        finally:
            process.terminate()


def test_unknown_lie_is_named_when_written_by_hand() -> None:
    command = [sys.executable, "-m", "longproof.testing.lying_engine", "--lie", "nonsense"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "there is no lie 'nonsense'" in done.stderr
    assert "truncate_input" in done.stderr


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS.keys())
def test_a_dialect_is_the_same_one_when_it_comes_from_another_process(dialect: Dialect) -> None:
    assert pickle.loads(pickle.dumps(HONEST.but(dialect=dialect))).dialect is dialect
