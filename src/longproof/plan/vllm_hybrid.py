"""vLLM: the block of a model that mixes attention with recurrent state, where a page must hold a whole state.

    state page ─▶ attention block = align × ceil(state page / (align × attention bytes per token)) ─▶ states are padded

Read in 0.32 (platforms/interface.py, _align_hybrid_block_size).
"""

from __future__ import annotations

from longproof.geometry.kinds import LatentAttention
from longproof.geometry.model import Layer, ModelGeometry
from longproof.geometry.sharding import rank_layer
from longproof.plan.capacity import Launch
from longproof.plan.vllm_defaults import default_block_tokens, state_blocks_per_request
from longproof.plan.vllm_pages import PageRules, attention_bytes_per_token, distinct_layers, kv_dtype_of, state_bytes
from longproof.plan.vllm_release import ReleaseRules

_LATENT_ALIGN_TOKENS = 128
"""MLA decode kernels want whole groups of 128 tokens in a hybrid's block."""


def page_rules(geometry: ModelGeometry, launch: Launch, rules: ReleaseRules) -> PageRules:
    """The block all attention layers share, what a state is padded to, and how windows are held."""
    block = default_block_tokens(geometry, launch)
    apart = launch.vllm.hybrid_manager and rules.groups_by_kind
    extra = _extra_window_tokens(geometry, launch, rules)
    state = largest_state_bytes(geometry, launch)
    per_token = _attention_bytes(geometry.layers, geometry, launch)
    if not state or not per_token:
        return PageRules(
            block_tokens=block,
            state_blocks=state_blocks_per_request(launch, rules),
            windows_apart=apart,
            extra_window_tokens=extra,
        )
    align = max(launch.vllm.kernel_block_tokens or block, block)
    if any(isinstance(layer.attention, LatentAttention) for layer in geometry.layers):
        align = max(align, _LATENT_ALIGN_TOKENS)
    block = align * -(-state // (align * per_token))
    return PageRules(
        block_tokens=block,
        state_page_bytes=block * per_token,
        state_blocks=state_blocks_per_request(launch, rules),
        windows_apart=apart,
        extra_window_tokens=extra,
    )


def largest_state_bytes(geometry: ModelGeometry, launch: Launch) -> int:
    """The largest recurrent state of one layer on one rank, before padding; 0 without any."""
    layers = distinct_layers(layer for layer in geometry.layers if layer.state is not None).values()
    states = (rank_layer(layer, launch.layout.tp).state for layer in layers)
    return max((state_bytes(state, geometry, launch) for state in states if state is not None), default=0)


def _attention_bytes(layers: tuple[Layer, ...], geometry: ModelGeometry, launch: Launch) -> int:
    dtype = kv_dtype_of(geometry, launch)
    distinct = distinct_layers(layers).values()
    return max((attention_bytes_per_token(layer, dtype, launch) for layer in distinct), default=0)


def _extra_window_tokens(geometry: ModelGeometry, launch: Launch, rules: ReleaseRules) -> int:
    # Several MTP modules in a row read further ahead, so the last tokens may be computed again (extra_retained_tokens).
    speculation = launch.speculation
    if speculation is None or speculation.method != "mtp" or not rules.reserves_in_flight:
        return 0
    return speculation.tokens - 1 if min(len(geometry.drafts), speculation.tokens) > 1 else 0
