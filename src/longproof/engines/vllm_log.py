"""What a vLLM start-up log says. Pure; formats as vLLM 0.32 prints them, older ones where they differ.

    Initializing a V1 LLM engine (v0.32.0) with config: model='…', … dtype=torch.bfloat16, max_seq_len=8192, …
    CPU KV cache size: 46,592 tokens, Maximum concurrency for 8,192 tokens per request: 5.69x

The second line names the device ("GPU" on CUDA); older releases print it as two. Its token count is concurrency times
window, so for models with several kinds of layers it holds at the full window only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_KV_TOKENS = re.compile(r"\b[A-Z]{3}(?: \+ host)? KV cache size: ([\d,]+) tokens")
_CONCURRENCY = re.compile(r"Maximum concurrency for ([\d,]+) tokens per request: ([\d.]+)x")
_ENGINE = re.compile(r"Initializing a V1 LLM engine \(v(\S+?)\) with config: (.*)")
_CHUNK = re.compile(r"hunked prefill is enabled with max_num_batched_tokens=(\d+)")
_ARGUMENTS = re.compile(r"non-default args: (\{.*\})")


@dataclass(frozen=True, slots=True, kw_only=True)
class StartupLog:
    """Facts of one start, None where the log does not say. `kv_tokens`, `concurrency` and `concurrency_tokens` are the
    engine's own capacity line; `dtype` without ``torch.``; the parallel sizes count ranks."""

    version: str | None = None
    kv_tokens: int | None = None
    concurrency: float | None = None
    concurrency_tokens: int | None = None
    max_model_len: int | None = None
    dtype: str | None = None
    kv_cache_dtype: str | None = None
    quantization: str | None = None
    prefix_caching: bool | None = None
    enforce_eager: bool | None = None
    tensor_parallel: int | None = None
    pipeline_parallel: int | None = None
    data_parallel: int | None = None
    decode_context_parallel: int | None = None
    max_batched_tokens: int | None = None
    max_num_seqs: int | None = None


def read_startup_log(text: str) -> StartupLog:
    """The facts of the last start in a log. Anything else in it is passed over."""
    text = _COLOUR.sub("", text)
    version, config = _last(_ENGINE, text) or (None, "")
    kv = _last(_KV_TOKENS, text)
    concurrency = _last(_CONCURRENCY, text)
    chunk = _last(_CHUNK, text)
    arguments = (_last(_ARGUMENTS, text) or ("",))[0]
    batched = _argument(arguments, "max_num_batched_tokens")
    return StartupLog(
        version=version,
        kv_tokens=_count(kv[0]) if kv else None,
        concurrency=float(concurrency[1]) if concurrency else None,
        concurrency_tokens=_count(concurrency[0]) if concurrency else None,
        max_model_len=_number(config, "max_seq_len"),
        dtype=_word(config, "dtype"),
        kv_cache_dtype=_word(config, "kv_cache_dtype"),
        quantization=_word(config, "quantization"),
        prefix_caching=_flag(config, "enable_prefix_caching"),
        enforce_eager=_flag(config, "enforce_eager"),
        tensor_parallel=_number(config, "tensor_parallel_size"),
        pipeline_parallel=_number(config, "pipeline_parallel_size"),
        data_parallel=_number(config, "data_parallel_size"),
        decode_context_parallel=_number(config, "decode_context_parallel_size"),
        max_batched_tokens=int(chunk[0]) if chunk else batched,
        max_num_seqs=_argument(arguments, "max_num_seqs"),
    )


def _last(pattern: re.Pattern[str], text: str) -> tuple[str, ...] | None:
    found = list(pattern.finditer(text))
    return tuple(found[-1].groups()) if found else None


def _count(text: str) -> int:
    return int(text.replace(",", ""))


def _word(config: str, name: str) -> str | None:
    """``name=value`` of the config line; None for absent and for ``None``."""
    found = re.search(rf"(?:^|[ ,]){name}=(?:torch\.)?'?([A-Za-z0-9_.-]+)'?", config)
    return None if found is None or found.group(1) == "None" else found.group(1)


def _number(config: str, name: str) -> int | None:
    word = _word(config, name)
    return int(word) if word is not None and word.isdigit() else None


def _flag(config: str, name: str) -> bool | None:
    return {"True": True, "False": False}.get(_word(config, name) or "")


def _argument(arguments: str, name: str) -> int | None:
    """One whole number out of the printed arguments; the rest (paths, keys) is none of our business."""
    found = re.search(rf"'{name}': (\d+)", arguments)
    return None if found is None else int(found.group(1))
