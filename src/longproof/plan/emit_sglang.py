"""An SGLang server's command line, for SGLang 0.5.23. Attention DP is --attn-dp-size, replicas are --dp-size."""

from __future__ import annotations

from longproof.errors import UsageError
from longproof.plan.capacity import Launch, Layout, Speculation
from longproof.plan.emit_flags import SGLANG_FLAGS, FlagValue
from longproof.plan.emit_order import LaunchOrder, Placement, Role
from longproof.plan.layout_rule import traits_of

_RENDEZVOUS_PORT = 20_000
_BOOTSTRAP_PORT = 8998
_ALGORITHMS = {"mtp": "NEXTN", "ngram": "NGRAM", "eagle": "EAGLE", "eagle3": "EAGLE3", "dflash": "DFLASH"}


def sglang_command(order: LaunchOrder, place: Placement) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """(argv, environment) of one process. Raises UsageError for replicas inside a server that spans hosts."""
    layout = place.layout
    if place.nodes > 1 and layout.dp > 1 and not layout.dp_attention:
        raise UsageError(
            "multi-node data-parallel replicas are not supported; use attention DP across nodes (SGLang 0.5.23)",
            advice="start one server per replica, or use attention data parallelism",
        )
    pairs: list[tuple[str, FlagValue]] = [
        ("--model-path", order.model),
        ("--served-model-name", order.served_name),
        ("--host", order.host),
        ("--port", place.port),
        *_parallel(order, layout),
        *_hosts(place),
        *_limits(order.launch),
        *_pools(place),
        *_speculation(order.launch.speculation),
    ]
    return ("python3", "-m", "sglang.launch_server", *SGLANG_FLAGS.written(pairs)), _environment(layout)


def _parallel(order: LaunchOrder, layout: Layout) -> list[tuple[str, FlagValue]]:
    sparse = traits_of(order.geometry).sparse_latent
    return [
        ("--tp-size", layout.tp),
        ("--pp-size", _more(layout.pp)),
        ("--attn-dp-size", _more(layout.dp) if layout.dp_attention else None),
        ("--dp-size", None if layout.dp_attention else _more(layout.dp)),
        ("--ep-size", _more(layout.ep)),
        ("--dcp-size", _more(layout.dcp)),
        ("--enable-prefill-cp", layout.pcp > 1),
        ("--attn-cp-size", _more(layout.pcp)),
        # "DeepSeek V3.2 prefill CP does not support --cp-strategy zigzag; use interleave."
        ("--cp-strategy", ("interleave" if sparse else "zigzag") if layout.pcp > 1 else None),
    ]


def _hosts(place: Placement) -> list[tuple[str, FlagValue]]:
    if place.nodes == 1:
        return []
    return [
        ("--nnodes", place.nodes),
        ("--node-rank", int(place.node) if place.node.isdigit() else place.node),
        ("--dist-init-addr", f"{place.leader}:{_RENDEZVOUS_PORT}"),
    ]


def _limits(launch: Launch) -> list[tuple[str, FlagValue]]:
    options = launch.sglang
    hosted = options.host_cache_bytes or options.host_cache_ratio
    return [
        ("--context-length", launch.max_model_len_tokens),
        ("--chunked-prefill-size", launch.max_num_batched_tokens),
        ("--max-running-requests", launch.max_num_seqs),
        ("--mem-fraction-static", launch.memory_fraction),
        ("--kv-cache-dtype", None if launch.kv_dtype == "auto" else launch.kv_dtype),
        ("--page-size", launch.block_size_tokens),
        ("--max-total-tokens", options.max_total_tokens),
        ("--max-mamba-cache-size", options.max_mamba_slots),
        ("--swa-full-tokens-ratio", None if options.swa_full_tokens_ratio == 0.8 else options.swa_full_tokens_ratio),
        (
            "--mamba-full-memory-ratio",
            None if options.mamba_full_memory_ratio == 0.9 else options.mamba_full_memory_ratio,
        ),
        ("--disable-radix-cache", launch.prefix_caching is False),
        ("--enable-hierarchical-cache", bool(hosted)),
        ("--hicache-size", options.host_cache_bytes // 10**9 or None),
        ("--hicache-ratio", None if options.host_cache_bytes else options.host_cache_ratio or None),
    ]


def _pools(place: Placement) -> list[tuple[str, FlagValue]]:
    if place.role is Role.SERVE:
        return []
    prefills = place.role is Role.PREFILL
    return [
        ("--disaggregation-mode", place.role.value),
        ("--disaggregation-transfer-backend", "mooncake"),
        ("--disaggregation-bootstrap-port", _BOOTSTRAP_PORT + place.slot if prefills else None),
    ]


def _speculation(speculation: Speculation | None) -> list[tuple[str, FlagValue]]:
    if speculation is None:
        return []
    word = speculation.method.lower()
    algorithm = _ALGORITHMS.get(word, speculation.method.upper())
    drafts = algorithm in ("NEXTN", "EAGLE", "EAGLE3")
    return [
        ("--speculative-algorithm", algorithm),
        ("--speculative-draft-model-path", None if speculation.draft is None else speculation.draft.name),
        # A chain: one drafted token per step, and the verified one beside them.
        ("--speculative-num-steps", speculation.tokens - 1 if drafts else None),
        ("--speculative-eagle-topk", 1 if drafts else None),
        ("--speculative-num-draft-tokens", speculation.tokens),
    ]


def _environment(layout: Layout) -> tuple[tuple[str, str], ...]:
    if not layout.partition:
        return ()
    return (("SGLANG_PP_LAYER_PARTITION", ",".join(map(str, layout.partition))),)


def _more(size: int) -> int | None:
    return size if size > 1 else None
