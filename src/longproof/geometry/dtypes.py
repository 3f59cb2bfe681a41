"""What one cached vector weighs, exactly, in each format an engine can store it in.

Sources: vLLM 0.32 `v1/kv_cache_interface.py`, `nvfp4_kv_cache_full_dim` and `models/deepseek_v4/attention.py`; ggml's
block sizes as in gguf-py 0.19 (GGML_QUANT_SIZES); SGLang 0.5.23 for fp8 and the indexer's layout.
"""

from __future__ import annotations

from enum import StrEnum
from fractions import Fraction

from longproof.errors import GeometryError, UsageError
from longproof.geometry.kinds import Indexer


class KvDtype(StrEnum):
    """How K, V and latents are stored. Names as vLLM has them, llama.cpp's for its own block formats."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    FP8 = "fp8"
    """One byte per element, scales per tensor: e4m3 and e5m2 alike."""
    INT8 = "int8"
    FP8_DS_MLA = "fp8_ds_mla"
    """MLA latents: fp8 with scales, the rope part in bfloat16 (656 B for 512 + 64)."""
    NVFP4_DS_MLA = "nvfp4_ds_mla"
    """MLA latents: 4 bits with scales, the rope part in fp8 (352 B for 512 + 64)."""
    NVFP4 = "nvfp4"
    """4 bits and one fp8 scale per 16 elements."""
    INT8_PER_TOKEN_HEAD = "int8_per_token_head"  # noqa: S105 - a format, no password
    FP8_PER_TOKEN_HEAD = "fp8_per_token_head"  # noqa: S105 - a format, no password
    """One byte per element and a 4-byte scale per head and token, for K and for V."""
    INT4_PER_TOKEN_HEAD = "int4_per_token_head"  # noqa: S105 - a format, no password
    Q8_0 = "q8_0"
    Q5_1 = "q5_1"
    Q5_0 = "q5_0"
    Q4_1 = "q4_1"
    Q4_0 = "q4_0"
    IQ4_NL = "iq4_nl"


# dtype → (elements per block, bytes per block)
_BLOCKS = {
    KvDtype.FLOAT32: (1, 4),
    KvDtype.FLOAT16: (1, 2),
    KvDtype.BFLOAT16: (1, 2),
    KvDtype.FP8: (1, 1),
    KvDtype.INT8: (1, 1),
    KvDtype.FP8_DS_MLA: (1, 1),
    KvDtype.NVFP4_DS_MLA: (16, 9),
    KvDtype.NVFP4: (16, 9),
    KvDtype.INT8_PER_TOKEN_HEAD: (1, 1),
    KvDtype.FP8_PER_TOKEN_HEAD: (1, 1),
    KvDtype.INT4_PER_TOKEN_HEAD: (2, 1),
    KvDtype.Q8_0: (32, 34),
    KvDtype.Q5_1: (32, 24),
    KvDtype.Q5_0: (32, 22),
    KvDtype.Q4_1: (32, 20),
    KvDtype.Q4_0: (32, 18),
    KvDtype.IQ4_NL: (32, 18),
}
_PER_TOKEN_HEAD = (KvDtype.INT8_PER_TOKEN_HEAD, KvDtype.FP8_PER_TOKEN_HEAD, KvDtype.INT4_PER_TOKEN_HEAD)
_SCALE_BYTES = 4
_OTHER_NAMES = {
    "f32": KvDtype.FLOAT32, "fp32": KvDtype.FLOAT32, "float": KvDtype.FLOAT32,
    "f16": KvDtype.FLOAT16, "fp16": KvDtype.FLOAT16, "half": KvDtype.FLOAT16,
    "bf16": KvDtype.BFLOAT16,
    "fp8_e4m3": KvDtype.FP8, "fp8_e5m2": KvDtype.FP8, "fp8_inc": KvDtype.FP8, "float8_e4m3fn": KvDtype.FP8,
    "float8_e5m2": KvDtype.FP8, "fp8_e4m3fn": KvDtype.FP8,
    "nvfp4_4over6": KvDtype.NVFP4, "fp4_e2m1": KvDtype.NVFP4,
}  # fmt: skip


def parse_kv_dtype(text: str, model_dtype: str | None = None) -> KvDtype:
    """An engine's word for a cache format; "auto" is the model's own dtype. Raises UsageError for an unknown word.

    SGLang's fp4_e2m1 is counted as NVFP4 (one scale byte per 16 elements).
    """
    word = text.strip().lower().removeprefix("torch.")
    if word == "auto":
        if model_dtype is None or model_dtype == "auto":
            raise UsageError(
                "the KV cache dtype is 'auto' and the model does not say its own dtype",
                advice="name the KV cache dtype, e.g. bfloat16",
            )
        return parse_kv_dtype(model_dtype)
    if word in _OTHER_NAMES:
        return _OTHER_NAMES[word]
    try:
        return KvDtype(word)
    except ValueError:
        known = ", ".join(sorted({*(d.value for d in KvDtype), *_OTHER_NAMES}))
        raise UsageError(f"'{text}' is not a known KV cache dtype", advice=f"use one of: {known}") from None


def bits_per_element(dtype: KvDtype) -> Fraction:
    """Bits of one element with the scales of its block, without scales per head: q8_0 is 17/2."""
    per_block, block_bytes = _BLOCKS[dtype]
    return Fraction(8 * block_bytes, per_block)


def vector_bytes(dtype: KvDtype, elements: int, *, heads: int) -> int:
    """Bytes of one token's K (or V) row of `elements` = heads x head dimension. Raises GeometryError: broken block."""
    per_block, block_bytes = _BLOCKS[dtype]
    if elements % per_block:
        raise GeometryError(
            f"{elements} elements do not fill blocks of {per_block}, which {dtype.value} needs",
            advice="use a KV cache dtype without blocks, e.g. bfloat16 or fp8",
        )
    scales = heads * _SCALE_BYTES if dtype in _PER_TOKEN_HEAD else 0
    return elements // per_block * block_bytes + scales


def latent_bytes(dtype: KvDtype, kv_lora_rank: int, rope_dim: int) -> int:
    """Bytes of one MLA latent of kv_lora_rank + rope_dim elements.

    fp8_ds_mla: rank x 1 + one 4-byte scale per 128 + rope x 2 (656 for 512 + 64). nvfp4 with MLA: rank / 2 + one
    scale byte per 16 + rope x 1 (352).
    """
    if dtype is KvDtype.FP8_DS_MLA:
        return kv_lora_rank + -(-kv_lora_rank // 128) * _SCALE_BYTES + 2 * rope_dim
    if dtype in (KvDtype.NVFP4, KvDtype.NVFP4_DS_MLA):
        return kv_lora_rank // 2 + kv_lora_rank // 16 + rope_dim
    return vector_bytes(dtype, kv_lora_rank + rope_dim, heads=1)


def compressed_bytes(dtype: KvDtype, head_dim: int, rope_dim: int) -> int:
    """Bytes of one DeepSeek V4 entry: fp8 stores 448 + 64 x 2 + 8 scale bytes = 584 for 512 with 64 rope elements.

    The scales are one byte per 64 elements, padded to a multiple of 8 (vLLM 0.32 `state_content_bytes`).
    """
    if dtype in (KvDtype.FP8, KvDtype.FP8_DS_MLA):
        plain = head_dim - rope_dim
        scales = -(-plain // 64)
        return plain + 2 * rope_dim + -(-scales // 8) * 8
    return vector_bytes(dtype, head_dim, heads=1)


def indexer_bytes(indexer: Indexer, dtype: KvDtype) -> int:
    """Bytes of one indexer key: fp8 and a 4-byte scale per 128 elements (132 for 128), whatever the cache's dtype.

    Where the indexer has no such layout (`scaled_fp8` false) its key is stored in the cache's dtype.
    """
    if indexer.scaled_fp8:
        return indexer.head_dim + -(-indexer.head_dim // 128) * _SCALE_BYTES
    return vector_bytes(dtype, indexer.head_dim, heads=1)


_WEIGHT_BYTES = {
    "float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1, "int8": 1,
}  # fmt: skip


def weight_element_bytes(dtype: str) -> int:
    """Bytes of one unquantised weight by HF dtype name. Raises GeometryError for a name that is not known."""
    word = dtype.removeprefix("torch.").lower()
    if word not in _WEIGHT_BYTES:
        raise GeometryError(
            f"'{dtype}' is not a known weight dtype",
            advice=f"use one of: {', '.join(_WEIGHT_BYTES)}",
            missing=("dtype",),
        )
    return _WEIGHT_BYTES[word]


STATE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "fp8": 1}
"""Bytes of one element of a recurrent state by dtype name."""
