"""How long a search takes for 250 to 2,000 layouts, and how the time grows with layouts and with layers.

    python benchmarks/search_speed.py

A mixture of 61 MLA layers (256 experts) on 128 devices under SGLang, which has the most layouts; every search plans the
memory and the capacity of each layout, times prefill and decode, and tries replicas and split pools. One core.
"""

from __future__ import annotations

import sys
import time

from longproof.domain.measure import given
from longproof.geometry.kinds import LatentAttention
from longproof.geometry.model import Layer, LayerWeights, Mlp, ModelGeometry, OuterWeights
from longproof.hardware.catalogue import find_device
from longproof.plan.capacity import Launch, Layout, PlanEngine
from longproof.plan.layouts import possible_layouts
from longproof.plan.memory import MemoryChoices
from longproof.plan.perf_model import work_of
from longproof.plan.planner import on_device
from longproof.plan.search import search_layouts
from longproof.plan.search_fit import estimated_capacity, window_tokens
from longproof.plan.search_question import Hardware, SearchQuestion, Slo, Workload

_DEVICES, _LAYERS = 128, 61
_COUNTS = (250, 500, 1000, 2000)
_DEPTHS = (30, 61, 122, 244)
_LIMIT_SECONDS = 5.0
_WORKLOAD = Workload(input_tokens=120_000, output_tokens=1000)


def main() -> int:
    """Time the searches; 1 when 2,000 layouts take 5 s."""
    model = mixture(_LAYERS)
    layouts = possible_layouts(model, PlanEngine.SGLANG, _DEVICES)
    print(f"{len(layouts)} layouts are possible on {_DEVICES} devices; searching samples of them")
    seconds = 0.0
    for count in _COUNTS:
        seconds, fit, ranked = timed(model, sample(layouts, count))
        print(
            f"{count:5} layouts: {seconds:.2f} s, {1e3 * seconds / count:.2f} ms a layout, {fit} fit, {ranked} ranked"
        )
    for depth in _DEPTHS:
        took, _, _ = timed(mixture(depth), sample(layouts, _COUNTS[0]))
        print(f"{depth:5} layers, {_COUNTS[0]} layouts: {took:.2f} s, {1e6 * took / _COUNTS[0] / depth:.1f} us a layer")
    print(f"search of {_COUNTS[-1]} layouts {seconds:.2f} s, limit {_LIMIT_SECONDS:g} s")
    return 0 if seconds < _LIMIT_SECONDS else 1


def sample(layouts: tuple[Layout, ...], count: int) -> list[Layout]:
    """So many of them, all different, small and large ones in the proportion of the whole."""
    assert count <= len(layouts)
    return [layouts[index * len(layouts) // count] for index in range(count)]


def timed(model: ModelGeometry, layouts: list[Layout]) -> tuple[float, int, int]:
    """(seconds, layouts that fit, candidates ranked)."""
    device = find_device("h200")
    launch = on_device(
        Launch(
            engine=PlanEngine.SGLANG,
            version="0.5.23",
            max_model_len_tokens=window_tokens(PlanEngine.SGLANG, _WORKLOAD.total_tokens),
        ),
        device,
    )
    begin = time.perf_counter()
    question = SearchQuestion(
        geometry=model,
        work=work_of(model),
        engine=PlanEngine.SGLANG,
        hardware=Hardware(device=device, count=_DEVICES, usd_per_hour=given(3.0, "benchmark")),
        workload=_WORKLOAD,
        slo=Slo(first_token_seconds=20, token_seconds=0.05),
    )
    capacity = estimated_capacity(model, launch, MemoryChoices(total_bytes=device.memory_bytes()))
    found = search_layouts(question, capacity, layouts=layouts)
    return time.perf_counter() - begin, found.tried - len(found.unfit), len(found.ranked)


def mixture(depth: int) -> ModelGeometry:
    """MLA layers with 256 experts, thin ones, so that deep models fit as well and the growth shows the work."""
    attention = LatentAttention(
        query_heads=128, kv_lora_rank=512, rope_dim=64, nope_dim=128, v_dim=128, q_lora_rank=1536
    )
    weights = LayerWeights(
        attention=187_000_000, mlp=44_000_000, experts=281_600_000, active_experts=8_800_000, replicated=5_500_000
    )
    mlp = Mlp(experts=256, experts_per_token=8, expert_size=2048, shared_size=2048)
    return ModelGeometry(
        name=f"mixture of {depth} layers",
        architecture="deepseek_v3",
        source="benchmark",
        layers=tuple(Layer(index=i, attention=attention, mlp=mlp, weights=weights) for i in range(depth)),
        hidden_size=given(7168, "benchmark"),
        vocab_size=given(129_280, "benchmark"),
        max_position_tokens=given(163_840, "benchmark"),
        dtype=given("bfloat16", "benchmark"),
        outer=OuterWeights(embedding=926_000_000, lm_head=926_000_000),
    )


if __name__ == "__main__":
    sys.exit(main())
