"""An owned process is started, watched, stopped and restarted, and outlives nobody. The programs are real ones."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import httpx
import psutil
import pytest

from longproof.domain.measure import Measured
from longproof.engines.process import Launch, OwnedProcess
from longproof.errors import EngineDied, EngineUnreachable, UsageError

# A server that announces its address; flags make it misbehave. `helper` is a descendant in a session of its own.
SERVER = textwrap.dedent("""
    import os, signal, subprocess, sys
    flags = sys.argv[1:]
    print("hello from it", flush=True)
    print("engine", os.getpid(), flush=True)
    if "early" in flags:
        print("no memory left", flush=True)
        sys.exit(7)
    if "stubborn" in flags:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "helper" in flags:
        helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
        print("helper", helper.pid, flush=True)
    ballast = bytearray(os.urandom(1)) * (50 << 20) if "large" in flags else b""

    import http.server  # takes its time: what a test reads in the log stands there before

    class Health(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(503 if "sick" in flags else 200)
            self.end_headers()
        def log_message(self, *_):
            pass

    port = next((int(flag) for flag in flags if flag.isdigit()), 0)
    server = http.server.HTTPServer(("127.0.0.1", port), Health)
    address = f"http://127.0.0.1:{server.server_port}"
    os.write(int(os.environ["LONGPROOF_ANNOUNCE_FD"]), f"{address}\\n".encode())
    server.serve_forever()
""")

Make = Callable[..., OwnedProcess]


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[Make]:
    """Makes processes of `SERVER` with flags; kills what a failed test leaves."""
    made: list[OwnedProcess] = []

    def make(*flags: str, **launch: object) -> OwnedProcess:
        argv = (sys.executable, "-c", SERVER, *flags)
        settings = {"name": "test engine", "argv": argv, "log_path": tmp_path / "engine.log", **launch}
        made.append(OwnedProcess(Launch(**settings)))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for process in made:
        await process.stop()


def logged_pid(process: OwnedProcess, name: str) -> int:
    lines = [line.split() for line in process.log_text().splitlines()]
    return next(int(words[1]) for words in lines if words[0] == name)


def running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def gone(*pids: int) -> None:
    """Returns when none of the processes runs any more; the test's own time limit ends the wait."""
    while any(map(running, pids)):  # noqa: ASYNC110 - another process, so no event
        await asyncio.sleep(0.02)


async def test_start_returns_when_the_health_url_answers(engine: Make) -> None:
    process = engine()
    await process.start()
    async with httpx.AsyncClient() as client:
        assert (await client.get(process.url + "/health")).status_code == 200
    assert process.running
    assert process.death() is None


async def test_start_raises_engine_died_with_code_and_log_when_the_program_ends_first(engine: Make) -> None:
    process = engine("early")
    with pytest.raises(EngineDied) as caught:
        await process.start()
    assert caught.value.returncode == 7
    assert caught.value.log_tail.splitlines()[-1] == "no memory left"
    assert "exit code 7" in str(caught.value)


async def test_start_raises_unreachable_and_stops_the_program_when_it_is_never_healthy(engine: Make) -> None:
    process = engine("sick")
    with pytest.raises(EngineUnreachable, match=r"did not serve within 3 s") as caught:
        await process.start(deadline_s=3.0)
    assert "hello from it" in str(caught.value)
    await gone(logged_pid(process, "engine"))


async def test_start_leaves_nothing_running_when_it_is_cancelled(engine: Make) -> None:
    process = engine("sick")
    starting = asyncio.create_task(process.start())
    while "\nengine " not in process.log_text():  # noqa: ASYNC110 - another process, so no event
        await asyncio.sleep(0.02)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert not process.running
    await gone(logged_pid(process, "engine"))


async def test_start_raises_usage_error_when_there_is_no_such_program(tmp_path: Path) -> None:
    process = OwnedProcess(
        Launch(name="x", argv=("no-such-program",), log_path=tmp_path / "log", url="http://127.0.0.1:1")
    )
    with pytest.raises(UsageError, match="no program 'no-such-program'"):
        await process.start()


async def test_start_raises_usage_error_when_the_log_cannot_be_written(engine: Make, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"log .* cannot be written"):
        await engine(log_path=tmp_path / "file" / "engine.log").start()


async def test_the_log_keeps_all_starts_and_gives_the_latest_when_restarted(engine: Make, tmp_path: Path) -> None:
    process = engine()
    await process.start()
    first = logged_pid(process, "engine")
    await process.restart()
    second = logged_pid(process, "engine")
    whole = (tmp_path / "engine.log").read_text()
    assert first != second
    assert f"engine {first}\n" in whole
    assert f"engine {second}\n" in whole
    assert process.log_text().count("hello from it") == 1
    assert whole.count("==== test engine: start ") == 2
    assert process.starts == 2
    await gone(first)


async def test_ended_gives_the_death_with_the_log_when_the_engine_is_killed(engine: Make) -> None:
    process = engine()
    await process.start()
    os.kill(logged_pid(process, "engine"), signal.SIGKILL)
    death = await process.ended()
    assert isinstance(death, EngineDied)
    assert death.returncode == -signal.SIGKILL
    assert death.url == process.url
    assert "hello from it" in death.log_tail


async def test_the_signal_of_a_crash_is_kept_when_the_engine_runs_behind_the_guard(engine: Make) -> None:
    process = engine()
    await process.start()
    os.kill(logged_pid(process, "engine"), signal.SIGSEGV)
    death = await process.ended()
    assert death is not None
    assert "SIGSEGV" in str(death)


async def test_what_a_dead_engine_left_behind_is_killed_when_it_had_daemons(engine: Make) -> None:
    process = engine("helper")
    await process.start()
    helper = logged_pid(process, "helper")
    os.kill(logged_pid(process, "engine"), signal.SIGKILL)
    await process.ended()
    await gone(helper)


async def test_stop_is_no_death_and_ends_descendants_when_the_engine_obeys(engine: Make) -> None:
    process = engine("helper")
    await process.start()
    pids = logged_pid(process, "engine"), logged_pid(process, "helper")
    await process.stop()
    await process.stop()
    assert process.death() is None
    assert await process.ended() is None
    await gone(*pids)


async def test_stop_kills_when_the_engine_ignores_sigterm(engine: Make) -> None:
    process = engine("stubborn", "helper", stop_grace_s=0.3)
    await process.start()
    pids = logged_pid(process, "engine"), logged_pid(process, "helper")
    await process.stop()
    assert not process.running
    await gone(*pids)


async def test_kill_ends_it_at_once_when_nobody_can_wait(engine: Make) -> None:
    process = engine("stubborn")
    await process.start()
    pid = logged_pid(process, "engine")
    process.kill()
    assert not process.running
    await gone(pid)


async def test_the_engine_dies_with_its_guard_when_the_guard_is_killed(engine: Make) -> None:
    process = engine()
    await process.start()
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    await gone(logged_pid(process, "engine"))


def test_a_foreign_engine_and_its_descendants_die_when_longproof_is_killed(tmp_path: Path) -> None:
    log_path = tmp_path / "engine.log"
    owner = textwrap.dedent(f"""
        import asyncio, sys
        from pathlib import Path
        from longproof.engines.process import Launch, OwnedProcess
        launch = Launch(name="e", argv=(sys.executable, "-c", {SERVER!r}, "helper", "stubborn"), stop_grace_s=0.3,
                        log_path=Path({str(log_path)!r}))
        async def main():
            process = OwnedProcess(launch)
            await process.start()
            print(process.pid, flush=True)
            await asyncio.sleep(600)
        asyncio.run(main())
    """)
    with subprocess.Popen([sys.executable, "-c", owner], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        guard = int(parent.stdout.readline())
        words = [line.split() for line in log_path.read_text().splitlines()]
        pids = [int(line[1]) for line in words if line[0] in ("engine", "helper") and line[1].isdigit()]
        assert len(pids) == 2
        assert all(psutil.pid_exists(pid) for pid in (guard, *pids))
        parent.kill()
    asyncio.run(gone(guard, *pids))


async def test_memory_counts_the_engine_and_not_the_guard_when_the_engine_holds_50_mib(engine: Make) -> None:
    process = engine("large")
    await process.start()
    memory = process.memory()
    own_bytes = psutil.Process(logged_pid(process, "engine")).memory_info().rss
    # the server itself adds some 20 MiB; the guard's 15 MiB on top would not fit below own + 10 MiB
    assert 50 << 20 < memory.rss_bytes < own_bytes + (10 << 20)
    assert isinstance(memory.peak_rss_bytes, Measured)
    assert memory.peak_rss_bytes.value >= 0.9 * memory.rss_bytes  # the kernel counts pages in batches, one per core


async def test_memory_raises_engine_died_when_the_engine_is_gone(engine: Make) -> None:
    process = engine()
    await process.start()
    os.kill(logged_pid(process, "engine"), signal.SIGKILL)
    await process.ended()
    with pytest.raises(EngineDied):
        process.memory()


def test_a_process_is_stopped_from_another_event_loop_when_its_first_has_ended(engine: Make, tmp_path: Path) -> None:
    process = OwnedProcess(Launch(name="e", argv=(sys.executable, "-c", SERVER), log_path=tmp_path / "engine.log"))
    asyncio.run(process.start())
    assert process.running
    asyncio.run(process.restart())
    asyncio.run(process.stop())
    assert not process.running


def test_a_program_that_watches_its_lifeline_ends_when_it_holds_the_interpreter_lock() -> None:
    # the regular expression backtracks for hours inside one call that never gives the lock away
    busy = (
        "import re; from longproof.engines.embedded_child import die_with_lifeline; die_with_lifeline();"
        "print('up', flush=True); re.match('(a+)+$', 'a' * 50 + 'b')"
    )
    with subprocess.Popen([sys.executable, "-c", busy], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdin is not None
        assert child.stdout.readline() == b"up\n"
        time.sleep(0.2)
        assert child.poll() is None
        child.stdin.close()
        assert child.wait(timeout=30) == -signal.SIGIO
