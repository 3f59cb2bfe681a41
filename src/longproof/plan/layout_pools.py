"""Rules for a prefill pool that hands its caches to a decode pool.

vLLM 0.32.0: config/vllm.py (NIXL), distributed/kv_transfer/kv_connector/v1/nixl/base_worker.py.
SGLang 0.5.23: srt/arg_groups/model_overrides/deepseek_v2.py, pd_disaggregation_hook.py.
"""

from __future__ import annotations

from collections.abc import Iterator

from longproof.geometry.model import ModelGeometry
from longproof.plan.capacity import Layout, PlanEngine
from longproof.plan.layout_rule import Broken, ModelTraits, traits_of
from longproof.plan.layout_sglang import SOURCE as SGLANG_SOURCE
from longproof.plan.layout_vllm import SOURCE as VLLM_SOURCE

NIXL_PULL, NIXL_PUSH = "NixlConnector", "NixlPushConnector"


def check_pools(geometry: ModelGeometry, engine: PlanEngine, prefill: Layout, decode: Layout) -> tuple[Broken, ...]:
    """The rules a pair of pools breaks beside those of each layout; () when caches can be handed over."""
    traits = traits_of(geometry)
    match engine:
        case PlanEngine.VLLM:
            return tuple(_on_vllm(traits, prefill, decode))
        case PlanEngine.SGLANG:
            return tuple(_on_sglang(traits, prefill, decode))
        case PlanEngine.LLAMACPP | PlanEngine.TENSORRT_LLM:
            return (
                Broken(
                    rule="prefill and decode pools need an engine that hands caches over",
                    reason=f"split pools of {engine.value} are not planned here",
                    source=engine.value,
                    advice="plan for vLLM or SGLang, or use one pool",
                ),
            )


def nixl_connector(traits: ModelTraits, prefill: Layout) -> str:
    """vLLM's connector: a pipelined prefill pool of a model with several kinds of cache must push."""
    return NIXL_PUSH if prefill.pp > 1 and (traits.windowed or traits.chunked) else NIXL_PULL


def _on_vllm(traits: ModelTraits, prefill: Layout, decode: Layout) -> Iterator[Broken]:
    for layout in (prefill, decode):
        width = max(layout.tp, layout.pcp)
        if layout.dcp not in (1, width):
            yield _vllm(
                "beside NIXL, DCP is off or spans the transfer group",
                f"decode_context_parallel_size={layout.dcp} must be 1 or equal to the NIXL transfer parallel "
                f"size={width}.",
                f"use a decode-context-parallel size of 1 or {width}",
            )
        if layout.dcp > 1 and not traits.latent:
            yield _vllm(
                "split pools shard the cache for MLA models only",
                "PD with decode_context_parallel_size > 1 is only supported for MLA models.",
                "use --decode-context-parallel-size 1",
            )
    if decode.pp > 1:
        yield _vllm(
            "a decode pool has no pipeline",
            "NixlPushConnector consumer (decode) does not support pipeline_parallel_size > 1.",
            "use --pipeline-parallel-size 1 in the decode pool",
        )
    if prefill.pp > 1 and traits.recurrent:
        yield _vllm(
            "a pipelined prefill pool has no recurrent layers",
            "NixlPushConnector does not support pipeline_parallel_size > 1 with Mamba/SSM hybrid KV cache layouts yet.",
            "use --pipeline-parallel-size 1 in the prefill pool",
        )


def _on_sglang(traits: ModelTraits, prefill: Layout, decode: Layout) -> Iterator[Broken]:
    if traits.sparse_latent and max(prefill.dcp, decode.dcp) > 1:
        yield Broken(
            rule="sparse MLA splits no cache between pools",
            reason="DSA DCP does not support PD disaggregation.",
            source=SGLANG_SOURCE,
            advice="use --dcp-size 1, or one pool",
        )
    if prefill.dcp > 1 and prefill.dcp != decode.dcp:
        yield Broken(
            rule="a prefill pool shards its cache like the decode pool",
            reason="DCP on a PD prefill server is supported when prefill and decode use the same DCP layout",
            source=SGLANG_SOURCE,
            advice=f"use --dcp-size 1 or {decode.dcp} in the prefill pool",
        )


def _vllm(rule: str, reason: str, advice: str) -> Broken:
    return Broken(rule=rule, reason=reason, source=VLLM_SOURCE, advice=advice)
