"""What makes the suite the same on every machine, and fixtures that tests of several packages share: the default model
and the embedded engine."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from longproof.engines.embedded import EmbeddedOptions, EmbeddedServer, start_embedded
from longproof.engines.model_files import resolve_model

# The same examples in every run, and no word about how long one takes: a slow machine is no fault of the code. To look
# for new ones: pytest --hypothesis-profile=explore
settings.register_profile(
    "steady", derandomize=True, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("explore", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("steady")

# Servers of these tests listen on this machine: a proxy of the environment must not come between.
os.environ["no_proxy"] = ",".join(filter(None, [os.environ.get("no_proxy"), "127.0.0.1", "localhost"]))

StartEmbedded = Callable[..., Awaitable[EmbeddedServer]]


@pytest.fixture(scope="session")
def demo_model() -> Path:
    """The default model, fetched into the user's cache the first time."""
    return resolve_model()


@pytest.fixture
async def embedded_engine(demo_model: Path, tmp_path: Path) -> AsyncIterator[StartEmbedded]:
    """``await embedded_engine(context_tokens=1024, slots=1)`` starts a server; all are stopped at the end."""
    running: list[EmbeddedServer] = []

    async def start(**options: object) -> EmbeddedServer:
        settings = EmbeddedOptions(**{"model": demo_model, "context_tokens": 512, **options})  # type: ignore[arg-type]
        running.append(await start_embedded(settings, tmp_path / f"engine-{len(running)}.log"))
        return running[-1]

    yield start
    for server in running:
        await server.process.stop()


@pytest.fixture(scope="session")
def embedded_url(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server for tests that only read: the default model, one slot of 1,024 tokens."""
    options = EmbeddedOptions(model=demo_model, context_tokens=1024)
    server = asyncio.run(start_embedded(options, tmp_path_factory.mktemp("embedded") / "engine.log"))
    yield server.url
    server.process.kill()
