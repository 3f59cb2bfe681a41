"""Memory left for the cache where nobody measured it: against what real servers logged, and each engine's own rule."""

from __future__ import annotations

import pytest

from longproof.domain.measure import Measured, Provenance, Unknown, given
from longproof.errors import LayoutError, UsageError
from longproof.geometry.hf import read_hf
from longproof.geometry.model import ModelGeometry
from longproof.plan.capacity import Device, Launch, Layout, PlanEngine, SglangOptions
from longproof.plan.memory import MemoryChoices, estimate_memory, estimated_budgets, given_budgets

GIB = 1 << 30
H100_GIB = 79.19
LLAMA_8B: dict[str, object] = {
    "model_type": "llama", "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    "hidden_size": 4096, "vocab_size": 128_256, "intermediate_size": 14_336, "torch_dtype": "bfloat16",
    "max_position_embeddings": 131_072,
}  # fmt: skip
QWEN_7B: dict[str, object] = {
    "model_type": "qwen2", "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4,
    "hidden_size": 3584, "vocab_size": 152_064, "intermediate_size": 18_944, "torch_dtype": "bfloat16",
    "max_position_embeddings": 32_768,
}  # fmt: skip
CODELLAMA_7B: dict[str, object] = {
    "model_type": "llama", "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32,
    "hidden_size": 4096, "vocab_size": 32_016, "intermediate_size": 11_008, "torch_dtype": "bfloat16",
    "max_position_embeddings": 16_384,
}  # fmt: skip


def vllm(*, tp: int = 1, pp: int = 1, version: str = "0.19.0", fraction: float | None = 0.95) -> Launch:
    return Launch(
        engine=PlanEngine.VLLM,
        version=version,
        device_name="h100",
        device_memory_bytes=int(H100_GIB * GIB),
        layout=Layout(tp=tp, pp=pp),
        memory_fraction=fraction,
        max_num_batched_tokens=8192,
    )


H100 = MemoryChoices(total_bytes=given(int(H100_GIB * GIB), "nvidia-smi"))


@pytest.mark.parametrize(
    ("config", "tp", "pp", "logged_gib"),
    [
        # "Available KV cache memory" of vLLM 0.19 on H100 80 GB at 0.95 (llm-d-planner, pull request 205)
        (LLAMA_8B, 1, 1, 58.11),
        (LLAMA_8B, 2, 1, 63.76),
        (LLAMA_8B, 4, 1, 67.44),
        (LLAMA_8B, 1, 4, 69.80),
        (QWEN_7B, 1, 1, 58.53),
        (QWEN_7B, 2, 1, 63.84),
        (QWEN_7B, 4, 1, 67.34),
        (CODELLAMA_7B, 1, 1, 61.66),
    ],
)
def test_estimate_brackets_what_vllm_logged_when_a_published_run_is_planned(
    config: dict[str, object], tp: int, pp: int, logged_gib: float
) -> None:
    first = estimate_memory(read_hf(config), vllm(tp=tp, pp=pp), H100)[0]
    assert isinstance(first.available, Measured)
    value = first.available.value
    assert value.low_bytes <= logged_gib * GIB <= value.high_bytes
    assert abs(value.best_bytes / GIB - logged_gib) < 0.15
    assert first.available.provenance is Provenance.DERIVED


def test_every_rank_of_every_stage_is_answered_when_both_are_many() -> None:
    ranks = estimate_memory(read_hf(LLAMA_8B), vllm(tp=2, pp=4), H100)
    assert [(one.stage, one.rank) for one in ranks] == [(s, r) for s in range(4) for r in range(2)]
    assert [(one.first_layer, one.last_layer) for one in ranks[::2]] == [(0, 8), (8, 16), (16, 24), (24, 32)]
    # embedding on the first stage, head and sampling on the last: the middle has most left
    left = [one.available.value.best_bytes for one in ranks[::2] if isinstance(one.available, Measured)]
    assert left[3] < left[0] < left[1] == left[2]


def test_graphs_are_counted_from_release_21_on_when_not_eager() -> None:
    names = [term.name for term in estimate_memory(read_hf(LLAMA_8B), vllm(version="0.20.0"), H100)[0].terms]
    assert "graphs" not in names
    new = estimate_memory(read_hf(LLAMA_8B), vllm(version="0.21.0"), H100)[0].term("graphs")
    assert isinstance(new, Measured)
    # 0.35 GiB + 32 layers x 16 MiB = 0.85 GiB; the runs of this model logged estimates of 0.84
    assert new.value.best_bytes == pytest.approx(0.85 * GIB, rel=0.001)
    eager = MemoryChoices(eager=True, total_bytes=H100.total_bytes)
    none = estimate_memory(read_hf(LLAMA_8B), vllm(version="0.21.0"), eager)[0].term("graphs")
    assert isinstance(none, Measured)
    assert none.value.high_bytes == 0


@pytest.mark.parametrize(("version", "fraction"), [("0.32.0", 0.92), ("0.19.0", 0.90)])
def test_the_release_decides_the_fraction_when_none_is_given(version: str, fraction: float) -> None:
    one = estimate_memory(read_hf(LLAMA_8B), vllm(version=version, fraction=None), H100)[0]
    assert isinstance(one.fraction, Measured)
    assert one.fraction.value == fraction
    assert one.fraction.provenance is Provenance.ASSUMED


def test_sglang_takes_its_fraction_of_what_is_free_before_loading() -> None:
    launch = Launch(engine=PlanEngine.SGLANG, device_memory_bytes=int(H100_GIB * GIB))
    one = estimate_memory(read_hf(LLAMA_8B), launch, H100)[0]
    assert isinstance(one.fraction, Measured)
    # 81,090 MiB; reserved 512 + 8,192 x 1.5 + 1/8 x 1,024 + 256 x 2 = 13,440 MiB
    assert one.fraction.value == round((81_090.56 - 13_440) / 81_090.56, 3)
    assert {term.name for term in one.terms} == {"weights", "context"}
    assert isinstance(one.available, Measured)
    weights = 8_030_261_248 * 2 / GIB
    assert one.available.value.best_bytes / GIB == pytest.approx((H100_GIB - 0.5) * 0.834 - weights, abs=0.05)


def test_a_given_amount_is_taken_as_it_is_when_one_or_one_per_stage_is_named() -> None:
    launch = vllm(tp=2, pp=2)
    assert [b.available_bytes for b in given_budgets(launch, (5,), "log")] == [5, 5, 5, 5]
    assert [b.available_bytes for b in given_budgets(launch, (5, 7), "log")] == [5, 5, 7, 7]
    with pytest.raises(UsageError, match="3 amounts of KV memory are given for 2 pipeline stages"):
        given_budgets(launch, (5, 6, 7), "log")


def test_nothing_is_made_up_when_a_term_is_not_known() -> None:
    config = {key: value for key, value in LLAMA_8B.items() if key not in ("vocab_size", "model_type")}
    one = estimate_memory(read_hf(config), vllm(), H100)[0]
    assert isinstance(one.available, Unknown)
    assert estimated_budgets([one]) == ()


def test_a_cpu_takes_what_it_is_told_when_vllm_runs_there() -> None:
    launch = Launch(engine=PlanEngine.VLLM, device=Device.CPU)
    one = estimate_memory(read_hf(LLAMA_8B), launch, H100)[0]
    assert isinstance(one.available, Unknown)
    assert "VLLM_CPU_KVCACHE_SPACE" in one.available.reason


def test_an_impossible_partition_is_refused_when_it_does_not_add_up() -> None:
    geometry: ModelGeometry = read_hf(LLAMA_8B)
    launch = Launch(engine=PlanEngine.VLLM, layout=Layout(pp=2, partition=(20, 10)))
    with pytest.raises(LayoutError, match="gives 30 layers"):
        estimate_memory(geometry, launch, H100)


def test_a_fraction_is_refused_when_it_is_none() -> None:
    with pytest.raises(UsageError, match=r"1\.5 is not within 0 and 1"):
        estimate_memory(read_hf(LLAMA_8B), vllm(fraction=1.5), H100)


def test_a_wider_pass_leaves_less_when_all_else_is_equal() -> None:
    geometry = read_hf(LLAMA_8B)
    left: list[int] = []
    for batched in (2048, 8192, 65_536):
        launch = Launch(
            engine=PlanEngine.VLLM, version="0.32.0", memory_fraction=0.9, max_num_batched_tokens=batched,
            max_num_seqs=256, sglang=SglangOptions(),
        )  # fmt: skip
        one = estimate_memory(geometry, launch, H100)[0]
        assert isinstance(one.available, Measured)
        left.append(one.available.value.best_bytes)
    assert left == sorted(left, reverse=True)
    assert len(set(left)) == 3
