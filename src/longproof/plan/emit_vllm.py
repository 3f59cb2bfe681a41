"""A vLLM server's command line, for vLLM 0.32.0. Several hosts are told apart by --node-rank, the others --headless."""

from __future__ import annotations

import json

from longproof.plan.capacity import Launch, Layout, Speculation
from longproof.plan.emit_flags import VLLM_FLAGS, FlagValue
from longproof.plan.emit_order import LaunchOrder, Placement, Role
from longproof.plan.layout_pools import NIXL_PUSH, nixl_connector
from longproof.plan.layout_rule import traits_of

_SIDE_CHANNEL_PORT, _SIDE_CHANNEL_STRIDE = 5600, 100
_HOST_ADDRESS = "$HOST_ADDRESS"


def vllm_command(order: LaunchOrder, place: Placement) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """(argv, environment) of one process."""
    launch, layout = order.launch, place.layout
    pairs: list[tuple[str, FlagValue]] = [
        ("--served-model-name", order.served_name),
        ("--host", None if place.headless else order.host),
        ("--port", None if place.headless else place.port),
        *_parallel(layout),
        *_hosts(place),
        *_limits(launch),
        ("--kv-transfer-config", _transfer(order, place)),
        ("--speculative-config", _speculation(launch.speculation)),
        ("--compilation-config", _compilation(order, layout)),
    ]
    return ("vllm", "serve", order.model, *VLLM_FLAGS.written(pairs)), _environment(place)


def _parallel(layout: Layout) -> list[tuple[str, FlagValue]]:
    return [
        ("--tensor-parallel-size", layout.tp),
        ("--pipeline-parallel-size", _more(layout.pp)),
        ("--data-parallel-size", _more(layout.dp)),
        ("--enable-expert-parallel", layout.ep > 1),
        ("--decode-context-parallel-size", _more(layout.dcp)),
        ("--prefill-context-parallel-size", _more(layout.pcp)),
    ]


def _hosts(place: Placement) -> list[tuple[str, FlagValue]]:
    if place.nodes == 1:
        return []
    return [
        ("--nnodes", place.nodes),
        ("--node-rank", int(place.node) if place.node.isdigit() else place.node),
        ("--master-addr", place.leader),
        ("--headless", place.headless),
    ]


def _limits(launch: Launch) -> list[tuple[str, FlagValue]]:
    options = launch.vllm
    return [
        ("--max-model-len", launch.max_model_len_tokens),
        ("--max-num-batched-tokens", launch.max_num_batched_tokens),
        ("--max-num-seqs", launch.max_num_seqs),
        ("--gpu-memory-utilization", launch.memory_fraction),
        ("--kv-cache-dtype", _named(launch.kv_dtype)),
        ("--block-size", launch.block_size_tokens),
        ("--num-gpu-blocks-override", options.blocks_override),
        ("--mamba-ssm-cache-dtype", _named(options.ssm_dtype)),
        ("--mamba-cache-dtype", _named(options.conv_dtype)),
        ("--enable-prefix-caching", launch.prefix_caching is True),
        ("--no-enable-prefix-caching", launch.prefix_caching is False),
        ("--async-scheduling", launch.async_scheduling is True),
        ("--no-async-scheduling", launch.async_scheduling is False),
        ("--disable-hybrid-kv-cache-manager", not options.hybrid_manager),
    ]


def _transfer(order: LaunchOrder, place: Placement) -> str | None:
    if place.role is Role.SERVE:
        return None
    connector = nixl_connector(traits_of(order.geometry), order.arrangement.layout)
    one_way = "kv_producer" if place.role is Role.PREFILL else "kv_consumer"
    return _json({"kv_connector": connector, "kv_role": one_way if connector == NIXL_PUSH else "kv_both"})


def _speculation(speculation: Speculation | None) -> str | None:
    if speculation is None:
        return None
    config: dict[str, str | int] = {"method": speculation.method, "num_speculative_tokens": speculation.tokens}
    if speculation.draft is not None:
        config["model"] = speculation.draft.name
    return _json(config)


def _compilation(order: LaunchOrder, layout: Layout) -> str | None:
    # "MRV2 sparse MLA PCP does not support CUDA graphs yet."
    sparse = traits_of(order.geometry).sparse_latent
    return _json({"cudagraph_mode": "NONE"}) if sparse and layout.pcp > 1 and layout.dcp == 1 else None


def _environment(place: Placement) -> tuple[tuple[str, str], ...]:
    found: list[tuple[str, str]] = []
    if place.layout.partition:
        found.append(("VLLM_PP_LAYER_PARTITION", ",".join(map(str, place.layout.partition))))
    if place.layout.pcp > 1:
        found.append(("VLLM_USE_V2_MODEL_RUNNER", "1"))  # the only runner with prefill context parallelism
    if place.role is not Role.SERVE:
        found.append(("VLLM_NIXL_SIDE_CHANNEL_HOST", _HOST_ADDRESS))
        found.append(("VLLM_NIXL_SIDE_CHANNEL_PORT", str(_SIDE_CHANNEL_PORT + place.slot * _SIDE_CHANNEL_STRIDE)))
    return tuple(found)


def _more(size: int) -> int | None:
    return size if size > 1 else None


def _named(word: str) -> str | None:
    return None if word == "auto" else word


def _json(config: dict[str, str | int]) -> str:
    return json.dumps(config, separators=(",", ":"))
