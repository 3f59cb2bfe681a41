"""Stages and ranks."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longproof.errors import LayoutError
from longproof.geometry.dtypes import KvDtype
from longproof.geometry.footprint import growth_bytes_per_token, kv_bytes, layer_kv_bytes
from longproof.geometry.kinds import GroupedAttention, LatentAttention, LayerKind
from longproof.geometry.model import Layer, ModelGeometry
from longproof.geometry.sharding import (
    PartitionRule,
    kv_heads_on_rank,
    rank_layer,
    rank_state,
    stage_bounds,
    stage_partition,
)

Read = Callable[..., ModelGeometry]
BF16 = KvDtype.BFLOAT16


@pytest.mark.parametrize(
    ("layers", "stages", "rule", "expected"),
    [
        (61, 8, PartitionRule.VLLM, (7, 7, 8, 8, 8, 8, 8, 7)),  # 5 left over: stages 6, 5, 4, 3, 2
        (61, 8, PartitionRule.SGLANG, (7, 7, 7, 8, 8, 8, 8, 8)),
        (61, 8, PartitionRule.TENSORRT_LLM, (8, 8, 8, 8, 8, 7, 7, 7)),
        (30, 4, PartitionRule.VLLM, (7, 8, 8, 7)),
        (5, 2, PartitionRule.VLLM, (3, 2)),
        (32, 4, PartitionRule.SGLANG, (8, 8, 8, 8)),
    ],
)
def test_leftover_layers_go_where_the_engine_puts_them(
    layers: int, stages: int, rule: PartitionRule, expected: tuple[int, ...]
) -> None:
    assert stage_partition(layers, stages, rule) == expected


def test_given_partition_is_taken_and_checked() -> None:
    assert stage_bounds(stage_partition(30, 2, given=(20, 10))) == ((0, 20), (20, 30))
    with pytest.raises(LayoutError, match="gives 29 layers to 2 stages; the model has 30") as refusal:
        stage_partition(30, 2, given=(20, 9))
    assert refusal.value.rule


def test_more_stages_than_layers_are_refused() -> None:
    with pytest.raises(LayoutError, match="18 layers cannot be spread over 19 stages"):
        stage_partition(18, 19)


@given(layers=st.integers(1, 200), stages=st.integers(1, 32), rule=st.sampled_from(PartitionRule))
def test_every_layer_is_on_exactly_one_stage(layers: int, stages: int, rule: PartitionRule) -> None:
    if stages > layers:
        return
    partition = stage_partition(layers, stages, rule)
    assert sum(partition) == layers
    assert max(partition) - min(partition) <= 1


@pytest.mark.parametrize(("heads", "ranks", "expected"), [(8, 4, 2), (8, 8, 1), (8, 16, 1), (1, 2, 1), (3, 1, 3)])
def test_kv_heads_repeat_when_there_are_fewer_than_ranks(heads: int, ranks: int, expected: int) -> None:
    assert kv_heads_on_rank(heads, ranks) == expected


def test_kv_heads_that_do_not_divide_are_refused() -> None:
    with pytest.raises(LayoutError, match="3 KV heads cannot be split over 2"):
        kv_heads_on_rank(3, 2)


def test_latents_are_whole_on_every_rank(model: Read) -> None:
    layer = model("deepseek-ai/DeepSeek-R1").layers[0]
    shared = rank_layer(layer, 8, mlp_ranks=8, expert_ranks=8)
    assert isinstance(shared.attention, LatentAttention)
    assert layer_kv_bytes(shared, 1000, BF16) == layer_kv_bytes(layer, 1000, BF16) == 1000 * 1152


def test_states_divide_and_groups_repeat(model: Read) -> None:
    gdn = model("Qwen/Qwen3.5-35B-A3B").layers[0].state
    mamba = model("tiiuae/Falcon-H1-1.5B-Instruct").layers[0].state
    assert gdn is not None
    assert mamba is not None
    # 32 value heads and 16 key heads over 4; 48 heads over 4 with the only group on each
    assert (rank_state(gdn, 4).heads, rank_state(gdn, 4).groups) == (8, 4)
    assert (rank_state(mamba, 4).heads, rank_state(mamba, 4).groups) == (12, 1)


def test_state_heads_that_do_not_divide_are_refused(model: Read) -> None:
    state = model("Qwen/Qwen3.5-35B-A3B").layers[0].state
    assert state is not None
    with pytest.raises(LayoutError, match="32 gdn heads cannot be split over 3"):
        rank_state(state, 3)
    with pytest.raises(LayoutError, match="16 gdn key heads cannot be split over 32"):
        rank_state(state, 32)


def test_weights_of_a_rank_are_its_share(model: Read) -> None:
    layer = model("meta-llama/Llama-3.1-8B-Instruct").layers[0]
    shared = rank_layer(layer, 16, mlp_ranks=16).weights
    assert shared is not None
    # q and o: 2 x 4096 x 4096 / 16; k and v: 8 heads on 16 ranks are one head each, 2 x 4096 x 128
    assert shared.attention == 2 * 4096 * 4096 // 16 + 2 * 4096 * 128
    assert (shared.mlp, shared.replicated) == (3 * 4096 * 14336 // 16, 2 * 4096)


heads = st.sampled_from([1, 2, 4, 8, 16, 32])


@st.composite
def grouped(draw: st.DrawFn) -> GroupedAttention:
    kind = draw(st.sampled_from([LayerKind.FULL, LayerKind.SLIDING, LayerKind.CHUNKED]))
    bound = draw(st.integers(1, 5000))
    return GroupedAttention(
        kind=kind,
        query_heads=32,
        kv_heads=draw(heads),
        k_dim=draw(st.sampled_from([64, 96, 128, 192])),
        v_dim=draw(st.sampled_from([64, 128])),
        window_tokens=bound if kind is LayerKind.SLIDING else None,
        chunk_tokens=bound if kind is LayerKind.CHUNKED else None,
    )


dtypes = st.sampled_from([KvDtype.BFLOAT16, KvDtype.FP8, KvDtype.INT8_PER_TOKEN_HEAD, KvDtype.NVFP4, KvDtype.Q8_0])


@given(attention=grouped(), tokens=st.integers(0, 20_000), more=st.integers(0, 20_000), dtype=dtypes)
def test_bytes_never_shrink_with_tokens(attention: GroupedAttention, tokens: int, more: int, dtype: KvDtype) -> None:
    layer = Layer(index=0, attention=attention)
    assert layer_kv_bytes(layer, tokens + more, dtype) >= layer_kv_bytes(layer, tokens, dtype)


@given(attentions=st.lists(grouped(), max_size=6), cut=st.integers(0, 6), tokens=st.integers(0, 9000), dtype=dtypes)
def test_bytes_add_up_over_layers(attentions: list[GroupedAttention], cut: int, tokens: int, dtype: KvDtype) -> None:
    layers = [Layer(index=i, attention=attention) for i, attention in enumerate(attentions)]
    assert kv_bytes(layers, tokens, dtype) == kv_bytes(layers[:cut], tokens, dtype) + kv_bytes(
        layers[cut:], tokens, dtype
    )


@given(attention=grouped(), ranks=heads, tokens=st.integers(0, 20_000), dtype=dtypes)
def test_rank_holds_at_least_its_share_and_at_most_all(
    attention: GroupedAttention, ranks: int, tokens: int, dtype: KvDtype
) -> None:
    layer = Layer(index=0, attention=attention)
    whole, share = layer_kv_bytes(layer, tokens, dtype), layer_kv_bytes(rank_layer(layer, ranks), tokens, dtype)
    assert whole <= share * ranks
    assert share <= whole
    # heads repeat only as often as ranks outnumber them
    assert share * min(ranks, attention.kv_heads) == whole


@given(attention=grouped(), tokens=st.integers(5000, 20_000))
def test_growth_is_what_a_further_token_adds(attention: GroupedAttention, tokens: int) -> None:
    layer = Layer(index=0, attention=attention)
    added = layer_kv_bytes(layer, tokens + 1, BF16) - layer_kv_bytes(layer, tokens, BF16)
    assert added == growth_bytes_per_token([layer], BF16)
