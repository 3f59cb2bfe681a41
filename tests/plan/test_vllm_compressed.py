"""vLLM and DeepSeek V4: pages of seven kinds, packed into one block, against what two servers said."""

from __future__ import annotations

import pytest

from longproof.errors import UsageError
from longproof.geometry.kinds import CompressedAttention, Indexer
from longproof.geometry.model import Layer, ModelGeometry
from longproof.plan.capacity import Launch, PlanEngine, same_budget
from longproof.plan.vllm_capacity import plan_vllm
from longproof.plan.vllm_packed import packed_groups
from longproof.plan.vllm_pool import build_pool
from longproof.plan.vllm_specs import CacheKind, CacheSpec, LayerCache
from longproof.testing import geometries as models

GIB = 1 << 30
PRO = [128, 128, *[4, 128] * 29, 4]
FLASH = [0, 0, *[4, 128] * 20, 4]


def compressed(ratios: list[int]) -> ModelGeometry:
    def layer(index: int, ratio: int) -> Layer:
        indexer = Indexer(head_dim=128, heads=64, top_k=1024) if ratio == 4 else None
        attention = CompressedAttention(
            query_heads=64, head_dim=512, rope_dim=64, window_tokens=128, ratio=ratio, indexer=indexer
        )
        return Layer(index=index, attention=attention)

    return models.geometry([layer(i, ratio) for i, ratio in enumerate(ratios)], architecture="deepseek_v4")


def launch(length: int, **changes: object) -> Launch:
    return Launch(
        engine=PlanEngine.VLLM,
        **{"version": "0.32.0", "kv_dtype": "fp8", **changes},  # type: ignore[arg-type]
        max_model_len_tokens=length,
    )


def test_a_million_tokens_need_what_a_refused_start_said_when_batches_are_large() -> None:
    # 61 layers, batches of 16,384 (a 192 GiB device), two in flight: 32,768 tokens.
    # block: 30 x 37,440 (64 entries of 584 B, up to 576) + 31 x 1,728 (2 entries) + 30 x 8,640 (64 keys of 132 B)
    #        = 1,435,968 B
    # need: 1,048,576 / 256 = 4,096 | windows 2 x (ceil(32,895 / 64) + 1) = 1,030
    #       ratio-4 states ceil(32,775 / 4) + 1 = 8,195 | ratio-128 states ceil(32,895 / 8) + 1 = 4,113 → 17,434 blocks
    # 17,434 x 1,435,968 B = 23.32 GiB
    pool = build_pool(compressed(PRO), launch(1_048_576, device_memory_bytes=192 * GIB, device_name="MI300X"))

    assert pool.stage_block_bytes == (1_435_968,)
    assert pool.blocks_for(1_048_576) == 17_434
    assert round(17_434 * 1_435_968 / GIB, 2) == 23.32


def test_the_printed_tokens_match_a_start_when_the_model_has_plain_windows_too() -> None:
    # 43 layers, two of them windows alone; block 21 x 37,440 + 20 x 1,728 + 21 x 8,640 = 1,002,240 B.
    # 131,072 tokens with 2 x 8,192 in flight: 512 + 518 + 4,099 + 2,065 = 7,194 blocks; 83,062 blocks of 77.53 GiB
    found = plan_vllm(
        compressed(FLASH),
        one := launch(131_072, max_num_batched_tokens=8192),
        same_budget(one.layout, 83_062 * 1_002_240, "test"),
    )

    assert found.need.blocks == 7194
    assert found.report.tokens == 1_513_358
    assert [(g.kind, g.layers) for g in found.need.groups] == [
        ("sliding", 22),
        ("sliding", 21),
        ("mla", 62),
        ("sliding", 42),
        ("sliding", 20),
    ]


def test_fp8_is_taken_when_the_cache_dtype_is_not_given() -> None:
    auto, fp8 = launch(131_072, kv_dtype="auto"), launch(131_072)

    assert build_pool(compressed(FLASH), auto).stage_block_bytes == build_pool(compressed(FLASH), fp8).stage_block_bytes


def test_an_older_release_is_not_planned_when_its_packing_was_not_read() -> None:
    with pytest.raises(UsageError, match=r"0\.25\.0"):
        build_pool(compressed(FLASH), launch(131_072, version="0.25.0"))


def spec(page: int, *, block: int = 16, window: int = 8) -> CacheSpec:
    return CacheSpec(
        kind=CacheKind.SLIDING, shape=(), block_tokens=block, content_bytes=page, page_bytes=page, window_tokens=window
    )


def test_windows_are_split_to_what_a_block_holds_when_no_bucket_mixes_page_sizes() -> None:
    # 4 entries of 100 bytes make a block of 400; windows of 150 bytes then go two to a group: 5 layers, 3 groups
    entries = CacheSpec(kind=CacheKind.MLA, shape=(), block_tokens=256, content_bytes=100, page_bytes=100)
    caches = [LayerCache(layer=i, spec=entries) for i in range(4)]
    caches += [LayerCache(layer=i, spec=spec(150)) for i in range(4, 9)]

    assert [len(group.members) for group in packed_groups(caches)] == [4, 2, 2, 1]


def test_a_larger_bucket_is_split_when_another_repeats_a_pattern() -> None:
    # 3 layers of two sizes must stay together (at least 3 repeats); 6 layers of one size then make 2 groups of 3
    mixed = [LayerCache(layer=i, spec=spec(page)) for i in range(3) for page in (100, 40)]
    single = [LayerCache(layer=i, spec=spec(90, window=128)) for i in range(6)]

    groups = packed_groups([*mixed, *single])

    assert [tuple(m.layer for m in group.members) for group in groups] == [(0, 0, 1, 1, 2, 2), (0, 2, 4), (1, 3, 5)]
