"""How a checkpoint's weights are quantised, from its `quantization_config`.

Sources: transformers 5.19 `utils/quantization_config.py`, compressed-tensors' config groups, NVIDIA ModelOpt's
`quant_algo`, and the checkpoints' own files.
"""

from __future__ import annotations

from collections import Counter

from longproof.geometry.config_fields import ConfigFields
from longproof.geometry.model import Quantization

_PARTS = ("attention", "mlp", "experts")


def quantization_of(fields: ConfigFields) -> Quantization | None:
    """What the config says of it; None when nothing is quantised."""
    found = fields.section("quantization_config") or fields.section("compression_config")
    if found is None:
        return None
    method = str(found.stated("quant_method") or found.stated("quant_algo") or "unknown").lower()
    ignored = _ignored(found)
    kv_dtype = _kv_dtype(found)
    bits, group, scale_bits = _numbers(found, method)
    return Quantization(
        method=method,
        bits=bits,
        group_size=group,
        scale_bits=scale_bits,
        kv_dtype=kv_dtype,
        ignored=ignored,
        parts=_parts(method, ignored),
        part_bits=_mixed(found) or _expert_bits(fields),
    )


def _expert_bits(fields: ConfigFields) -> tuple[tuple[str, float], ...]:
    """DeepSeek V4 keeps its experts in fp4 with a scale byte per 32 beside an fp8 rest."""
    return (("experts", 4.25),) if fields.text("expert_dtype") == "fp4" else ()


def _mixed(found: ConfigFields) -> tuple[tuple[str, float], ...]:
    """ModelOpt's MIXED_PRECISION names the format of every layer: the commonest one of each part counts for it."""
    listed = found.section("quantized_layers")
    if listed is None:
        return ()
    seen: dict[str, Counter[float]] = {part: Counter() for part in _PARTS}
    for module in listed.values:
        entry = listed.section(module)
        bits = None if entry is None else _bits_of(str(entry.stated("quant_algo") or "").upper())
        if bits is not None:
            seen[_part_of(module)][bits] += 1
    return tuple((part, counted.most_common(1)[0][0]) for part, counted in seen.items() if counted)


def _bits_of(algo: str) -> float | None:
    for word, bits in (("NVFP4", 4.5), ("MXFP4", 4.25), ("MXFP8", 8.25), ("FP8", 8.0), ("INT4", 4.125), ("INT8", 8.0)):
        if word in algo:
            return bits
    return None


def _part_of(module: str) -> str:
    if "attn" in module or "attention" in module:
        return "attention"
    return "experts" if ".experts" in module and "shared" not in module else "mlp"


def _numbers(found: ConfigFields, method: str) -> tuple[float | None, int | None, int]:
    """(bits of a weight, weights per scale, bits of a scale and zero point)."""
    algo = str(found.stated("quant_algo") or "").upper()
    if method == "mxfp4":
        return 4, 32, 8
    if "NVFP4" in algo or method == "nvfp4":
        return 4, found.whole("group_size") or 16, 8
    if "FP8" in algo or method in ("fp8", "fbgemm_fp8"):
        block = found.wholes("weight_block_size")
        return 8, (block[0] * block[1] if block and len(block) == 2 else None), 32
    if method in ("awq", "gptq"):
        bits = found.whole("bits") or found.whole("w_bit")
        zeros = bits or 4
        group = found.whole("group_size") or found.whole("q_group_size")
        return bits, (group if group and group > 0 else None), 16 + zeros
    if method == "compressed-tensors":
        return _compressed_tensors(found)
    if method == "bitsandbytes":
        return (4, 64, 8) if found.flag("load_in_4bit") else (8, None, 32)
    return found.whole("bits"), found.whole("group_size"), 16


def _compressed_tensors(found: ConfigFields) -> tuple[float | None, int | None, int]:
    groups = found.section("config_groups")
    first = None if groups is None or not groups.values else groups.section(next(iter(groups.values)))
    weights = None if first is None else first.section("weights")
    if weights is None:
        return None, None, 0
    bits, group = weights.whole("num_bits"), weights.whole("group_size")
    if weights.text("strategy") == "block":
        block = weights.wholes("block_structure")
        group = block[0] * block[1] if block and len(block) == 2 else group
    scale_bits = 8 if (weights.text("type") == "float" and bits == 4) else 16
    return bits, group, scale_bits


def _ignored(found: ConfigFields) -> tuple[str, ...]:
    for name in ("ignore", "modules_to_not_convert", "ignored_layers", "exclude_modules"):
        listed = found.sequence(name)
        if listed is not None:
            return tuple(str(item) for item in listed)
    return ()


def _kv_dtype(found: ConfigFields) -> str | None:
    algo = found.text("kv_cache_quant_algo") or found.text("kv_cache_quant_method")
    if algo is not None:
        return algo.lower()
    scheme = found.section("kv_cache_scheme")
    if scheme is not None and scheme.text("type") == "float" and scheme.whole("num_bits") == 8:
        return "fp8"
    return None


def _parts(method: str, ignored: tuple[str, ...]) -> tuple[str, ...]:
    """Which of attention, mlp and experts are quantised: those that no pattern excludes as a whole."""
    if method == "mxfp4":  # gpt-oss: the experts alone
        return ("experts",)
    kept = list(_PARTS)
    if any(("attn" in name or "attention" in name) and ("*" in name or "re:" in name) for name in ignored):
        kept.remove("attention")
    if any("shared_expert" in name and ("*" in name or "re:" in name) for name in ignored):
        kept.remove("mlp")
    return tuple(kept)
