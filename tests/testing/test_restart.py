"""Restarts: by method, by HTTP, by command; and an engine that is another one afterwards."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading

import httpx

from longproof.testing import VLLM, Behaviour
from longproof.testing.lies_of_load import RestartChanges
from longproof.testing.lying_engine import lying_engine

COMMAND = [sys.executable, "-m", "longproof.testing.restart"]


def test_engine_is_empty_and_has_its_address_after_a_restart(complete) -> None:
    engine = lying_engine()
    with engine as url:
        complete(url, [300] * 50)
        assert complete(url, [300] * 50).cached == 49
        assert engine.restart() == url
        assert complete(url, [300] * 50).cached == 0
        assert engine.lives == 2
    assert len(engine.log.requests) == 3


def test_metrics_tell_when_this_life_began(metric) -> None:
    engine = lying_engine(Behaviour(dialect=VLLM))
    with engine as url:
        first = metric(url, "process_start_time_seconds")
        assert metric(url, "process_start_time_seconds") == first
        engine.restart()
        assert metric(url, "process_start_time_seconds") > first


def test_command_restarts_it_when_given_the_control_url(complete) -> None:
    engine = lying_engine()
    with engine as url:
        complete(url, [300] * 50)
        done = subprocess.run([*COMMAND, engine.control_url], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (0, f"{url}\n")
        assert engine.lives == 2
        assert complete(url, [300] * 50).cached == 0
        assert httpx.post(f"{engine.control_url}/else").status_code == 404
        control = engine.control_url
    for target in (control, "nonsense"):
        failed = subprocess.run([*COMMAND, target], capture_output=True, text=True, check=False)
        assert failed.returncode == 1
        assert "cannot restart" in failed.stderr
    assert not [thread for thread in threading.enumerate() if thread.name == "lying-engine"]


def test_engine_that_runs_by_hand_is_restarted_by_the_command() -> None:
    command = [sys.executable, "-m", "longproof.testing.lying_engine", "--dialect", "vllm", "--compute", "shared"]
    options = ["--jitter", "0.1", "--seed", "3", "--dev-mode", "--control"]
    with subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url, control = (process.stdout.readline().strip() for _ in range(2))
        try:
            assert httpx.post(f"{url}/abort_requests", json={"request_ids": ["none"]}).status_code == 200
            done = subprocess.run([*COMMAND, control], capture_output=True, text=True, check=False)
            assert done.stdout == f"{url}\n"
            assert httpx.get(f"{url}/health").status_code == 200
        finally:
            process.terminate()


def test_nothing_listens_while_it_starts() -> None:
    engine = lying_engine(Behaviour(start_s=1.0))
    with engine as url:
        restarting = threading.Thread(target=engine.restart)
        assert httpx.get(f"{url}/health").status_code == 200
        restarting.start()
        answers = set()
        while restarting.is_alive():
            with contextlib.suppress(httpx.TransportError):
                answers.add(httpx.get(f"{url}/health").status_code)
                continue
            answers.add(None)
        assert None in answers
        assert httpx.get(f"{url}/health").status_code == 200


def test_window_and_pool_and_cache_differ_when_the_restart_changes_it(complete) -> None:
    lie = RestartChanges(window_scale=0.5, kv_scale=0.25, cache="off")
    engine = lying_engine(Behaviour(dialect=VLLM, window_tokens=1024, slots=4, lies=(lie,)))
    with engine as url:
        told = []
        for _ in range(3):
            window = httpx.get(f"{url}/v1/models").json()["data"][0]["max_model_len"]
            info = next(x for x in httpx.get(f"{url}/metrics").text.splitlines() if x.startswith("vllm:cache_config"))
            for _ in range(2):
                seen = complete(url, [300] * 100, stream_options={"include_usage": True})
            told.append((window, 'num_gpu_blocks="256"' in info, 'num_gpu_blocks="64"' in info, seen.cached))
            engine.restart()
    assert told == [(1024, True, False, 96), (512, False, True, 0), (512, False, True, 0)]


def test_work_takes_longer_when_the_restart_makes_it_slower(complete) -> None:
    engine = lying_engine(Behaviour(prefill_tokens_per_s=10_000.0, lies=(RestartChanges(slower=3.0, kv_scale=1.0),)))
    with engine as url:
        first = complete(url, [300] * 100).events[-1]["timings"]["prompt_ms"]
        engine.restart()
        second = complete(url, [300] * 100).events[-1]["timings"]["prompt_ms"]
    assert (first, second) == (10.0, 30.0)  # by the timetable, which does not depend on the machine
