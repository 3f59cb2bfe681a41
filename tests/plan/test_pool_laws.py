"""What holds for every engine's pools, whatever the model, layout and bytes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longproof.domain.measure import Measured, Unknown
from longproof.geometry.model import Layer, ModelGeometry
from longproof.plan.capacity import (
    Capacity,
    Launch,
    Layout,
    LlamacppOptions,
    PlanEngine,
    RankBudget,
    same_budget,
)
from longproof.plan.llamacpp_rules import plan_llamacpp
from longproof.plan.sglang_rules import plan_sglang
from longproof.plan.trtllm_rules import plan_trtllm
from longproof.testing import geometries

GIB = 2**30
MODELS = [
    geometries.uniform(13, 8, 128),
    geometries.glm5(),
    geometries.deepseek_r1(),
    geometries.mimo_v2_flash(),
    geometries.gpt_oss_20b(),
    geometries.qwen36_27b(),
    geometries.nemotron3_nano(),
    geometries.falcon_h1(),
]
models = st.sampled_from(MODELS)
layouts = st.builds(
    lambda tp, pp, dp: Layout(tp=tp, pp=pp, dp=dp, dp_attention=dp > 1),
    tp=st.sampled_from([4, 8]),
    pp=st.integers(1, 5),
    dp=st.sampled_from([1, 2]),
)


def tokens(capacity: Capacity) -> int:
    return capacity.tokens.value if isinstance(capacity.tokens, Measured) else 0


def sglang(layout: Layout, page: int = 64) -> Launch:
    return Launch(engine=PlanEngine.SGLANG, layout=layout, block_size_tokens=page, max_model_len_tokens=131_072)


@given(model=models, layout=layouts, size=st.integers(0, 100 * GIB), more=st.integers(0, GIB))
def test_more_bytes_never_hold_fewer_tokens_when_sglang_plans(
    model: ModelGeometry, layout: Layout, size: int, more: int
) -> None:
    launch = sglang(layout)
    less_plan = plan_sglang(model, launch, same_budget(layout, size, "test"))
    more_plan = plan_sglang(model, launch, same_budget(layout, size + more, "test"))
    # a state slot more takes its bytes from the tokens: only models without states are strictly monotone
    if all(layer.state is None for layer in model.layers):
        assert tokens(less_plan) <= tokens(more_plan)
    slots = [{pool.name: pool.units for pool in plan.stages[0].pools}.get("ssm", 0) for plan in (less_plan, more_plan)]
    assert slots[0] <= slots[1]


@given(model=models, layout=layouts, page=st.sampled_from([1, 64, 256]), size=st.integers(GIB, 60 * GIB))
def test_pools_stay_within_the_bytes_but_for_the_spare_page_when_sglang_plans(
    model: ModelGeometry, layout: Layout, page: int, size: int
) -> None:
    plan = plan_sglang(model, sglang(layout, page), same_budget(layout, size, "test"))
    layers = [(stage.first_layer, stage.last_layer) for stage in plan.stages if stage.rank == 0]
    assert [first for first, _ in layers] == [0, *(last for _, last in layers[:-1])]
    assert layers[-1][1] == len(model.layers)
    if tokens(plan) == 0:
        return
    for stage in plan.stages:
        spare = sum(page * pool.bytes_per_unit for pool in stage.pools if pool.unit == "token")
        assert sum(pool.total_bytes for pool in stage.pools) <= size + spare
        assert all(pool.units % page == 0 for pool in stage.pools if pool.unit == "token")


@given(layout=layouts, sizes=st.lists(st.integers(GIB, 8 * GIB), min_size=40, max_size=40))
@pytest.mark.parametrize("plan", [plan_sglang, plan_trtllm])
def test_the_poorest_rank_bounds_all_when_ranks_differ(
    plan: Callable[..., Capacity], layout: Layout, sizes: list[int]
) -> None:
    model = geometries.uniform(13, 8, 128)
    engine = PlanEngine.SGLANG if plan is plan_sglang else PlanEngine.TENSORRT_LLM
    launch = Launch(engine=engine, layout=layout, block_size_tokens=64)
    places = [(stage, rank) for stage in range(layout.pp) for rank in range(layout.tp)]
    budgets = tuple(
        RankBudget(stage=stage, rank=rank, available_bytes=size, source="test")
        for (stage, rank), size in zip(places, sizes, strict=False)
    )
    whole = plan(model, launch, budgets)
    poorest = plan(model, launch, same_budget(layout, min(b.available_bytes for b in budgets), "test"))
    richest = plan(model, launch, same_budget(layout, max(b.available_bytes for b in budgets), "test"))
    assert tokens(poorest) <= tokens(whole) <= tokens(richest)
    assert {pool.units for stage in whole.stages for pool in stage.pools if pool.unit != "slot"} == {
        whole.stages[0].pools[0].units
    }


@given(
    model=models,
    context=st.integers(1, 200_000),
    slots=st.integers(1, 9),
    unified=st.booleans(),
    dtype=st.sampled_from(["f16", "q8_0", "q4_0"]),
)
def test_llamacpp_cells_hold_what_was_asked_when_padded(
    model: ModelGeometry, context: int, slots: int, unified: bool, dtype: str
) -> None:
    launch = Launch(
        engine=PlanEngine.LLAMACPP,
        kv_dtype=dtype,
        max_model_len_tokens=context,
        max_num_seqs=slots,
        llamacpp=LlamacppOptions(unified=unified),
    )
    plan = plan_llamacpp(model, launch)
    assert isinstance(plan.tokens, Measured)
    assert plan.tokens.value % 256 == 0
    assert context - slots < plan.tokens.value < context + 256 * (slots + 1)
    needed = sum(pool.total_bytes for pool in plan.stages[0].pools)
    assert plan_llamacpp(model, launch, same_budget(Layout(), needed, "test")).refusal is None
    assert plan_llamacpp(model, launch, same_budget(Layout(), needed - 1, "test")).refusal is not None


@given(model=models, size=st.integers(GIB, 60 * GIB))
def test_quantised_caches_hold_more_when_everything_else_is_equal(model: ModelGeometry, size: int) -> None:
    for engine, plan in ((PlanEngine.SGLANG, plan_sglang), (PlanEngine.TENSORRT_LLM, plan_trtllm)):
        found = [
            plan(model, Launch(engine=engine, kv_dtype=dtype), same_budget(Layout(), size, "test"))
            for dtype in ("bfloat16", "fp8")
        ]
        assert tokens(found[0]) <= tokens(found[1])


def test_layers_without_a_cache_are_said_to_leave_the_pool_unknown_when_nothing_grows() -> None:
    state = geometries.qwen36_27b().layers[0].state
    model = geometries.geometry([Layer(index=i, state=state) for i in range(4)])
    plan = plan_sglang(model, sglang(Layout()), same_budget(Layout(), GIB, "test"))
    assert isinstance(plan.tokens, Unknown)
    assert "context length" in plan.tokens.reason
