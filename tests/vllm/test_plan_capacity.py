"""The planner says before the server starts what a real vLLM prints when it has: 1 GiB of cache for each rank.

The server's cache is sized before it warms up, so a server is stopped as soon as it has printed its line. Models of
random weights (`--load-format dummy`) have the cache of real ones.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from longproof.domain.measure import Measured, value_or_none
from longproof.engines.vllm import VllmEngine
from longproof.geometry.read import read_geometry
from longproof.plan.capacity import Device, EngineReport, Launch, Layout, PlanEngine
from longproof.plan.planner import PlanChoices, make_plan, whole_window

GIB = 1 << 30
DEADLINE_S = 300.0
LINE = re.compile(
    r"KV cache size: (?P<tokens>[\d,]+) tokens, Maximum concurrency for [\d,]+ tokens per request: (?P<times>[\d.]+)x"
)
GEMMA3_270M = {
    "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "num_hidden_layers": 18,
    "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256, "hidden_size": 640, "vocab_size": 262_144,
    "intermediate_size": 2048, "sliding_window": 512, "torch_dtype": "bfloat16", "max_position_embeddings": 32_768,
    "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 3, "hidden_activation": "gelu_pytorch_tanh",
    "rms_norm_eps": 1e-6, "query_pre_attn_scalar": 256, "rope_theta": 1e6, "rope_local_base_freq": 1e4,
    "tie_word_embeddings": True, "bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 0,
}  # fmt: skip


def planned(model: Path, window: int, layout: Layout) -> EngineReport:
    """What the planner expects the log to say."""
    geometry = read_geometry(model)
    launch = Launch(
        engine=PlanEngine.VLLM, version="0.32.0", device=Device.CPU, layout=layout, max_model_len_tokens=window
    )
    request = whole_window(geometry, launch, 16)
    return make_plan(geometry, launch, request, choices=PlanChoices(available_bytes=(GIB,))).capacity.report


async def test_capacity_is_as_planned_when_the_server_runs(vllm: VllmEngine, vllm_server) -> None:
    plan = planned(vllm_server.model_dir, 8192, Layout())
    facts = await vllm.introspect()
    assert isinstance(facts.kv_blocks, Measured)
    assert (facts.kv_blocks.value, value_or_none(facts.kv_capacity_tokens)) == (plan.blocks, plan.tokens)
    assert (plan.blocks, plan.tokens) == (364, 46_592)
    assert printed_in(vllm_server.process.log_text()) == shown(plan)


def test_capacity_is_as_planned_when_a_pipeline_is_uneven(
    vllm_program: Path, smollm2_dir: Path, tmp_path: Path
) -> None:
    plan = planned(smollm2_dir, 8192, Layout(pp=2, partition=(20, 10)))
    assert (plan.blocks, plan.tokens) == (546, 69_888)
    options = ["--max-model-len", "8192", "--pipeline-parallel-size", "2"]
    assert start_and_read(vllm_program, smollm2_dir, tmp_path, options, {"VLLM_PP_LAYER_PARTITION": "20,10"}) == shown(
        plan
    )


@pytest.mark.parametrize(("window", "tp", "tokens"), [(32_768, 1, 247_802), (8192, 2, 89_815)])
def test_capacity_is_as_planned_when_windows_slide(
    vllm_program: Path, tmp_path: Path, window: int, tp: int, tokens: int
) -> None:
    model = tmp_path / "gemma"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(GEMMA3_270M))
    plan = planned(model, window, Layout(tp=tp))
    assert plan.tokens == tokens
    options = ["--max-model-len", str(window), "--tensor-parallel-size", str(tp)]
    options += ["--load-format", "dummy", "--skip-tokenizer-init"]
    assert start_and_read(vllm_program, model, tmp_path, options, {}) == shown(plan)


def shown(report: EngineReport) -> tuple[str, str]:
    """Tokens and concurrency as the log writes them."""
    assert report.concurrency is not None
    return f"{report.tokens:,}", f"{report.concurrency:.2f}"


def printed_in(log: str) -> tuple[str, str] | None:
    """The two figures of the log line, once it is there."""
    found = LINE.search(log)
    return None if found is None else (found["tokens"], found["times"])


def start_and_read(
    program: Path, model: Path, place: Path, options: list[str], env: dict[str, str]
) -> tuple[str, str] | None:
    """Starts a server, waits for its line and ends it with all its workers. Fails with the log's end."""
    log = place / "vllm.log"
    cores = sorted(os.sched_getaffinity(0))
    ranks = 2 if "2" in options else 1
    settings = {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "|".join(str(cores[i % len(cores)]) for i in range(ranks)),
        **env,
    }
    argv = [str(program), "serve", str(model), "--dtype", "bfloat16", "--enforce-eager", "--port", "0", *options]
    with log.open("w") as out:
        server = subprocess.Popen(
            argv, stdout=out, stderr=subprocess.STDOUT, env={**os.environ, **settings}, start_new_session=True
        )
    try:
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline and server.poll() is None:
            found = printed_in(log.read_text(errors="replace"))
            if found is not None:
                return found
            time.sleep(0.5)
        raise AssertionError(f"no line after {DEADLINE_S} s or exit {server.poll()}:\n{log.read_text()[-3000:]}")
    finally:
        with contextlib.suppress(ProcessLookupError):  # its workers are of its group
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()
