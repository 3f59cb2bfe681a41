"""Layout rules of the engines: what is refused, in whose words, and that the list of possible layouts is whole."""

from __future__ import annotations

from itertools import product

import pytest

from longproof.errors import LayoutError, UsageError
from longproof.geometry.kinds import GroupedAttention, Indexer, LatentAttention, LayerKind, RecurrentState
from longproof.geometry.model import Layer, Mlp, ModelGeometry
from longproof.plan.capacity import Device, Launch, Layout, PlanEngine, Speculation
from longproof.plan.layout_pools import check_pools
from longproof.plan.layouts import (
    Arrangement,
    LayoutSpace,
    arrangement_devices,
    check_layout,
    describe_arrangement,
    describe_layout,
    devices_of,
    possible_layouts,
    require_layout,
)
from longproof.plan.vllm_capacity import plan_vllm

VLLM, SGLANG, LLAMACPP = PlanEngine.VLLM, PlanEngine.SGLANG, PlanEngine.LLAMACPP


def grouped(count: int, heads: int, kv_heads: int, *, window: int | None = None, experts: int = 0) -> ModelGeometry:
    attention = GroupedAttention(
        kind=LayerKind.SLIDING if window else LayerKind.FULL,
        query_heads=heads,
        kv_heads=kv_heads,
        k_dim=128,
        v_dim=128,
        window_tokens=window,
    )
    mlp = Mlp(experts=experts, experts_per_token=2, expert_size=64) if experts else Mlp(dense_size=64)
    layers = tuple(Layer(index=i, attention=attention, mlp=mlp) for i in range(count))
    return ModelGeometry(name="g", architecture="llama", source="test", layers=layers)


def latent(count: int, *, sparse: bool = False) -> ModelGeometry:
    indexer = Indexer(head_dim=128, heads=64, top_k=2048) if sparse else None
    attention = LatentAttention(
        query_heads=128, kv_lora_rank=512, rope_dim=64, nope_dim=128, v_dim=128, indexer=indexer
    )
    mlp = Mlp(experts=256, experts_per_token=8, expert_size=64)
    layers = tuple(Layer(index=i, attention=attention, mlp=mlp) for i in range(count))
    return ModelGeometry(name="m", architecture="deepseek_v3", source="test", layers=layers)


DENSE = grouped(80, 64, 8)
MIXTURE = grouped(48, 64, 8, experts=128)
WINDOWED = grouped(18, 4, 1, window=512)
LATENT, SPARSE = latent(61), latent(61, sparse=True)
RECURRENT = ModelGeometry(
    name="r",
    architecture="qwen3_next",
    source="test",
    layers=(
        *DENSE.layers[:2],
        Layer(
            index=2,
            state=RecurrentState(kind=LayerKind.GDN, heads=32, head_dim=128, state_dim=128, groups=16, conv_kernel=4),
        ),
    ),
)


@pytest.mark.parametrize(
    ("geometry", "layout", "words"),
    [
        (DENSE, Layout(tp=5), "Total number of attention heads (64) must be divisible by tensor parallel size (5)."),
        # 12 heads divide by 2, the 3 KV heads neither divide by 2 nor into it
        (grouped(30, 12, 3), Layout(tp=2), "3 KV heads cannot be split over 2 tensor-parallel ranks"),
        (DENSE, Layout(pp=81), "80 layers cannot be spread over 81 stages"),
        (DENSE, Layout(pp=2, partition=(40, 41)), "gives 81 layers to 2 stages"),
        (DENSE, Layout(tp=8, dcp=2), "greater than the model's total number of KV heads (8)"),
        # 16 ranks hold each of 8 KV heads twice: DCP 2 at most
        (DENSE, Layout(tp=16, dcp=4), "exceeds the maximum supported value (2)"),
        # 24 ranks on 8 KV heads: at most 3; 24 / 8 = 3 query heads per KV head do not divide by 2
        (grouped(8, 24, 8), Layout(tp=24, dcp=2), "query heads per KV head (3) must be divisible"),
        (LATENT, Layout(tp=8, dcp=3), "tp_size=8 must be divisible by dcp_size=3."),
        (WINDOWED, Layout(tp=2, dcp=2), "DCP not support sliding window."),
        (RECURRENT, Layout(tp=16, dcp=2), "DCP not support mamba now."),
        (DENSE, Layout(pcp=2), "MRV2 PCP currently supports MLA models only."),
        (LATENT, Layout(tp=2, pcp=2, dcp=2), "MRV2 PCP + DCP supports sparse MLA models only."),
        (SPARSE, Layout(tp=4, pcp=2, dcp=4), "valid DCP sizes are [1, 2, 8]."),
        (DENSE, Layout(tp=8, ep=8), "Number of experts in the model must be greater than 0"),
        (MIXTURE, Layout(tp=8, ep=4), "the EP group spans the TP x PCP x DP ranks (8)"),
        (latent(4), Layout(tp=64, dp=8, ep=512), "256 experts cannot be spread over 512"),
        (LATENT, Layout(tp=8, dp=8, dp_attention=True), "vLLM has no attention DP inside"),
    ],
)
def test_vllm_refuses_in_its_own_words_when_a_rule_is_broken(
    geometry: ModelGeometry, layout: Layout, words: str
) -> None:
    broken = check_layout(geometry, VLLM, layout)
    assert any(words in one.reason for one in broken), broken
    assert all(one.source == "vLLM 0.32.0" and one.advice and one.rule for one in broken)


@pytest.mark.parametrize(
    ("geometry", "layout"),
    [
        (DENSE, Layout(tp=8, pp=10)),
        (DENSE, Layout(tp=16, dcp=2)),
        (DENSE, Layout(pp=2, partition=(39, 41))),
        (MIXTURE, Layout(tp=4, dp=2, ep=8)),
        (LATENT, Layout(tp=8, dcp=8)),
        (LATENT, Layout(tp=2, pcp=4, ep=8)),
        (SPARSE, Layout(tp=4, pcp=2, dcp=8)),
        (WINDOWED, Layout(tp=4)),  # one KV head, repeated
    ],
)
def test_vllm_takes_a_layout_when_no_rule_is_broken(geometry: ModelGeometry, layout: Layout) -> None:
    assert check_layout(geometry, VLLM, layout) == ()
    require_layout(geometry, VLLM, layout)


@pytest.mark.parametrize("layout", [Layout(tp=8, dcp=8), Layout(pcp=2)])
def test_vllm_refuses_context_parallelism_when_it_runs_on_cpu(layout: Layout) -> None:
    assert check_layout(LATENT, VLLM, layout) == ()
    (broken,) = check_layout(LATENT, VLLM, layout, platform=Device.CPU)
    assert broken.rule == "context parallelism needs a GPU"


@pytest.mark.parametrize(
    ("geometry", "layout", "words"),
    [
        (LATENT, Layout(tp=8, dp=4, dp_attention=True, pcp=4), "divisible by attn_dp_size * attn_cp_size"),
        (LATENT, Layout(tp=8, dcp=2, pcp=2), "--dcp-size > 1 does not support --enable-prefill-cp."),
        # attention TP is 8 / 4 = 2
        (LATENT, Layout(tp=8, dp=4, dp_attention=True, dcp=4), "must divide the attention TP size 2."),
        # 16 / 4 = 4 ranks share 8 KV heads: a DCP group would hold different ones
        (DENSE, Layout(tp=16, dcp=4), "which 8 KV heads do not allow"),
        (LATENT, Layout(tp=8, ep=16), "does not divide --tp-size 8"),
        (DENSE, Layout(tp=8, ep=8), "the model has no experts"),
        (DENSE, Layout(tp=5), "64 attention heads cannot be split over 5 attention TP ranks"),
    ],
)
def test_sglang_refuses_when_a_rule_is_broken(geometry: ModelGeometry, layout: Layout, words: str) -> None:
    broken = check_layout(geometry, SGLANG, layout)
    assert any(words in one.reason for one in broken), broken


def test_sglang_takes_attention_dp_inside_tp_when_it_divides() -> None:
    layout = Layout(tp=16, dp=8, dp_attention=True, ep=16, dcp=2)
    assert check_layout(LATENT, SGLANG, layout) == ()
    assert devices_of(SGLANG, layout) == 16  # attention DP lies inside TP
    assert devices_of(SGLANG, Layout(tp=16, dp=8)) == 128  # replicas do not
    assert devices_of(VLLM, Layout(tp=4, pp=2, dp=3, pcp=2, dcp=4, ep=24)) == 48


def test_sglang_pipeline_drafts_with_eagle_only_when_speculating() -> None:
    layout = Layout(pp=2)
    assert check_layout(DENSE, SGLANG, layout, speculation=Speculation(method="eagle", tokens=3)) == ()
    (broken,) = check_layout(DENSE, SGLANG, layout, speculation=Speculation(method="mtp", tokens=3))
    assert "only supports EAGLE" in broken.reason


def test_llamacpp_takes_stages_alone_when_asked_for_more() -> None:
    assert check_layout(DENSE, LLAMACPP, Layout(pp=4)) == ()
    for layout in (Layout(tp=2), Layout(dcp=2), Layout(dp=2), Layout(ep=2), Layout(pcp=2)):
        (broken,) = check_layout(DENSE, LLAMACPP, layout)
        assert broken.source.startswith("llama.cpp")


def test_tensorrt_llm_context_parallelism_is_refused_when_it_is_not_modelled() -> None:
    assert check_layout(DENSE, PlanEngine.TENSORRT_LLM, Layout(tp=8, pp=2)) == ()
    (broken,) = check_layout(DENSE, PlanEngine.TENSORRT_LLM, Layout(tp=8, pcp=2))
    assert "HELIX" in broken.reason


def test_impossible_layout_names_rule_reason_and_next_step_when_required() -> None:
    with pytest.raises(LayoutError) as caught:
        require_layout(WINDOWED, VLLM, Layout(tp=2, dcp=2))
    assert caught.value.exit_code == 2
    assert caught.value.rule == "decode context parallelism shards full attention and MLA only"
    assert "TP2 DCP2 is impossible: DCP not support sliding window. (vLLM 0.32.0)" in caught.value.problem
    assert caught.value.advice == "use --decode-context-parallel-size 1"


def test_too_many_devices_are_refused_when_a_number_is_given() -> None:
    (broken,) = check_layout(DENSE, VLLM, Layout(tp=8, pp=2), devices=8)
    assert broken.reason == "it takes 16 devices and 8 are given"


def test_a_size_below_one_is_a_usage_error_when_checked() -> None:
    with pytest.raises(UsageError, match="below 1"):
        check_layout(DENSE, VLLM, Layout(tp=0))
    with pytest.raises(UsageError, match="0 devices"):
        possible_layouts(DENSE, VLLM, 0)


@pytest.mark.parametrize("geometry", [DENSE, MIXTURE, LATENT, SPARSE, WINDOWED])
@pytest.mark.parametrize("engine", list(PlanEngine))
def test_every_listed_layout_keeps_all_rules_when_enumerated(geometry: ModelGeometry, engine: PlanEngine) -> None:
    found = possible_layouts(geometry, engine, 16)
    assert len(set(found)) == len(found) > 0
    assert Layout() in found
    for layout in found:
        assert check_layout(geometry, engine, layout, devices=16) == ()


def test_no_possible_layout_is_missing_when_a_dense_model_runs_on_vllm() -> None:
    sizes = (1, 2, 4, 8, 16)
    space = LayoutSpace(sizes=sizes)
    every = {
        Layout(tp=tp, pp=pp, dcp=dcp, pcp=pcp)
        for tp, pp, dcp, pcp in product(sizes, repeat=4)
        if not check_layout(DENSE, VLLM, Layout(tp=tp, pp=pp, dcp=dcp, pcp=pcp), devices=32)
    }
    assert set(possible_layouts(DENSE, VLLM, 32, space=space)) == every


def test_sizes_are_powers_of_two_and_divisors_when_none_are_given() -> None:
    assert LayoutSpace().sizes_on(12) == (1, 2, 3, 4, 6, 8, 12)
    assert LayoutSpace(sizes=(2, 64)).sizes_on(12) == (2,)


@pytest.mark.parametrize("geometry", [DENSE, LATENT, SPARSE])
def test_capacity_takes_every_layout_that_the_rules_take_when_on_vllm(geometry: ModelGeometry) -> None:
    for layout in possible_layouts(geometry, VLLM, 16):
        launch = Launch(engine=VLLM, version="0.32.0", layout=layout, max_model_len_tokens=8192, kv_dtype="bfloat16")
        assert plan_vllm(geometry, launch, ()).need.blocks > 0


def test_pools_are_refused_when_the_connector_cannot_hand_over() -> None:
    def reasons(geometry: ModelGeometry, engine: PlanEngine, prefill: Layout, decode: Layout) -> str:
        return " ".join(one.reason for one in check_pools(geometry, engine, prefill, decode))

    assert reasons(LATENT, VLLM, Layout(tp=8, pp=2), Layout(tp=8, dcp=8)) == ""
    assert "must be 1 or equal to the NIXL" in reasons(LATENT, VLLM, Layout(tp=8), Layout(tp=8, dcp=4))
    assert "only supported for MLA" in reasons(DENSE, VLLM, Layout(tp=8), Layout(tp=16, dcp=16))
    assert "consumer (decode)" in reasons(DENSE, VLLM, Layout(tp=8), Layout(pp=2))
    assert "Mamba/SSM" in reasons(RECURRENT, VLLM, Layout(pp=3), Layout())
    assert "DSA DCP" in reasons(SPARSE, SGLANG, Layout(tp=8), Layout(tp=8, dcp=8))
    assert "same DCP layout" in reasons(LATENT, SGLANG, Layout(tp=8, dcp=2), Layout(tp=8, dcp=8))
    assert "llama.cpp" in reasons(DENSE, LLAMACPP, Layout(), Layout())


def test_layouts_read_as_people_write_them_when_described() -> None:
    assert describe_layout(Layout()) == "TP1"
    assert describe_layout(Layout(tp=8, pp=2, dp=4, dp_attention=True, ep=8)) == "TP8 PP2 ADP4 EP8"
    assert describe_layout(Layout(pp=2, partition=(20, 10))) == "PP2 (20,10)"
    split = Arrangement(layout=Layout(pp=8), replicas=2, decode=Layout(tp=4, dcp=2), decode_replicas=3)
    assert describe_arrangement(split) == "prefill 2 x PP8 + decode 3 x TP4 DCP2"
    assert arrangement_devices(VLLM, split) == 2 * 8 + 3 * 4
