"""What the adapter says of a real vLLM against what the server printed when it started."""

from __future__ import annotations

import re

from longproof.domain.deployment import EngineKind
from longproof.domain.measure import Measured, Provenance, value_or_none
from longproof.engines.registry import connect
from longproof.engines.vllm import VllmEngine


async def test_deployment_agrees_with_the_startup_log_when_the_server_is_real(vllm: VllmEngine, vllm_server):
    log = vllm_server.process.log_text()
    facts = await vllm.introspect()
    printed = re.search(
        r"KV cache size: ([\d,]+) tokens, Maximum concurrency for 8,192 tokens per request: ([\d.]+)x", log
    )
    assert printed is not None
    assert printed.groups() == ("46,592", "5.69")
    # 1 GiB / (30 layers × 98,304 B a block) = 364 blocks of 128 tokens; 364 / 64 blocks a window = 5.6875
    assert isinstance(facts.kv_capacity_tokens, Measured)
    assert (facts.kv_capacity_tokens.value, facts.kv_capacity_tokens.provenance) == (46_592, Provenance.DERIVED)
    assert (value_or_none(facts.kv_blocks), value_or_none(facts.block_size_tokens)) == (364, 128)
    assert value_or_none(facts.other["log_kv_tokens"]) == "46592"
    assert value_or_none(facts.other["log_max_concurrency"]) == "5.69"
    assert value_or_none(facts.other["kv_cache_max_concurrency"]) == "5.6875"
    assert f"version {value_or_none(facts.engine_version)}" in log
    # the log's account and the server's do not contradict each other anywhere
    assert not [name for name in facts.other if name.endswith(")")]


async def test_deployment_names_limits_and_settings_when_the_server_is_in_developer_mode(vllm: VllmEngine, vllm_server):
    facts = await vllm.introspect()
    assert facts.engine is EngineKind.VLLM
    assert value_or_none(facts.engine_version) == "0.32.0"
    assert (value_or_none(facts.engine_build) or "").startswith("vllm-0.32.0-")
    assert value_or_none(facts.model) == "smollm2"
    assert value_or_none(facts.model_file) == str(vllm_server.model_dir)
    assert value_or_none(facts.configured_limit_tokens) == 8_192
    assert value_or_none(facts.prefix_caching) is True
    assert value_or_none(facts.weight_dtype) == "bfloat16"
    assert value_or_none(facts.kv_dtype) == "bfloat16"
    assert value_or_none(facts.layout) == "tp1 pp1 dp1"
    assert value_or_none(facts.max_batched_tokens) == 2_048  # the default of one CPU rank
    assert value_or_none(facts.slots) == 128
    assert isinstance(facts.chat_template_sha256, Measured)


async def test_two_introspections_give_the_same_facts_when_nothing_changed(vllm: VllmEngine):
    assert (await vllm.introspect()).known() == (await vllm.introspect()).known()


async def test_connect_finds_vllm_when_only_the_address_is_given(vllm_server):
    engine = await connect(f"{vllm_server.url}/v1")
    try:
        assert isinstance(engine, VllmEngine)
        assert engine.model == "smollm2"
        assert engine.capabilities.counts
        assert await engine.alive()
    finally:
        await engine.aclose()
