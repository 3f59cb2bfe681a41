"""Launch commands: what is written for each engine, and that the flags are the engines' own.

The real vLLM parses every kind of command in test_emit_vllm.py; llama.cpp's own binary is searched for its flags here;
SGLang's are checked against what its source declares.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import pytest

from longproof.errors import LayoutError, UsageError
from longproof.geometry.kinds import GroupedAttention, Indexer, LatentAttention, LayerKind
from longproof.geometry.model import Layer, Mlp, ModelGeometry
from longproof.plan.capacity import (
    Device,
    Launch,
    Layout,
    LlamacppOptions,
    PlanEngine,
    SglangOptions,
    Speculation,
    VllmOptions,
)
from longproof.plan.emit import EmitTarget, emit, needs_router, server_commands
from longproof.plan.emit_flags import LLAMACPP_FLAGS, SGLANG_FLAGS, VLLM_FLAGS, FlagKind
from longproof.plan.emit_order import LaunchOrder, Role
from longproof.plan.layouts import Arrangement

VLLM, SGLANG, LLAMACPP = PlanEngine.VLLM, PlanEngine.SGLANG, PlanEngine.LLAMACPP

# SGLang 0.5.23, srt/arg_groups/fields/*.py: a field's name with hyphens is its flag. Those that take no value:
SGLANG_SWITCHES = {
    "--enable-prefill-cp", "--disable-radix-cache", "--enable-hierarchical-cache", "--disable-overlap-schedule",
}  # fmt: skip
SGLANG_CHOICES = {
    "--cp-strategy": {"zigzag", "interleave"},
    "--disaggregation-mode": {"null", "prefill", "decode"},
    "--speculative-algorithm": {"EAGLE", "EAGLE3", "NEXTN", "STANDALONE", "NGRAM", "DFLASH", "DSPARK", "UNO"},
}


def dense(window: int | None = None) -> ModelGeometry:
    attention = GroupedAttention(
        kind=LayerKind.SLIDING if window else LayerKind.FULL,
        query_heads=64,
        kv_heads=8,
        k_dim=128,
        v_dim=128,
        window_tokens=window,
    )
    layers = tuple(Layer(index=i, attention=attention, mlp=Mlp(dense_size=64)) for i in range(80))
    return ModelGeometry(name="dense", architecture="llama", source="test", layers=layers)


def latent(*, sparse: bool = False) -> ModelGeometry:
    attention = LatentAttention(
        query_heads=128,
        kv_lora_rank=512,
        rope_dim=64,
        nope_dim=128,
        v_dim=128,
        indexer=Indexer(head_dim=128, heads=64, top_k=2048) if sparse else None,
    )
    mlp = Mlp(experts=256, experts_per_token=8, expert_size=64)
    layers = tuple(Layer(index=i, attention=attention, mlp=mlp) for i in range(60))
    return ModelGeometry(name="latent", architecture="deepseek_v3", source="test", layers=layers)


def order(engine: PlanEngine, arrangement: Arrangement, **changes: object) -> LaunchOrder:
    launch = changes.pop("launch", Launch(engine=engine, max_model_len_tokens=131_072))
    geometry = changes.pop("geometry", dense())
    return LaunchOrder(model="org/model", launch=launch, geometry=geometry, arrangement=arrangement, **changes)  # type: ignore[arg-type]


def options_of(argv: tuple[str, ...]) -> dict[str, str | None]:
    """Flags with their values; None for switches."""
    found: dict[str, str | None] = {}
    for index, word in enumerate(argv):
        if word.startswith("--"):
            after = argv[index + 1] if index + 1 < len(argv) else "--"
            found[word] = None if after.startswith("--") else after
    return found


def only(asked: LaunchOrder) -> tuple[dict[str, str | None], dict[str, str]]:
    (command,) = server_commands(asked)
    return options_of(command.argv), dict(command.env)


def test_vllm_command_carries_layout_and_limits_when_planned() -> None:
    launch = Launch(
        engine=VLLM,
        max_model_len_tokens=131_072,
        max_num_batched_tokens=8192,
        max_num_seqs=64,
        memory_fraction=0.9,
        kv_dtype="fp8",
        block_size_tokens=32,
        prefix_caching=False,
        async_scheduling=True,
        vllm=VllmOptions(hybrid_manager=False, blocks_override=1000, ssm_dtype="float16"),
        speculation=Speculation(method="ngram", tokens=4),
    )
    layout = Layout(tp=4, pp=2, partition=(41, 39))
    flags, env = only(order(VLLM, Arrangement(layout=layout), launch=launch, served_name="m"))
    assert flags == {
        "--served-model-name": "m",
        "--host": "0.0.0.0",
        "--port": "8000",
        "--tensor-parallel-size": "4",
        "--pipeline-parallel-size": "2",
        "--max-model-len": "131072",
        "--max-num-batched-tokens": "8192",
        "--max-num-seqs": "64",
        "--gpu-memory-utilization": "0.9",
        "--kv-cache-dtype": "fp8",
        "--block-size": "32",
        "--num-gpu-blocks-override": "1000",
        "--mamba-ssm-cache-dtype": "float16",
        "--no-enable-prefix-caching": None,
        "--async-scheduling": None,
        "--disable-hybrid-kv-cache-manager": None,
        "--speculative-config": '{"method":"ngram","num_speculative_tokens":4}',
    }
    assert env == {"VLLM_PP_LAYER_PARTITION": "41,39"}


def test_vllm_command_spreads_experts_and_contexts_when_the_layout_does() -> None:
    layout = Layout(tp=2, dp=2, ep=8, pcp=2)
    flags, env = only(order(VLLM, Arrangement(layout=layout), geometry=latent(sparse=True)))
    assert flags["--data-parallel-size"] == "2"
    assert flags["--prefill-context-parallel-size"] == "2"
    assert flags["--enable-expert-parallel"] is None
    assert "--expert-parallel-size" not in flags  # vLLM spans all ranks, or none
    # "MRV2 sparse MLA PCP does not support CUDA graphs yet."
    assert flags["--compilation-config"] == '{"cudagraph_mode":"NONE"}'
    assert env == {"VLLM_USE_V2_MODEL_RUNNER": "1"}


def test_vllm_ranks_share_an_address_when_the_server_spans_hosts() -> None:
    commands = server_commands(order(VLLM, Arrangement(layout=Layout(tp=8, pp=3))))
    assert len(commands) == 3
    flags = [options_of(command.argv) for command in commands]
    assert [f["--node-rank"] for f in flags] == ["0", "1", "2"]
    assert all(f["--nnodes"] == "3" and f["--master-addr"] == "$LEADER_ADDRESS" for f in flags)
    assert ["--headless" in f for f in flags] == [False, True, True]
    assert ["--port" in f for f in flags] == [True, False, False]


def test_replicas_share_a_host_with_devices_and_ports_of_their_own_when_small() -> None:
    commands = server_commands(order(VLLM, Arrangement(layout=Layout(tp=2), replicas=6)))
    # 8 devices a host: four servers, on two hosts
    assert [options_of(c.argv)["--port"] for c in commands] == ["8000", "8001", "8002", "8003"]
    assert [dict(c.env)["CUDA_VISIBLE_DEVICES"] for c in commands] == ["0,1", "2,3", "4,5", "6,7"]
    assert commands[1].comment == "serve: server 2 of a host, on 2 hosts; 6 servers in all"
    assert commands[2].comment == "serve: server 3 of a host, on 1 host; 6 servers in all"
    rocm = order(VLLM, Arrangement(layout=Layout(), replicas=2), launch=Launch(engine=VLLM, device=Device.ROCM))
    assert dict(server_commands(rocm)[1].env) == {"HIP_VISIBLE_DEVICES": "1"}


def test_pools_get_their_connector_when_split() -> None:
    arrangement = Arrangement(layout=Layout(tp=8), decode=Layout(tp=8, dcp=8), decode_replicas=2)
    prefill, decode = server_commands(order(VLLM, arrangement, geometry=latent()))
    assert (prefill.role, decode.role) == (Role.PREFILL, Role.DECODE)
    for command in (prefill, decode):
        config = options_of(command.argv)["--kv-transfer-config"]
        assert json.loads(config or "") == {"kv_connector": "NixlConnector", "kv_role": "kv_both"}
        assert dict(command.env)["VLLM_NIXL_SIDE_CHANNEL_HOST"] == "$HOST_ADDRESS"


def test_pipelined_prefill_pushes_when_the_model_has_windows() -> None:
    geometry = replace(dense(), layers=(*dense(512).layers[:40], *dense().layers[40:]))
    arrangement = Arrangement(layout=Layout(tp=4, pp=2), decode=Layout(tp=8), decode_replicas=1)
    prefill, decode = server_commands(order(VLLM, arrangement, geometry=geometry))
    roles = [json.loads(options_of(c.argv)["--kv-transfer-config"] or "") for c in (prefill, decode)]
    assert [r["kv_connector"] for r in roles] == ["NixlPushConnector"] * 2
    assert [r["kv_role"] for r in roles] == ["kv_producer", "kv_consumer"]


def test_sglang_command_carries_layout_and_limits_when_planned() -> None:
    launch = Launch(
        engine=SGLANG,
        max_model_len_tokens=131_072,
        max_num_batched_tokens=8192,
        max_num_seqs=64,
        memory_fraction=0.85,
        kv_dtype="fp8_e4m3",
        prefix_caching=False,
        sglang=SglangOptions(max_total_tokens=500_000, swa_full_tokens_ratio=0.5, host_cache_ratio=2.0),
        speculation=Speculation(method="mtp", tokens=4),
    )
    layout = Layout(tp=8, dp=4, dp_attention=True, ep=8, dcp=2)
    flags, env = only(order(SGLANG, Arrangement(layout=layout), launch=launch, geometry=latent()))
    assert flags == {
        "--model-path": "org/model",
        "--host": "0.0.0.0",
        "--port": "8000",
        "--tp-size": "8",
        "--attn-dp-size": "4",
        "--ep-size": "8",
        "--dcp-size": "2",
        "--context-length": "131072",
        "--chunked-prefill-size": "8192",
        "--max-running-requests": "64",
        "--mem-fraction-static": "0.85",
        "--kv-cache-dtype": "fp8_e4m3",
        "--max-total-tokens": "500000",
        "--swa-full-tokens-ratio": "0.5",
        "--disable-radix-cache": None,
        "--enable-hierarchical-cache": None,
        "--hicache-ratio": "2",
        "--speculative-algorithm": "NEXTN",
        "--speculative-num-steps": "3",
        "--speculative-eagle-topk": "1",
        "--speculative-num-draft-tokens": "4",
    }
    assert env == {}


@pytest.mark.parametrize(("sparse", "strategy"), [(False, "zigzag"), (True, "interleave")])
def test_sglang_prefill_context_parallel_names_its_strategy_when_on(sparse: bool, strategy: str) -> None:
    flags, _ = only(order(SGLANG, Arrangement(layout=Layout(tp=8, pcp=4)), geometry=latent(sparse=sparse)))
    assert flags["--attn-cp-size"] == "4"
    assert flags["--enable-prefill-cp"] is None
    assert flags["--cp-strategy"] == strategy


def test_sglang_pools_and_stages_are_written_when_split() -> None:
    arrangement = Arrangement(layout=Layout(pp=8, partition=(10,) * 8), decode=Layout(tp=4), decode_replicas=2)
    prefill, *decode = server_commands(order(SGLANG, arrangement))
    assert options_of(prefill.argv)["--disaggregation-mode"] == "prefill"
    assert options_of(prefill.argv)["--disaggregation-bootstrap-port"] == "8998"
    assert dict(prefill.env) == {"SGLANG_PP_LAYER_PARTITION": "10,10,10,10,10,10,10,10"}
    assert [options_of(c.argv)["--disaggregation-mode"] for c in decode] == ["decode", "decode"]


def test_llamacpp_command_carries_cells_and_devices_when_planned() -> None:
    launch = Launch(
        engine=LLAMACPP,
        max_model_len_tokens=131_072,
        max_num_seqs=4,
        kv_dtype="q8_0",
        llamacpp=LlamacppOptions(unified=True, swa_full=True, micro_batch_tokens=1024, value_dtype="f16"),
    )
    layout = Layout(pp=2, partition=(41, 39))
    asked = replace(order(LLAMACPP, Arrangement(layout=layout), launch=launch), model="/models/m.gguf")
    flags, _ = only(asked)
    assert flags == {
        "--model": "/models/m.gguf",
        "--host": "0.0.0.0",
        "--port": "8000",
        "--ctx-size": "131072",
        "--parallel": "4",
        "--kv-unified": None,
        "--cache-type-k": "q8_0",
        "--cache-type-v": "f16",
        "--ubatch-size": "1024",
        "--swa-full": None,
        "--n-gpu-layers": "999",
        "--split-mode": "layer",
        "--tensor-split": "41,39",
        "--metrics": None,
    }
    quantized, _ = only(replace(asked, model="org/repo:Q4_K_M", launch=replace(launch, llamacpp=LlamacppOptions())))
    assert quantized["--flash-attn"] == "on"  # a quantised V cache needs it
    assert quantized["--hf-repo"] == "org/repo:Q4_K_M"


def test_a_directory_is_refused_when_llamacpp_needs_a_file() -> None:
    asked = replace(order(LLAMACPP, Arrangement(layout=Layout())), model="/models/llama")
    with pytest.raises(UsageError, match=r"serves \.gguf files"):
        only(asked)


@pytest.mark.parametrize(
    ("asked", "target", "words"),
    [
        (order(VLLM, Arrangement(layout=Layout())), EmitTarget.SGLANG, "plan is for vllm"),
        (order(LLAMACPP, Arrangement(layout=Layout(pp=10))), EmitTarget.LLAMACPP, "llama.cpp runs on one host"),
        (order(SGLANG, Arrangement(layout=Layout(tp=8, dp=2))), EmitTarget.SGLANG, "multi-node data-parallel"),
        (order(VLLM, Arrangement(layout=Layout(pp=9))), EmitTarget.VLLM, "does not divide over 2 hosts of 8"),
        (
            order(PlanEngine.TENSORRT_LLM, Arrangement(layout=Layout())),
            EmitTarget.K8S,
            "launches of TensorRT-LLM are not written",
        ),
        (order(LLAMACPP, Arrangement(layout=Layout())), EmitTarget.K8S, "no container image of llama.cpp"),
    ],
)
def test_what_cannot_be_launched_is_refused_when_emitted(asked: LaunchOrder, target: EmitTarget, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        emit(asked, target)


def test_impossible_layout_is_refused_when_emitted() -> None:
    with pytest.raises(LayoutError, match="DCP not support sliding window"):
        emit(order(VLLM, Arrangement(layout=Layout(tp=16, dcp=2)), geometry=dense(512)), EmitTarget.VLLM)
    pools = Arrangement(layout=Layout(tp=8), decode=Layout(tp=8, dcp=4), decode_replicas=1)
    with pytest.raises(LayoutError, match="must be 1 or equal to the NIXL"):
        emit(order(VLLM, pools, geometry=latent()), EmitTarget.VLLM)


def test_text_is_a_shell_script_when_emitted() -> None:
    text = emit(order(VLLM, Arrangement(layout=Layout(tp=8, pp=2)), served_name="it's mine"), EmitTarget.VLLM)
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert text.startswith("# vllm 0.32.0\n")
    assert len(lines) == 2
    words = shlex.split(lines[0])
    assert words[:3] == ["vllm", "serve", "org/model"]
    assert words[words.index("--served-model-name") + 1] == "it's mine"
    assert '"$LEADER_ADDRESS"' in lines[0]  # stays a variable


def test_a_router_is_named_when_pools_or_replicas_need_one() -> None:
    pools = Arrangement(layout=Layout(tp=8), decode=Layout(tp=8), decode_replicas=1)
    assert "router" in emit(order(VLLM, pools), EmitTarget.VLLM)
    assert needs_router(order(VLLM, pools))
    assert needs_router(order(VLLM, Arrangement(layout=Layout(), replicas=2)))
    assert not needs_router(order(VLLM, Arrangement(layout=Layout())))


def test_written_flags_are_llamacpp_s_own_when_its_binary_is_searched() -> None:
    package = metadata.distribution("xllamacpp")
    (library,) = (
        Path(str(f.locate())) for f in package.files or () if f.name.startswith("xllamacpp") and f.suffix == ".so"
    )
    strings = library.read_bytes()
    for flag in LLAMACPP_FLAGS.flags:
        assert b"\0" + flag.encode() + b"\0" in strings, flag


def test_written_flags_keep_sglang_s_documented_kinds_when_listed() -> None:
    switches = {flag for flag, kind in SGLANG_FLAGS.flags.items() if kind is FlagKind.SWITCH}
    assert switches == SGLANG_SWITCHES
    assert set(SGLANG_CHOICES) <= set(SGLANG_FLAGS.flags)


@pytest.mark.parametrize(
    ("flag", "value"),
    [("--tensor-parallel-size", "eight"), ("--headless", 1), ("--port", True), ("--max-num-seqs", 1.5)],
)
def test_a_value_of_another_kind_is_our_bug_when_written(flag: str, value: str | float | bool) -> None:
    with pytest.raises(ValueError, match=flag):
        VLLM_FLAGS.written([(flag, value)])
    with pytest.raises(KeyError):
        VLLM_FLAGS.written([("--tensor-paralel-size", 8)])


def test_a_launch_without_devices_or_port_is_refused_when_ordered() -> None:
    with pytest.raises(UsageError, match="make no launch"):
        order(VLLM, Arrangement(layout=Layout()), devices_per_host=0)
