"""vLLM pages and hybrid blocks, against the sizes real servers logged."""

from __future__ import annotations

from dataclasses import replace

import pytest

from longproof.domain.measure import given
from longproof.errors import LayoutError, UsageError
from longproof.geometry.model import ModelGeometry
from longproof.plan.capacity import Launch, Layout, PlanEngine, Speculation, VllmOptions, same_budget
from longproof.plan.vllm_capacity import plan_vllm
from longproof.plan.vllm_hybrid import largest_state_bytes, page_rules
from longproof.plan.vllm_pages import layer_specs
from longproof.plan.vllm_pool import build_pool
from longproof.plan.vllm_release import rules_for
from longproof.testing import geometries as models


def launch(*, version: str = "0.24.0", tp: int = 1, **changes: object) -> Launch:
    return Launch(
        engine=PlanEngine.VLLM,
        version=version,
        layout=Layout(tp=tp),
        max_model_len_tokens=262_144,
        **changes,  # type: ignore[arg-type]
    )


def pages(geometry: ModelGeometry, one: Launch, *, layer: int = 0) -> list[int]:
    rules = page_rules(geometry, one, rules_for(one.version))
    return [spec.page_bytes for spec in layer_specs(geometry.layers[layer], geometry, one, rules)]


@pytest.mark.parametrize(
    ("kv_dtype", "tp", "drafted", "block"),
    [
        # bf16, one rank: conv (2 x 16 x 128 + 48 x 128) x 3 x 2 B = 61,440; ssm 48 x 128 x 128 x 4 B = 3,145,728.
        # 3,207,168 / (16 x 4,096 B per token) → 49 x 16
        ("bfloat16", 1, 0, 784),
        # fp8, two ranks, 3 drafted tokens: 5,120 x 6 x 2 + 1,572,864 = 1,634,304 over 16 x 1,024 → 100 x 16
        ("fp8", 2, 3, 1600),
        # int8 with a scale per head and token: 1,024 + 16 B; 5,120 x 7 x 2 + 1,572,864 over 16 x 1,040 → 99 x 16
        ("int8_per_token_head", 2, 4, 1584),
        # nvfp4: 4 heads x 2 x (128 + 16) = 1,152 B; 10,240 x 5 x 2 + 3,145,728 over 16 x 1,152 → 177 x 16
        ("nvfp4", 1, 2, 2832),
    ],
)
def test_the_attention_block_holds_a_state_when_the_model_is_a_hybrid(
    kv_dtype: str, tp: int, drafted: int, block: int
) -> None:
    speculation = Speculation(method="mtp", tokens=drafted) if drafted else None
    one = launch(tp=tp, kv_dtype=kv_dtype, speculation=speculation)

    rules = page_rules(models.qwen36_27b(), one, rules_for(one.version))

    assert rules.block_tokens == block
    assert rules.state_page_bytes >= largest_state_bytes(models.qwen36_27b(), one)


def test_mamba_states_are_float32_when_the_config_does_not_say() -> None:
    # 6 attention layers of 2 heads x 256 B fp8 = 512 B; conv 6,144 x 3 x 2 + ssm 64 x 64 x 128 x 4 = 2,134,016 B:
    # 261 x 16 = 4,176 tokens; padded by 4,176 x 512 / 2,134,016 = 0.19 %
    one = launch(version="0.19.0", kv_dtype="fp8")
    silent = models.nemotron3_nano()
    layers = tuple(
        layer if layer.state is None else replace(layer, state=replace(layer.state, ssm_dtype=None))
        for layer in silent.layers
    )
    silent = replace(silent, layers=layers)

    rules = page_rules(silent, one, rules_for(one.version))

    assert rules.block_tokens == 4176
    padded = rules.state_page_bytes / largest_state_bytes(silent, one) - 1
    assert round(100 * padded, 2) == 0.19


def test_the_state_dtype_follows_the_launch_when_it_is_given() -> None:
    half = launch(vllm=VllmOptions(ssm_dtype="bfloat16"))

    # ssm 1,572,864 elements / 2: 61,440 + 1,572,864 = 1,634,304 B
    assert largest_state_bytes(models.qwen36_27b(), half) == 1_634_304


@pytest.mark.parametrize(
    ("version", "caching", "drafted", "blocks"),
    [
        ("0.24.0", None, 0, 1),  # opt-in before 0.28
        ("0.24.0", True, 0, 2),
        ("0.24.0", True, 3, 5),
        ("0.32.0", None, 0, 2),
        ("0.32.0", False, 4, 5),
    ],
)
def test_a_request_keeps_more_states_when_prefixes_are_cached_or_tokens_drafted(
    version: str, caching: bool | None, drafted: int, blocks: int
) -> None:
    speculation = Speculation(method="ngram", tokens=drafted) if drafted else None
    one = launch(version=version, prefix_caching=caching, speculation=speculation)

    pool = build_pool(models.qwen36_27b(), one)

    assert {group.spec.state_blocks for group in pool.groups if group.spec.kind == "state"} == {blocks}


def test_a_sparse_latent_pays_its_packed_row_and_the_indexer_when_the_cache_is_fp8() -> None:
    one = launch(kv_dtype="fp8", tp=8, block_size_tokens=64)

    # one block of 64: 656 B and 132 B per token, the same on every rank
    assert pages(models.glm5(), one) == [64 * 656, 64 * 132]


def test_the_indexer_is_left_out_when_the_build_shares_it() -> None:
    geometry = models.glm5()
    attention = geometry.layers[0].attention
    assert attention is not None
    indexer = attention.indexer
    assert indexer is not None
    shared = replace(attention, indexer=replace(indexer, shares_top_k=True))  # type: ignore[type-var]
    geometry = replace(geometry, layers=(replace(geometry.layers[0], attention=shared),))
    one = launch(kv_dtype="bfloat16", block_size_tokens=64, vllm=VllmOptions(indexer_on_shared_layers=False))

    assert pages(geometry, one) == [64 * 1152]


def test_auto_follows_the_model_when_the_checkpoint_asks_for_nothing() -> None:
    geometry = replace(models.uniform(2, 8, 128), dtype=given("float32", "test"))

    # 16 tokens x 8 heads x 256 x 4 B
    assert pages(geometry, launch()) == [16 * 8 * 256 * 4]


def test_a_drafted_layer_is_charged_when_mtp_is_served() -> None:
    geometry = replace(models.deepseek_r1(), drafts=models.deepseek_r1().layers[-1:])
    plain, drafted = launch(), launch(speculation=Speculation(method="mtp", tokens=1))

    assert build_pool(geometry, plain).stage_block_bytes == (61 * 16 * 1152,)
    assert build_pool(geometry, drafted).stage_block_bytes == (62 * 16 * 1152,)


def test_a_draft_of_its_own_is_charged_when_its_geometry_is_given() -> None:
    target, draft = models.uniform(4, 8, 128), models.uniform(1, 4, 128)
    one = launch(speculation=Speculation(method="eagle3", tokens=3, draft=draft))

    # 4 x 16 x 8 x 256 x 2 B and 1 x 16 x 4 x 256 x 2 B behind one block table
    assert build_pool(target, one).stage_block_bytes == (4 * 65_536 + 32_768,)


def test_windows_are_charged_as_full_when_the_hybrid_manager_is_off() -> None:
    off = launch(vllm=VllmOptions(hybrid_manager=False))

    pool = build_pool(models.gpt_oss_20b(), off)

    # 24 layers behind one table: 262,144 / 16 blocks
    assert len(pool.groups) == 1
    assert pool.blocks_for(262_144) == 16_384


def test_a_layout_is_refused_when_kv_heads_do_not_divide() -> None:
    with pytest.raises(LayoutError, match="3 tensor-parallel ranks"):
        build_pool(models.uniform(2, 8, 128), launch(tp=3))


def test_an_unknown_cache_dtype_is_refused_when_asked_for() -> None:
    with pytest.raises(UsageError, match="fp3"):
        build_pool(models.uniform(2, 8, 128), launch(kv_dtype="fp3"))


def test_a_hybrid_is_refused_when_more_requests_are_asked_for_than_it_has_state_blocks() -> None:
    # 48 states in 3 groups of 16 beside 16 attention layers; a block is 16 x 784 x 4,096 B = 51,380,224 B: 100 blocks
    budget = same_budget(Layout(), 100 * 51_380_224, "test")
    plenty, enough = launch(version="0.32.0", max_num_seqs=101), launch(version="0.32.0", max_num_seqs=100)
    geometry = models.qwen36_27b()

    refused = plan_vllm(geometry, replace(plenty, max_model_len_tokens=8192), budget).refusal

    assert refused is not None
    assert "lower it to 100" in refused.sentence
    assert plan_vllm(geometry, replace(enough, max_model_len_tokens=8192), budget).refusal is None
