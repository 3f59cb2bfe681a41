"""vLLM 0.32's /metrics (v1/metrics/loggers.py, kv_connector/v1/nixl/stats.py): those families that our engine fills."""

from __future__ import annotations

from longproof.testing.engine_state import EngineState

_FINISHED = ("stop", "length", "abort", "error", "repetition")


def vllm_metrics(state: EngineState) -> str:
    """The text of /metrics."""
    label = f'engine="0",model_name="{state.behaviour.model}"'
    lines = [_cache_info(state), *_gauges(state, label), *_counters(state, label), *_histograms(state, label)]
    if state.behaviour.speculation:
        lines += _speculation(state, label)
    if state.behaviour.kv_connector:
        lines += _connector(state, label)
    lines += ["# TYPE process_resident_memory_bytes gauge", f"process_resident_memory_bytes {state.resident_bytes}.0"]
    lines += ["# TYPE process_start_time_seconds gauge", f"process_start_time_seconds {state.started.timestamp()}"]
    return "\n".join(lines) + "\n"


def _cache_info(state: EngineState) -> str:
    behaviour = state.behaviour
    block = behaviour.dialect.cache_block_tokens
    labels: dict[str, object] = {
        "block_size": block,
        "cache_dtype": "auto",
        "enable_prefix_caching": bool(behaviour.cache_entries),
        "engine": 0,
        "num_gpu_blocks": behaviour.pool_tokens // block,
    }
    inside = ",".join(f'{name}="{value}"' for name, value in labels.items())
    return f"vllm:cache_config_info{{{inside}}} 1.0"


def _gauges(state: EngineState, label: str) -> list[str]:
    seen, deferred = state.pool.gauges, state.counters.deferred
    return [
        f"vllm:num_requests_running{{{label}}} {seen.running:.1f}",
        f"vllm:num_requests_waiting{{{label}}} {seen.waiting + deferred:.1f}",
        f'vllm:num_requests_waiting_by_reason{{{label},reason="capacity"}} {seen.waiting:.1f}',
        f'vllm:num_requests_waiting_by_reason{{{label},reason="deferred"}} {deferred:.1f}',
        f"vllm:kv_cache_usage_perc{{{label}}} {state.kv_usage()}",
    ]


def _counters(state: EngineState, label: str) -> list[str]:
    counted = state.counters
    lines = [
        f"vllm:prefix_cache_queries_total{{{label}}} {counted.prompt_tokens:.1f}",
        f"vllm:prefix_cache_hits_total{{{label}}} {counted.cached_tokens:.1f}",
        f"vllm:prompt_tokens_total{{{label}}} {counted.prompt_tokens:.1f}",
        f"vllm:prompt_tokens_cached_total{{{label}}} {counted.cached_tokens + counted.external_tokens:.1f}",
        f"vllm:generation_tokens_total{{{label}}} {counted.output_tokens:.1f}",
        f"vllm:num_preemptions_total{{{label}}} {state.preemptions:.1f}",
    ]
    sources = {
        "local_compute": counted.processed_tokens,
        "local_cache_hit": counted.cached_tokens,
        "external_kv_transfer": counted.external_tokens,
    }
    lines += [
        f'vllm:prompt_tokens_by_source_total{{{label},source="{source}"}} {tokens:.1f}'
        for source, tokens in sources.items()
    ]
    lines += [
        f'vllm:request_success_total{{{label},finished_reason="{reason}"}} {counted.finished.get(reason, 0):.1f}'
        for reason in _FINISHED
    ]
    name = f'model_name="{state.behaviour.model}",reason="max_num_queued_reqs"'
    return [*lines, f"vllm:admission_rejections_total{{{name}}} {counted.rejected:.1f}"]


def _histograms(state: EngineState, label: str) -> list[str]:
    counted = state.counters
    named = {
        "vllm:time_to_first_token_seconds": counted.ttft,
        "vllm:inter_token_latency_seconds": counted.inter_token,
        "vllm:e2e_request_latency_seconds": counted.e2e,
        "vllm:request_queue_time_seconds": counted.queue,
        "vllm:request_prefill_time_seconds": counted.prefill,
        "vllm:request_decode_time_seconds": counted.decode,
        "vllm:request_num_preemptions": counted.preemptions,
    }
    return [line for name, histogram in named.items() for line in histogram.lines(name, label)]


def _speculation(state: EngineState, label: str) -> list[str]:
    counted = state.counters
    return [
        f"vllm:spec_decode_num_drafts_total{{{label}}} {counted.drafts:.1f}",
        f"vllm:spec_decode_num_draft_tokens_total{{{label}}} {counted.draft_tokens:.1f}",
        f"vllm:spec_decode_num_accepted_tokens_total{{{label}}} {counted.accepted_tokens:.1f}",
    ]


def _connector(state: EngineState, label: str) -> list[str]:
    counted = state.counters
    return [
        f"vllm:external_prefix_cache_queries_total{{{label}}} {counted.external_queries:.1f}",
        f"vllm:external_prefix_cache_hits_total{{{label}}} {counted.external_tokens:.1f}",
        *counted.transfer.lines("vllm:nixl_xfer_time_seconds", label),
        *counted.transfer_bytes.lines("vllm:nixl_bytes_transferred", label),
        f"vllm:nixl_num_failed_transfers_total{{{label}}} {counted.kv_failures:.1f}",
        f"vllm:nixl_num_failed_notifications_total{{{label}}} 0.0",
        f"vllm:nixl_num_kv_expired_reqs_total{{{label}}} {counted.kv_expired:.1f}",
        f"vllm:nixl_num_notifications_after_expiry_total{{{label}}} 0.0",
    ]
