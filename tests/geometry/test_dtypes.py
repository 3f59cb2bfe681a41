"""What a cached vector weighs."""

from __future__ import annotations

import pytest

from longproof.errors import GeometryError, UsageError
from longproof.geometry.dtypes import (
    KvDtype,
    bits_per_element,
    compressed_bytes,
    indexer_bytes,
    latent_bytes,
    parse_kv_dtype,
    vector_bytes,
)
from longproof.geometry.kinds import Indexer


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        (KvDtype.FLOAT32, 4096),  # 8 heads x 128 = 1024 elements
        (KvDtype.BFLOAT16, 2048),
        (KvDtype.FP8, 1024),
        (KvDtype.NVFP4, 576),  # 1024 / 2 + 1024 / 16 = 512 + 64
        (KvDtype.INT8_PER_TOKEN_HEAD, 1056),  # 1024 + 8 scales of 4 B
        (KvDtype.FP8_PER_TOKEN_HEAD, 1056),
        (KvDtype.INT4_PER_TOKEN_HEAD, 544),  # 512 + 32
        (KvDtype.Q8_0, 1088),  # 32 blocks of 34 B
        (KvDtype.Q5_1, 768),
        (KvDtype.Q5_0, 704),
        (KvDtype.Q4_1, 640),
        (KvDtype.Q4_0, 576),
        (KvDtype.IQ4_NL, 576),
    ],
)
def test_row_of_eight_heads_weighs_its_elements_and_scales(dtype: KvDtype, expected: int) -> None:
    assert vector_bytes(dtype, 8 * 128, heads=8) == expected


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        (KvDtype.BFLOAT16, 1152),  # 576 x 2
        (KvDtype.FP8, 576),
        (KvDtype.FP8_DS_MLA, 656),  # 512 + 4 scales x 4 + 64 x 2
        (KvDtype.NVFP4, 352),  # 256 + 32 + 64
        (KvDtype.NVFP4_DS_MLA, 352),
        (KvDtype.Q8_0, 612),  # 18 blocks x 34
    ],
)
def test_mla_latent_weighs_what_engines_store(dtype: KvDtype, expected: int) -> None:
    assert latent_bytes(dtype, 512, 64) == expected


def test_deepseek_v4_entry_weighs_584_bytes_when_fp8() -> None:
    # 448 + 64 x 2 + 7 scale bytes padded to 8
    assert compressed_bytes(KvDtype.FP8, 512, 64) == 584
    assert compressed_bytes(KvDtype.BFLOAT16, 512, 64) == 1024


def test_indexer_key_weighs_132_bytes_whatever_the_cache_holds() -> None:
    dsa = Indexer(head_dim=128, heads=64, top_k=2048)
    assert [indexer_bytes(dsa, dtype) for dtype in (KvDtype.BFLOAT16, KvDtype.FP8_DS_MLA)] == [132, 132]


def test_indexer_key_follows_the_cache_when_it_has_no_layout_of_its_own() -> None:
    blocks = Indexer(head_dim=128, heads=4, top_k=16, scaled_fp8=False)
    assert (indexer_bytes(blocks, KvDtype.BFLOAT16), indexer_bytes(blocks, KvDtype.FP8)) == (256, 128)


def test_blocks_that_do_not_fill_are_refused() -> None:
    with pytest.raises(GeometryError, match="80 elements do not fill blocks of 32"):
        vector_bytes(KvDtype.Q8_0, 80, heads=1)


@pytest.mark.parametrize(
    ("word", "dtype"),
    [
        ("bf16", KvDtype.BFLOAT16),
        ("f16", KvDtype.FLOAT16),
        ("fp8_e4m3", KvDtype.FP8),
        ("fp8_e5m2", KvDtype.FP8),
        ("fp8_ds_mla", KvDtype.FP8_DS_MLA),
        ("torch.bfloat16", KvDtype.BFLOAT16),
        (" Q8_0 ", KvDtype.Q8_0),
    ],
)
def test_engines_words_are_understood(word: str, dtype: KvDtype) -> None:
    assert parse_kv_dtype(word) is dtype


def test_auto_is_the_models_dtype_and_refused_without_one() -> None:
    assert parse_kv_dtype("auto", "float16") is KvDtype.FLOAT16
    with pytest.raises(UsageError, match="does not say its own dtype"):
        parse_kv_dtype("auto")


def test_unknown_word_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UsageError) as refusal:
        parse_kv_dtype("fp3")
    assert "q8_0" in refusal.value.advice


def test_bits_include_block_scales() -> None:
    # 34 x 8 / 32 and 9 x 8 / 16
    assert (float(bits_per_element(KvDtype.Q8_0)), float(bits_per_element(KvDtype.NVFP4))) == (8.5, 4.5)
