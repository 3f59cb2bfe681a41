"""What a vLLM server tells of itself, and what its start-up log tells → `Deployment`. Pure; names as in vLLM 0.32.

Every server answers /version, /v1/models, /metrics (with the labels of vllm:cache_config_info) and puts a
system_fingerprint into its answers; the rest shows only in /server_info (VLLM_SERVER_DEV_MODE=1) or in the log, which
is given as `known` to `registry.connect`. Capacity is blocks × block size, held against the engine's own count:

    one kind of layer    the engine's count = int(blocks / ceil(window / block) × window)        → blocks × block
    several kinds        the same pool is shared by groups of layers, the counts disagree         → the engine's count
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from longproof.domain.deployment import Deployment, EngineKind
from longproof.domain.measure import Measured, Reading, Unknown, derived, reported
from longproof.engines.json_fields import JsonObject, as_bool, as_int, as_object, as_text
from longproof.engines.known import answered
from longproof.engines.served import ServedModel
from longproof.engines.vllm_log import read_startup_log

_INFO = "vllm:cache_config_info"
_LABELS = f"GET /metrics {_INFO}"
_SERVER_INFO = "GET /server_info"
_LOG = "start-up log"
_QUIET = "vLLM tells it only in /server_info (with VLLM_SERVER_DEV_MODE=1) and in its start-up log"
_SETTINGS = (
    "gpu_memory_utilization",
    "kv_cache_memory_bytes",
    "num_gpu_blocks_override",
    "prefix_caching_hash_algo",
    "cache_dtype",
    "sliding_window",
    "kv_offloading_size",
    "mamba_cache_mode",
    "kv_cache_size_tokens",
    "kv_cache_max_concurrency",
)
_SCHEDULING = (
    "policy",
    "enable_chunked_prefill",
    "async_scheduling",
    "long_prefill_token_threshold",
    "watermark",
    "max_num_queued_reqs",
    "max_num_queued_tokens",
)
_UNSET = frozenset({"None", "none", "[]", ""})


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """Everything one server said. `cache` holds the labels of vllm:cache_config_info, one set per data-parallel engine;
    `config` is `vllm_config` of /server_info; `fingerprint` the system_fingerprint of an answer."""

    model: ServedModel
    version: str | None
    cache: tuple[dict[str, str], ...]
    config: JsonObject | None
    fingerprint: str | None
    chat_template: str | None


def cache_labels(metrics_text: str) -> tuple[dict[str, str], ...]:
    """The label sets of vllm:cache_config_info, without the engine's number; () where the text has none."""
    lines = "\n".join(line for line in metrics_text.splitlines() if line.startswith(_INFO))
    try:
        samples = [s for family in text_string_to_metric_families(lines + "\n") for s in family.samples]
    except ValueError:
        return ()
    return tuple({name: value for name, value in s.labels.items() if name != "engine"} for s in samples)


def deployment(told: Told) -> Deployment:
    """The facts with their provenance; what the server does not say is Unknown with the reason."""
    limit = answered(as_int(told.model.fields.get("max_model_len")), "GET /v1/models max_model_len")
    blocks, block = _smallest(told, "num_gpu_blocks"), _smallest(told, "block_size")
    return Deployment(
        engine=EngineKind.VLLM,
        engine_version=answered(told.version, "GET /version"),
        engine_build=answered(told.fingerprint, "system_fingerprint of an answer"),
        model=reported(told.model.id, "GET /v1/models id"),
        model_file=answered(as_text(told.model.fields.get("root")), "GET /v1/models root"),
        model_sha256=Unknown(reason="vLLM does not report a hash of its weights"),
        weight_dtype=_dtype(told),
        configured_limit_tokens=limit,
        trained_limit_tokens=Unknown(reason="vLLM does not report it; it stands in the model's config.json"),
        slots=_setting_int(told, "scheduler_config", "max_num_seqs"),
        slot_limit_tokens=Unknown(reason="vLLM has no window per sequence beside the configured limit"),
        kv_capacity_tokens=_capacity(told, limit, blocks, block),
        kv_blocks=blocks,
        block_size_tokens=block,
        kv_dtype=_kv_dtype(told),
        kv_unified=derived(True, "vLLM's paged pool is shared by all sequences"),
        prefix_caching=_prefix_caching(told),
        max_batched_tokens=_setting_int(told, "scheduler_config", "max_num_batched_tokens"),
        layout=_layout(told),
        chat_template_sha256=_template_hash(told),
        other=_others(told, blocks, block),
    )


def deployment_of_log(text: str) -> Deployment:
    """What a start-up log tells. Its token count is derived (concurrency × window), so blocks × block size prevail."""
    log = read_startup_log(text)
    sizes = {"tp": log.tensor_parallel, "pp": log.pipeline_parallel, "dp": log.data_parallel}
    tokens, quiet = log.kv_tokens, Unknown(reason="the start-up log does not say it")
    other: dict[str, Reading[str]] = {}
    if tokens is not None:
        other["log_kv_tokens"] = reported(str(tokens), f"{_LOG} KV cache size")
    if log.concurrency is not None:
        source = f"{_LOG} Maximum concurrency for {log.concurrency_tokens} tokens per request"
        other["log_max_concurrency"] = reported(f"{log.concurrency:g}", source)
    if log.enforce_eager is not None:
        other["enforce_eager"] = reported(str(log.enforce_eager), f"{_LOG} enforce_eager")
    if log.quantization is not None:
        other["quantization"] = reported(log.quantization, f"{_LOG} quantization")
    return Deployment(
        engine=EngineKind.VLLM,
        engine_version=answered(log.version, f"{_LOG} version"),
        weight_dtype=answered(log.dtype, f"{_LOG} dtype"),
        configured_limit_tokens=answered(log.max_model_len, f"{_LOG} max_seq_len"),
        slots=answered(log.max_num_seqs, f"{_LOG} max_num_seqs"),
        kv_capacity_tokens=quiet if tokens is None else derived(tokens, f"{_LOG} KV cache size, at the full window"),
        kv_dtype=_resolved_kv_dtype(log.kv_cache_dtype, log.dtype, log.quantization, f"{_LOG} kv_cache_dtype"),
        prefix_caching=answered(log.prefix_caching, f"{_LOG} enable_prefix_caching"),
        max_batched_tokens=answered(log.max_batched_tokens, f"{_LOG} max_num_batched_tokens"),
        layout=answered(_layout_text(sizes | {"dcp": log.decode_context_parallel}), f"{_LOG} config line"),
        other=other,
    )


def _smallest(told: Told, label: str) -> Reading[int]:
    """A whole number among the cache labels; the smallest where data-parallel engines differ."""
    found = [int(labels[label]) for labels in told.cache if labels.get(label, "").isdigit()]
    if not found:
        return Unknown(reason=f"{_INFO} has no {label}" if told.cache else f"/metrics has no {_INFO}")
    many = f", the smallest of {len(found)} data-parallel engines" if len(found) > 1 else ""
    return reported(min(found), f"{_LABELS} {label}{many}")


def _capacity(told: Told, limit: Reading[int], blocks: Reading[int], block: Reading[int]) -> Reading[int]:
    if not isinstance(blocks, Measured) or not isinstance(block, Measured):
        return Unknown(reason=blocks.reason if isinstance(blocks, Unknown) else "the block size is unknown")
    product = blocks.value * block.value
    own = _smallest(told, "kv_cache_size_tokens")
    if isinstance(own, Unknown) or not isinstance(limit, Measured):
        return derived(product, "num_gpu_blocks × block_size; the engine gives no token count to check it against")
    need = -(-limit.value // block.value)
    # vLLM truncates a float product, so its count may be one short of ours
    if abs(int(blocks.value / need * limit.value) - own.value) <= 1:
        return derived(product, "num_gpu_blocks × block_size; one of the blocks is the engine's null block, never used")
    return reported(
        own.value,
        f"{_LABELS} kv_cache_size_tokens: the engine's count at the full window; groups of layers share the pool, "
        f"so it is not num_gpu_blocks × block_size = {product}",
    )


def _kv_dtype(told: Told) -> Reading[str]:
    found = _labels(told, "cache_dtype")
    name = found[0] if len(found) == 1 else None
    model = _section(told, "model_config")
    dtype = (as_text(model.get("dtype")) or "").removeprefix("torch.") or None
    return _resolved_kv_dtype(name, dtype, as_text(model.get("quantization")), f"{_LABELS} cache_dtype")


def _resolved_kv_dtype(name: str | None, weights: str | None, quantization: str | None, source: str) -> Reading[str]:
    """`auto` is the model's own dtype, unless a quantized checkpoint names another for its cache."""
    if name != "auto":
        return answered(name, source)
    if quantization is not None:
        return Unknown(reason=f"{source} is auto, and the {quantization} checkpoint decides")
    if weights is None:
        return Unknown(reason=f"{source} is auto: the model's own dtype; {_QUIET}")
    return derived(weights, f"{source} auto: the model's own dtype")


def _dtype(told: Told) -> Reading[str]:
    name = as_text(_section(told, "model_config").get("dtype"))
    if name is None:
        return Unknown(reason=_QUIET)
    return reported(name.removeprefix("torch."), f"{_SERVER_INFO} model_config.dtype")


def _prefix_caching(told: Told) -> Reading[bool]:
    found = _labels(told, "enable_prefix_caching")
    if found in (["True"], ["False"]):
        return reported(found == ["True"], f"{_LABELS} enable_prefix_caching")
    return Unknown(reason=f"/metrics has no {_INFO} with one enable_prefix_caching")


def _layout(told: Told) -> Reading[str]:
    config = _section(told, "parallel_config")
    names = {"tp": "tensor", "pp": "pipeline", "dp": "data", "dcp": "decode_context", "pcp": "prefill_context"}
    sizes = {short: as_int(config.get(f"{name}_parallel_size")) for short, name in names.items()}
    text = _layout_text(sizes, expert=as_bool(config.get("enable_expert_parallel")) or False)
    if text is not None:
        return reported(text, f"{_SERVER_INFO} parallel_config")
    # vllm-0.32.0-tp2-pp2-1a2b3c4d names degrees above 1; without any, it may have been told not to name them
    words = re.findall(r"-((?:tp|pp|dp|ep)\d*)(?=-)", told.fingerprint or "")
    return reported(" ".join(words), "system_fingerprint of an answer") if words else Unknown(reason=_QUIET)


def _layout_text(sizes: Mapping[str, int | None], *, expert: bool = False) -> str | None:
    """``tp1 pp1 dp1``, with ``dcpN``, ``pcpN`` and ``ep`` where they are used. None without all of the first three."""
    always = ("tp", "pp", "dp")
    if any(sizes.get(name) is None for name in always):
        return None
    words = [f"{name}{size}" for name, size in sizes.items() if size and (size > 1 or name in always)]
    return " ".join([*words, "ep"] if expert else words)


def _template_hash(told: Told) -> Reading[str]:
    if told.chat_template is None:
        return Unknown(reason="vLLM shows its template only with --enable-tokenizer-info-endpoint")
    digest = hashlib.sha256(told.chat_template.encode()).hexdigest()
    return derived(digest, "sha256 of GET /tokenizer_info chat_template")


def _others(told: Told, blocks: Reading[int], block: Reading[int]) -> dict[str, Reading[str]]:
    other: dict[str, Reading[str]] = {}
    for name in _SETTINGS:
        found = [value for value in _labels(told, name) if value not in _UNSET]
        if found:
            other[name] = reported(", ".join(found), f"{_LABELS} {name}")
    if isinstance(blocks, Measured) and isinstance(block, Measured):
        usable = (blocks.value - 1) * block.value
        other["kv_usable_tokens"] = derived(str(usable), "(num_gpu_blocks - 1) × block_size: without the null block")
    other.update(_settings(told, "scheduler_config", _SCHEDULING))
    other.update(_settings(told, "model_config", ("quantization", "enforce_eager")))
    return other


def _settings(told: Told, section: str, names: Iterable[str]) -> dict[str, Reading[str]]:
    values = _section(told, section)
    return {
        name: reported(str(values[name]), f"{_SERVER_INFO} {section}.{name}")
        for name in names
        if values.get(name) is not None
    }


def _labels(told: Told, name: str) -> list[str]:
    """The different values of one cache label, sorted."""
    return sorted({labels[name] for labels in told.cache if name in labels})


def _section(told: Told, name: str) -> JsonObject:
    return as_object((told.config or {}).get(name)) or {}


def _setting_int(told: Told, section: str, name: str) -> Reading[int]:
    value = as_int(_section(told, section).get(name))
    return Unknown(reason=_QUIET) if value is None else reported(value, f"{_SERVER_INFO} {section}.{name}")
