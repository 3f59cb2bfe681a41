"""SGLang's pools, against what real servers logged (its "GB" are GiB, printed with two decimals)."""

from __future__ import annotations

import pytest

from longproof.domain.measure import Measured, Unknown
from longproof.errors import LayoutError
from longproof.geometry.kinds import CompressedAttention
from longproof.geometry.model import Layer
from longproof.plan.capacity import (
    Capacity,
    Launch,
    Layout,
    PlanEngine,
    RankBudget,
    SglangOptions,
    Speculation,
    same_budget,
)
from longproof.plan.sglang_rules import minimum_memory_fraction, plan_sglang, rest_bytes
from longproof.testing import geometries as models

GIB = 2**30


def launch(**fields: object) -> Launch:
    return Launch(engine=PlanEngine.SGLANG, **fields)  # type: ignore[arg-type]


def gib(capacity: Capacity, *names: str) -> float:
    """What the named pools of the first rank take, as the log prints it."""
    return round(sum(p.total_bytes for p in capacity.stages[0].pools if p.name in names) / GIB, 2)


def tokens_of(capacity: Capacity) -> int:
    assert isinstance(capacity.tokens, Measured)
    return capacity.tokens.value


def test_pool_is_rest_over_cell_when_every_layer_is_full() -> None:
    # QwQ-32B on 4 x L4: 64 layers x 2 heads x 2 x 128 x 2 B = 65,536 B per token and rank.
    # rest = 6.09 - 21.63 x 0.15 = 2.8455 GiB → 46,620 tokens; logged 46,611, and roundings of 0.005 GiB are 82 tokens.
    rest = rest_bytes(6.09 * GIB, 21.63 * GIB, 0.85)
    one = launch(layout=Layout(tp=4), max_model_len_tokens=131_072, block_size_tokens=1)
    plan = plan_sglang(models.uniform(64, 8, 128), one, same_budget(one.layout, rest, "log"))
    assert abs(tokens_of(plan) - 46_611) <= 82 * 1.15
    assert plan.refusal is None  # a context of 131,072 over a pool of 46,6xx is accepted
    assert plan.report.misleading is not None
    assert "131,072" in plan.report.misleading
    assert isinstance(plan.longest_request_tokens, Measured)
    assert plan.longest_request_tokens.value == tokens_of(plan) - 1


@pytest.mark.parametrize(
    ("kv_dtype", "tokens", "logged"),
    [
        ("bfloat16", 314_304, 29.32),  # GLM-5: 78 x (1152 + 132) B
        ("fp8", 457_920, 26.22),  # GLM-5.1: 78 x (656 + 132) B; 26.21 without the spare page
    ],
)
def test_sparse_mla_pays_latent_and_indexer_when_the_pool_is_given(kv_dtype: str, tokens: int, logged: float) -> None:
    options = SglangOptions(max_total_tokens=tokens)
    plan = plan_sglang(models.glm5(), launch(kv_dtype=kv_dtype, layout=Layout(tp=8), sglang=options))
    assert gib(plan, "latent", "indexer") == logged
    assert plan.block_tokens == 64


def test_indexer_is_reported_as_hidden_when_the_build_left_it_out_of_the_budget() -> None:
    # 61 layers x 656 B x 1,462,784 tokens = 54.52 GiB printed; with 132 B more each 65.48 GiB are taken
    v32 = models.glm5().layers[:61]
    options = SglangOptions(max_total_tokens=1_462_784, indexer_in_budget=False)
    one = launch(kv_dtype="fp8", layout=Layout(tp=8), sglang=options)
    plan = plan_sglang(models.geometry(list(v32), architecture="deepseek_v32"), one)
    assert gib(plan, "latent") == 54.52
    assert gib(plan, "latent", "indexer") == pytest.approx(65.49, abs=0.011)
    assert plan.report.misleading is not None
    assert "10.97 GiB" in plan.report.misleading


def test_mamba_pool_allocates_one_slot_more_when_a_hybrid_is_served() -> None:
    # Nemotron-3-Nano TP4: 6 of 52 layers with 1 head per rank (2 heads over 4 ranks repeat): K 14.05 GiB for
    # 19,644,177 tokens; 2,211 slots x 23 layers, conv (4096 + 2 x 8 x 128) / 4 x 3 x 2 B, ssm 64 x 64 x 128 / 4 x 4 B
    options = SglangOptions(max_total_tokens=19_644_177, max_mamba_slots=2211)
    plan = plan_sglang(models.nemotron3_nano(), launch(kv_dtype="fp8", layout=Layout(tp=4), sglang=options))
    assert (gib(plan, "k"), gib(plan, "v")) == (14.05, 14.05)
    assert (gib(plan, "conv"), gib(plan, "ssm")) == (0.44, 24.84)


def test_state_slots_follow_the_ratio_when_nothing_is_given() -> None:
    # Nemotron again, from the bytes: share = rest x 0.9 / 1.9; slots = floor(share / per slot) - 1
    # per slot = 23 x (1536 x 3 x 2 + 16 x 64 x 128 x 4) = 23 x (9,216 + 524,288) = 12,270,592 B
    rest = 60 * GIB
    one = launch(kv_dtype="fp8", layout=Layout(tp=4))
    plan = plan_sglang(models.nemotron3_nano(), one, same_budget(one.layout, rest, "test"))
    ssm = next(pool for pool in plan.stages[0].pools if pool.name == "ssm")
    assert ssm.units == int(rest * 0.9 / 1.9) // 12_270_592 - 1 == 2485
    # what the states leave goes to 6 layers x 1 head x 256 x 1 B = 1,536 B per token
    assert tokens_of(plan) == (rest - 2486 * 12_270_592) // 1536
    taken = sum(pool.total_bytes for pool in plan.stages[0].pools)
    assert taken <= rest + 1536  # the spare page (one token) lies outside the budget


def test_speculation_keeps_a_state_per_drafted_token_when_a_hybrid_drafts() -> None:
    options = SglangOptions(max_mamba_slots=8, max_total_tokens=600_075)
    spec = Speculation(method="eagle3", tokens=4, extra_kv_layers=0)
    one = launch(kv_dtype="fp8", layout=Layout(tp=2), sglang=options, speculation=spec)
    plan = plan_sglang(models.qwen36_27b(), one)
    assert (gib(plan, "k"), gib(plan, "v")) == (4.58, 4.58)
    assert gib(plan, "ssm") == 0.63  # 9 x 48 layers x 24 heads x 128 x 128 x 4 B
    drafted = next(pool for pool in plan.stages[0].pools if pool.name == "draft_ssm")
    assert drafted.units == (8 // 3 + 1) * 4  # running requests and the padding slot, one state per drafted token


def test_draft_with_its_own_shape_is_added_when_its_geometry_is_given() -> None:
    options = SglangOptions(max_total_tokens=454_112)
    spec = Speculation(method="dflash", tokens=8)
    one = launch(kv_dtype="fp8", layout=Layout(tp=2), sglang=options, speculation=spec)
    plan = plan_sglang(models.qwen36_27b(), one, draft=models.uniform(5, 8, 128))
    assert (gib(plan, "k"), gib(plan, "v")) == (3.46, 3.46)
    assert (gib(plan, "draft_k"), gib(plan, "draft_v")) == (1.08, 1.08)  # 5 layers x 4 heads x 128 x 1 B


def test_mtp_scales_the_cell_by_its_layers_when_it_has_the_targets_shape() -> None:
    one = launch(layout=Layout(tp=1), speculation=Speculation(method="nextn", tokens=3))
    budget = same_budget(one.layout, 10 * GIB, "test")
    plan = plan_sglang(models.deepseek_r1(), one, budget)
    assert tokens_of(plan) == 10 * GIB // (1152 * 62)


def test_window_pool_is_a_share_of_the_full_one_when_windows_alternate() -> None:
    # MiMo-V2-Flash TP4: full 9 x 1 head x (192 + 128) x 2 B; windowed 39 x 2 heads x (192 + 128) x 2 B
    options = SglangOptions(max_total_tokens=1_496_958, swa_full_tokens_ratio=1.0)
    one = launch(kv_dtype="bfloat16", layout=Layout(tp=4), sglang=options)
    plan = plan_sglang(models.mimo_v2_flash(), one)
    assert [gib(plan, name) for name in ("k", "v", "swa_k", "swa_v")] == [4.82, 3.21, 41.76, 27.84]
    assert gib(plan, "k", "v", "swa_k", "swa_v") == 77.63
    # and from the bytes: cell = 9 x 640 + 0.8 x 39 x 1280 = 5,760 + 39,936 = 45,696
    back = launch(kv_dtype="bfloat16", layout=Layout(tp=4), block_size_tokens=64)
    plan = plan_sglang(models.mimo_v2_flash(), back, same_budget(back.layout, 20 * GIB, "test"))
    assert tokens_of(plan) == 20 * GIB // 45_696 // 64 * 64 == 469_888
    swa = next(pool for pool in plan.stages[0].pools if pool.name == "swa_k")
    assert swa.units == int(469_888 * 0.8) // 64 * 64
    assert isinstance(plan.longest_request_tokens, Measured)
    assert plan.longest_request_tokens.value == 262_143  # the context; the window pool would hold 375,872


def test_window_pool_limits_the_longest_request_when_it_is_smaller_than_the_context() -> None:
    options = SglangOptions(max_total_tokens=186_368, swa_full_tokens_ratio=0.0989)
    one = launch(layout=Layout(tp=4), sglang=options, block_size_tokens=64)
    plan = plan_sglang(models.mimo_v2_flash(), one)
    assert isinstance(plan.longest_request_tokens, Measured)
    assert plan.longest_request_tokens.value == int(186_368 * 0.0989) // 64 * 64 - 1 == 18_367


def test_windows_are_kept_whole_when_sglang_has_no_pool_for_the_family() -> None:
    one = launch(layout=Layout())
    plan = plan_sglang(models.gemma3_270m(), one, same_budget(one.layout, GIB, "test"))
    assert tokens_of(plan) == GIB // (18 * 2 * 256 * 2)  # all 18 layers
    assert any("windowed layers keep every token" in note for note in plan.notes)


def test_attention_dp_repeats_less_when_heads_are_shared_by_fewer_ranks() -> None:
    model = models.uniform(10, 8, 128)
    whole = launch(layout=Layout(tp=8))
    groups = launch(layout=Layout(tp=8, dp=4, dp_attention=True))  # attention TP 2: 4 heads per rank
    a = plan_sglang(model, whole, same_budget(whole.layout, GIB, "test"))
    b = plan_sglang(model, groups, same_budget(groups.layout, GIB, "test"))
    assert tokens_of(a) == GIB // (10 * 1 * 256 * 2)
    assert tokens_of(b) == GIB // (10 * 4 * 256 * 2)
    with pytest.raises(LayoutError, match="does not divide into 3"):
        plan_sglang(model, launch(layout=Layout(tp=8, dp=3, dp_attention=True)))


def test_the_costliest_stage_decides_for_all_when_the_pipeline_is_uneven() -> None:
    # 10 layers over 4 stages: SGLang gives the last two one more: 2, 2, 3, 3
    one = launch(layout=Layout(pp=4))
    budgets = tuple(RankBudget(stage=i, rank=0, available_bytes=GIB + i, source="test") for i in range(4))
    plan = plan_sglang(models.uniform(10, 8, 128), one, budgets)
    assert [(s.first_layer, s.last_layer) for s in plan.stages] == [(0, 2), (2, 4), (4, 7), (7, 10)]
    assert tokens_of(plan) == GIB // (3 * 8 * 256 * 2)
    assert plan.binding == 2
    assert {pool.units for stage in plan.stages for pool in stage.pools} == {tokens_of(plan)}


def test_nothing_left_is_refused_when_the_weights_exceed_the_fraction() -> None:
    # 138.1 GiB before loading and 12.25 after: 0.88 leaves 12.25 - 138.1 x 0.12 < 0; more than 0.9113 is needed
    assert rest_bytes(12.25 * GIB, 138.1 * GIB, 0.88) < 0
    assert round(minimum_memory_fraction(12.25 * GIB, 138.1 * GIB), 4) == 0.9113
    one = launch(layout=Layout())
    rest = rest_bytes(12.25 * GIB, 138.1 * GIB, 0.88)
    plan = plan_sglang(models.uniform(10, 8, 128), one, same_budget(one.layout, rest, "test"))
    assert plan.refusal is not None
    assert "--mem-fraction-static" in plan.refusal.sentence


def test_capacity_is_unknown_when_no_bytes_are_given_or_the_caches_are_not_modelled() -> None:
    plan = plan_sglang(models.uniform(10, 8, 128), launch())
    assert isinstance(plan.tokens, Unknown)
    assert plan.need.total_bytes == 131_072 * 10 * 8 * 256 * 2
    v4 = CompressedAttention(query_heads=64, head_dim=512, rope_dim=64, window_tokens=128, ratio=4)
    other = plan_sglang(models.geometry([Layer(index=0, attention=v4)]), launch())
    assert isinstance(other.tokens, Unknown)
    assert "DeepSeek V4" in other.tokens.reason


def test_running_requests_bound_the_concurrency_when_requests_are_short() -> None:
    one = launch(max_model_len_tokens=1024, max_num_seqs=16, sglang=SglangOptions(max_total_tokens=1_000_000))
    plan = plan_sglang(models.uniform(10, 8, 128), one)
    assert isinstance(plan.concurrency, Measured)
    assert plan.concurrency.value == 16
    assert "max_running_requests 16" in plan.notes
