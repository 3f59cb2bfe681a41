"""SGLang's layout rules, read in 0.5.23: srt/arg_groups/parallel_hook.py, validation_hook.py `check_server_args` and
`check_pipeline_parallel_compat`, model_overrides/deepseek_v2.py, models/llama.py.

    --tp-size is the ranks of one stage: attention DP groups and prefill-CP ranks lie inside it, and EP divides it.
    attention TP = tp / (attention DP x prefill CP).    world = TP x PP, once per --dp-size replica.
"""

from __future__ import annotations

from collections.abc import Iterator

from longproof.geometry.sharding import PartitionRule
from longproof.plan.capacity import Layout, Speculation
from longproof.plan.layout_rule import Broken, ModelTraits, broken_heads, broken_stages

SOURCE = "SGLang 0.5.23"


def sglang_devices(layout: Layout) -> int:
    """Devices of one server: TP x PP, and as many again for each replica (`dp` without attention DP)."""
    return layout.tp * layout.pp * (1 if layout.dp_attention else layout.dp)


def broken_on_sglang(traits: ModelTraits, layout: Layout, speculation: Speculation | None) -> Iterator[Broken]:
    """Every rule the layout breaks."""
    yield from broken_stages(traits, layout.pp, layout.partition, PartitionRule.SGLANG, SOURCE)
    yield from _experts(traits, layout)
    groups = (layout.dp if layout.dp_attention else 1) * layout.pcp
    if layout.tp % groups:
        yield _broken(
            "attention DP times prefill CP divides the tensor-parallel size",
            "tp_size must be divisible by attn_dp_size * attn_cp_size",
            f"use a tensor-parallel size that is a multiple of {groups}",
        )
    else:
        yield from _attention(traits, layout, layout.tp // groups)
    if layout.pp > 1 and speculation is not None and speculation.method.upper() != "EAGLE":
        yield _broken(
            "a pipeline drafts with EAGLE only",
            "Pipeline parallelism currently only supports EAGLE (non-multi-layer) speculative decoding",
            "draft with EAGLE, or use --pp-size 1",
        )


def _attention(traits: ModelTraits, layout: Layout, ranks: int) -> Iterator[Broken]:
    for heads in traits.query_heads:
        if heads % ranks:
            yield _broken(
                "attention heads divide by the attention tensor-parallel size",
                f"{heads} attention heads cannot be split over {ranks} attention TP ranks (tp_size {layout.tp})",
                f"use a tensor-parallel size that divides {heads}",
            )
    yield from broken_heads(traits, ranks, SOURCE)
    if layout.dcp <= 1:
        return
    if layout.pcp > 1:
        yield _broken(
            "prefill and decode context parallelism exclude one another",
            "--dcp-size > 1 does not support --enable-prefill-cp.",
            "use one of the two",
        )
    if ranks % layout.dcp:
        yield _broken(
            "decode context parallelism divides the attention tensor-parallel size",
            f"--dcp-size {layout.dcp} must divide the attention TP size {ranks}.",
            f"use a decode-context-parallel size that divides {ranks}",
        )
    elif not traits.latent and any(heads > ranks // layout.dcp for heads in traits.kv_heads):
        yield _broken(
            "all ranks of a decode-context-parallel group hold the same KV heads",
            f"--dcp-size {layout.dcp} at --tp-size {layout.tp} needs each rank to hold its DCP group's KV heads, which "
            f"{max(traits.kv_heads)} KV heads do not allow. Use a smaller --dcp-size.",
            f"use more than {max(traits.kv_heads)} attention TP ranks, or a smaller decode-context-parallel size",
        )


def _experts(traits: ModelTraits, layout: Layout) -> Iterator[Broken]:
    if layout.ep <= 1:
        return
    if not traits.experts:
        yield _broken(
            "expert parallelism is for mixtures of experts",
            f"the model has no experts to spread over --ep-size {layout.ep}",
            "use --ep-size 1",
        )
    elif layout.tp % layout.ep:
        yield _broken(
            "expert parallelism divides the tensor-parallel size",
            f"--ep-size {layout.ep} lies inside the tensor-parallel group and does not divide --tp-size {layout.tp}",
            f"use an expert-parallel size that divides {layout.tp}",
        )
    elif traits.experts % layout.ep:
        yield _broken(
            "experts divide by the expert-parallel size",
            f"{traits.experts} experts do not divide over {layout.ep} expert-parallel ranks without redundant ones",
            f"use an expert-parallel size that divides {traits.experts}",
        )


def _broken(rule: str, reason: str, advice: str) -> Broken:
    return Broken(rule=rule, reason=reason, source=SOURCE, advice=advice)
