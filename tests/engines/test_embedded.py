"""The embedded engine: a real llama.cpp with a real small model, in a process of its own."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx
import psutil
import pytest

from longproof.domain.deployment import EngineKind
from longproof.domain.measure import Measured, Provenance, Unknown
from longproof.engines.embedded import KV_TYPES, EmbeddedOptions, EmbeddedServer, start_embedded
from longproof.engines.embedded_log import CacheKind
from longproof.errors import EngineDied, ModelFileError, UsageError

Start = Callable[..., Awaitable[EmbeddedServer]]
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
# the demo model: 30 layers, 3 KV heads of 64 for K and for V = 192 + 192 elements per cell and layer
F16_CELL_BYTES = 30 * (192 + 192) * 2


async def serves(url: str) -> bool:
    """Whether the server computes: one real token."""
    async with httpx.AsyncClient(timeout=120) as client:
        answer = await client.post(f"{url}/v1/completions", json={"prompt": [1, 2, 3], "max_tokens": 1})
    return answer.status_code == 200


@pytest.mark.engine
def test_the_routes_that_proofs_need_are_open_when_it_serves(embedded_url: str) -> None:
    assert httpx.get(f"{embedded_url}/health").status_code == 200
    props = httpx.get(f"{embedded_url}/props").json()
    assert (props["total_slots"], props["default_generation_settings"]["n_ctx"]) == (1, 1024)
    assert len(httpx.get(f"{embedded_url}/slots").json()) == 1
    assert "llamacpp:prompt_tokens_total" in httpx.get(f"{embedded_url}/metrics").text
    body = {"prompt": [1, 2, 3], "max_tokens": 2, "ignore_eos": True}
    usage = httpx.post(f"{embedded_url}/v1/completions", json=body, timeout=120).json()["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (3, 2)


@pytest.mark.engine
async def test_the_log_tells_cells_and_bytes_when_slots_have_their_own_cache(embedded_engine: Start) -> None:
    server = await embedded_engine(context_tokens=1000, slots=2)
    facts = server.log_facts()
    # 1,000 is padded to 1,024 per slot; two slots make 2,048 cells = 2,048 × 23,040 B = 45.00 MiB
    assert (facts.slots, facts.slot_tokens, facts.context_tokens, facts.kv_unified) == (2, 1024, 2048, False)
    (cache,) = facts.kv_caches
    assert (cache.kind, cache.layers, cache.slots, cache.streams) == (CacheKind.FULL, 30, 2, 2)
    assert (cache.cells_per_stream, cache.cells) == (1024, 2048)
    assert (cache.k_type, cache.v_type) == ("f16", "f16")
    assert cache.size_bytes == 2048 * F16_CELL_BYTES == 45 * 1_048_576
    assert (facts.kv_capacity_tokens, facts.trained_tokens, facts.ubatch_tokens) == (2048, 8192, 512)
    assert facts.flash_attention is True
    assert facts.compute_bytes is not None
    assert "rounds it up to 1,024" in " ".join(server.warnings)


@pytest.mark.engine
async def test_slots_share_one_pool_of_the_given_type_when_asked(embedded_engine: Start) -> None:
    server = await embedded_engine(context_tokens=512, slots=4, kv_unified=True, k_type="q8_0", v_type="q8_0")
    facts = server.log_facts()
    assert (facts.slots, facts.slot_tokens, facts.kv_unified, facts.kv_capacity_tokens) == (4, 512, True, 512)
    (cache,) = facts.kv_caches
    assert (cache.k_type, cache.v_type, cache.streams, cache.slots) == ("q8_0", "q8_0", 1, 4)
    # q8_0 stores 32 elements in 34 bytes: 512 × 30 × 384 × 34/32 = 6,266,880 B, logged with ±5,243 B
    assert abs(cache.size_bytes - 6_266_880) <= 5_243
    assert "share one pool" in " ".join(server.warnings)


@pytest.mark.engine
@pytest.mark.parametrize("kv_type", KV_TYPES)
async def test_every_kv_type_that_we_name_serves_when_it_is_used(embedded_engine: Start, kv_type: str) -> None:
    server = await embedded_engine(context_tokens=256, k_type=kv_type, v_type=kv_type)
    assert server.log_facts().kv_caches[0].k_type == kv_type
    assert await serves(server.url)


@pytest.mark.engine
async def test_the_context_is_the_trained_one_when_none_is_asked(embedded_engine: Start) -> None:
    server = await embedded_engine(context_tokens=None)
    assert server.context_tokens == 8192
    assert server.log_facts().slot_tokens == 8192
    assert server.warnings == ()


@pytest.mark.engine
async def test_a_warning_is_recorded_when_the_context_is_above_the_trained_one(embedded_engine: Start) -> None:
    server = await embedded_engine(context_tokens=9000)
    facts = server.log_facts()
    # 9,000 is padded to 9,216 cells; the slot is capped to what the model was trained for
    assert (facts.kv_capacity_tokens, facts.capped_from_tokens, facts.slot_tokens) == (9216, 9216, 8192)
    assert "trained for 8,192: llama.cpp caps every slot there" in " ".join(server.warnings)


@pytest.mark.engine
async def test_the_deployment_says_where_each_fact_comes_from_when_nobody_asked_the_server(
    embedded_engine: Start,
) -> None:
    server = await embedded_engine(context_tokens=600, k_type="q8_0", threads=1, prompt_cache_mib=0, alias="small")
    known = server.deployment()
    assert known.engine is EngineKind.LLAMACPP
    assert isinstance(known.engine_version, Measured)
    assert re.fullmatch(r"xllamacpp \d{4}\.\d+\.\d+", known.engine_version.value)
    values = {name: reading.value for name, reading in known.readings() if isinstance(reading, Measured)}
    provenance = {name: reading.provenance for name, reading in known.readings() if isinstance(reading, Measured)}
    assert values["model"] == "small"
    assert values["model_file"] == "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert (values["model_sha256"], provenance["model_sha256"]) == (SHA256, Provenance.MEASURED)
    assert (values["configured_limit_tokens"], provenance["configured_limit_tokens"]) == (600, Provenance.GIVEN)
    assert (values["slot_limit_tokens"], provenance["slot_limit_tokens"]) == (768, Provenance.REPORTED)
    assert (values["kv_capacity_tokens"], provenance["kv_capacity_tokens"]) == (768, Provenance.REPORTED)
    assert (values["trained_limit_tokens"], values["slots"], values["kv_unified"]) == (8192, 1, False)
    assert (values["kv_dtype"], values["other.threads"]) == ("K q8_0, V f16", "1")
    assert (values["other.prompt_cache_mib"], values["other.flash_attention"]) == ("0", "true")
    assert isinstance(known.chat_template_sha256, Unknown)
    async with httpx.AsyncClient() as client:
        served = (await client.get(f"{server.url}/v1/models")).json()["data"]
    assert [model["id"] for model in served] == ["small"]


@pytest.mark.engine
async def test_a_crash_is_a_death_with_a_log_and_it_comes_back_on_the_same_address(embedded_engine: Start) -> None:
    server = await embedded_engine()
    url, pid = server.url, server.process.pid
    assert pid is not None
    os.kill(pid, signal.SIGSEGV)
    death = await server.process.ended()
    assert isinstance(death, EngineDied)
    assert (death.returncode, death.url) == (-signal.SIGSEGV, url)
    assert "listening on" in death.log_tail
    await server.process.start()
    assert server.url == url
    assert await serves(url)
    await server.process.restart()
    assert server.url == url
    assert server.process.starts == 3
    assert await serves(url)


@pytest.mark.engine
async def test_resident_memory_holds_at_least_the_kv_cache_when_it_is_large(embedded_engine: Start) -> None:
    small = await embedded_engine(context_tokens=256)
    large = await embedded_engine(context_tokens=8192)
    # llama.cpp clears its cells at start, so they are resident: 7,936 more cells = 174 MiB
    more_bytes = (8192 - 256) * F16_CELL_BYTES
    difference = large.process.memory().rss_bytes - small.process.memory().rss_bytes
    assert abs(difference - more_bytes) < 0.25 * more_bytes


@pytest.mark.engine
def test_the_engine_is_gone_when_longproof_is_killed(demo_model: Path, tmp_path: Path) -> None:
    owner = textwrap.dedent(f"""
        import asyncio
        from pathlib import Path
        from longproof.engines.embedded import EmbeddedOptions, start_embedded
        async def main():
            options = EmbeddedOptions(model=Path({str(demo_model)!r}), context_tokens=256)
            server = await start_embedded(options, Path({str(tmp_path / "log")!r}))
            print(server.process.pid, server.url, flush=True)
            await asyncio.sleep(600)
        asyncio.run(main())
    """)
    with subprocess.Popen([sys.executable, "-c", owner], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid, url = parent.stdout.readline().split()
        assert httpx.get(f"{url}/health").status_code == 200
        parent.kill()
    with contextlib.suppress(psutil.NoSuchProcess):  # it may be gone already, or a zombie that nobody waits for
        while psutil.Process(int(pid)).status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.02)
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/health")


@pytest.mark.engine
async def test_a_taken_port_is_named_when_it_was_asked_for(demo_model: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"port {port} on 127.0.0.1 is taken"):
            await start_embedded(EmbeddedOptions(model=demo_model, context_tokens=256, port=port), tmp_path / "log")


@pytest.mark.engine
async def test_the_memory_is_named_when_the_kv_cache_does_not_fit(demo_model: Path, tmp_path: Path) -> None:
    # 50,000,128 cells × 46,080 B (f32) = 2.3 TB
    options = EmbeddedOptions(model=demo_model, context_tokens=50_000_000, k_type="f32", v_type="f32")
    with pytest.raises(UsageError, match="the memory for 50,000,128 KV cells") as caught:
        await start_embedded(options, tmp_path / "log")
    assert "smaller context" in caught.value.advice


@pytest.mark.engine
async def test_llama_cpps_own_words_are_given_when_it_cannot_load_the_model(
    tiny_gguf: Callable[..., Path], tmp_path: Path
) -> None:
    path = tiny_gguf(architecture="nonesuch")
    with pytest.raises(ModelFileError, match="unknown model architecture: 'nonesuch'"):
        await start_embedded(EmbeddedOptions(model=path), tmp_path / "log")


async def test_a_file_is_refused_before_anything_starts_when_it_is_no_whole_gguf(
    tiny_gguf: Callable[..., Path], tmp_path: Path
) -> None:
    cut = tiny_gguf()
    cut.write_bytes(cut.read_bytes()[:-1])
    for path, words in (
        (cut, "cut short"),
        (tmp_path / "missing", "no model file"),
        (Path(__file__), "not a usable model"),
    ):
        with pytest.raises(ModelFileError, match=words):
            await start_embedded(EmbeddedOptions(model=path), tmp_path / "log")
    assert not (tmp_path / "log").exists()


async def test_a_context_must_be_named_when_the_model_file_has_none(
    tiny_gguf: Callable[..., Path], tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="does not say which context"):
        await start_embedded(EmbeddedOptions(model=tiny_gguf(context_length=None)), tmp_path / "log")


async def test_slots_and_context_are_refused_when_their_product_cannot_be_counted(
    tiny_gguf: Callable[..., Path], tmp_path: Path
) -> None:
    # 256 slots × 8,388,608 = 2,147,483,648 cells, one more than llama.cpp's 32-bit count
    options = EmbeddedOptions(model=tiny_gguf(), context_tokens=8_388_608, slots=256)
    with pytest.raises(UsageError, match="2,147,483,648 KV cells"):
        await start_embedded(options, tmp_path / "log")


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ({"k_type": "q3_k"}, "k_type 'q3_k' is not a KV cache type"),
        ({"v_type": "F16"}, "v_type 'F16' is not"),
        ({"slots": 0}, "slots is 0; it can be 1 to 256"),
        ({"slots": 257}, "slots is 257"),
        ({"context_tokens": 0}, "context_tokens is 0"),
        ({"context_tokens": -1}, "context_tokens is -1"),
        ({"threads": 0}, "threads is 0"),
        ({"port": 65_536}, "port is 65,536"),
        ({"prompt_cache_mib": -1}, "prompt_cache_mib is -1"),
    ],
)
def test_an_option_is_refused_with_its_range_when_it_makes_no_sense(option: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=re.escape(words)) as caught:
        EmbeddedOptions(model=Path("model.gguf"), **option)  # type: ignore[arg-type]
    if "type" in words:
        assert "f16, bf16" in caught.value.advice
