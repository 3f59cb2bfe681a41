"""A real pair: two vLLM servers with NixlConnector on CPU, and the KV of every prompt going from one to the other."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "asking"))

from probing import findings, probing

from longproof.claim.findings.disaggregated import read
from longproof.claim.statements import Statement
from longproof.engines.process import Launch, OwnedProcess
from longproof.probe import disaggregated
from longproof.probe.disaggregated import DisaggregatedPlan
from longproof.prove.target import PdTarget
from longproof.testing.builders import build_protocol, build_view
from longproof.testing.ports import free_port

pytestmark = pytest.mark.long
START_DEADLINE_S = 600.0
LENGTH = 1_500
PLAN = DisaggregatedPlan(lengths=(LENGTH,), repeats=2, concurrency=2, together=1)
CONNECTOR = '{"kv_connector":"NixlConnector","kv_role":"kv_both","kv_buffer_device":"cpu"}'


@pytest.fixture(scope="module")
def pair(
    vllm_program: Path, smollm2_dir: Path, nixl_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[OwnedProcess, OwnedProcess]]:
    """Prefill and decode side, each on its own half of the cores."""
    cores = sorted(os.sched_getaffinity(0))[:4]
    halves = (cores[: len(cores) // 2] or cores, cores[len(cores) // 2 :])
    logs = tmp_path_factory.mktemp("pair")
    sides = tuple(
        OwnedProcess(_launch(vllm_program, smollm2_dir, nixl_dir, logs / f"{name}.log", half))
        for name, half in zip(("prefill", "decode"), halves, strict=True)
    )

    async def start() -> None:
        async with asyncio.TaskGroup() as starting:
            for side in sides:
                starting.create_task(side.start(deadline_s=START_DEADLINE_S))

    try:
        asyncio.run(start())
        yield sides[0], sides[1]
    finally:
        for side in sides:
            asyncio.run(side.stop())


def _launch(program: Path, model_dir: Path, nixl: Path, log: Path, cores: list[int]) -> Launch:
    port = free_port()
    return Launch(
        name=log.stem,
        argv=(
            *(str(program), "serve", str(model_dir), "--served-model-name", "smollm2"),
            *("--host", "127.0.0.1", "--port", str(port), "--max-model-len", "4096"),
            *("--dtype", "bfloat16", "--enforce-eager", "--kv-transfer-config", CONNECTOR),
        ),
        log_path=log,
        url=f"http://127.0.0.1:{port}",
        env={
            "PYTHONPATH": str(nixl),
            "VLLM_NIXL_SIDE_CHANNEL_PORT": str(free_port()),
            "HF_HUB_OFFLINE": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)),
            "VLLM_NO_USAGE_STATS": "1",
        },
    )


async def test_kv_goes_from_prefill_to_decode_when_requests_go_through_both(
    pair: tuple[OwnedProcess, OwnedProcess], tmp_path: Path
) -> None:
    engine = await PdTarget(prefill_url=pair[0].url, decode_url=pair[1].url).open(tmp_path / "engine.log")
    protocol = build_protocol(output_tokens=8, request_timeout_s=300.0)
    async with probing(engine, tmp_path, protocol=protocol) as ctx:
        await disaggregated.run(ctx, PLAN)
        view = build_view(*((record.key, record.body) for record in ctx.journal.records), header=ctx.journal.header)
    said = list(read(view))
    assert findings(said) == []
    found = {item.metric: item for item in said if isinstance(item, Statement)}
    assert found["pd_success"].samples == (1.0,) * 4
    assert min(found["pd_transferred"].samples) > 0.9
    assert "transferred" in found["pd_transferred"].conditions
    assert found["pd_decode_ttft"].n == 2


async def test_the_gateway_serves_the_pair_as_one_replica(
    pair: tuple[OwnedProcess, OwnedProcess], smollm2_dir: Path, tmp_path: Path
) -> None:
    prefill, decode = pair[0].url, pair[1].url
    fleet = tmp_path / "fleet.toml"
    fleet.write_text(
        f"""
[[replica]]
name = "pair"
kind = "pd-pair"
prefill_url = "{prefill}"
decode_url = "{decode}"
tokenizer = "{smollm2_dir}"
""",
        encoding="utf-8",
    )
    port = free_port()
    launch = Launch(
        name="gateway",
        argv=(
            *(sys.executable, "-m", "longproof", "serve", str(fleet), "--port", str(port)),
            *("--state", str(tmp_path / "state"), "--engines-within", "300s"),
        ),
        log_path=tmp_path / "gateway.log",
        url=f"http://127.0.0.1:{port}",
        health_path="/ready",
    )
    gateway = OwnedProcess(launch)
    await gateway.start(deadline_s=START_DEADLINE_S)
    try:
        async with httpx.AsyncClient(timeout=300.0) as client:
            body = {
                "model": "smollm2",
                "messages": [{"role": "user", "content": "The old harbour lay quiet. " * 60}],
                "max_tokens": 8,
                "temperature": 0.0,
            }
            route = f"{gateway.url}/v1/chat/completions"
            before = await _figure(client, decode, "vllm:external_prefix_cache_hits_total")
            plain = (await client.post(route, json=body)).raise_for_status().json()
            # the last token is computed anew; all else was read from the prefill side
            handed = await _figure(client, decode, "vllm:external_prefix_cache_hits_total") - before
            assert handed >= plain["usage"]["prompt_tokens"] - 128
            streamed = (await client.post(route, json={**body, "stream": True})).raise_for_status()
            assert streamed.text.rstrip().endswith("data: [DONE]")
            wrong = await client.post(route, json={**body, "temperature": -5.0})
            assert wrong.status_code == 400
            assert wrong.json()["error"]["message"].startswith("prefill side: ")
            async with client.stream("POST", route, json={**body, "stream": True, "max_tokens": 2_000}) as left:
                await anext(left.aiter_lines())
            async with asyncio.timeout(120):
                while await _figure(client, decode, "vllm:num_requests_running"):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
                while await _figure(client, gateway.url, "longproof_kv_held_blocks"):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
    finally:
        await gateway.stop()


async def _figure(client: httpx.AsyncClient, url: str, name: str) -> float:
    """A metric, summed over its labels."""
    lines = (await client.get(f"{url}/metrics")).text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.partition("{")[0].partition(" ")[0] == name)
