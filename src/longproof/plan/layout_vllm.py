"""vLLM's layout rules, read in 0.32.0: config/model.py `verify_with_parallel_config`, config/parallel.py,
v1/kv_cache_interface.py, v1/worker/gpu/pcp_manager.py `validate_config`, v1/worker/cp_utils.py.

    world = TP x PP x PCP, once per DP rank.  DCP reuses TP ranks, and PCP ranks
    when PCP is on; EP spans TP x PCP x DP.
"""

from __future__ import annotations

from collections.abc import Iterator

from longproof.geometry.sharding import PartitionRule
from longproof.plan.capacity import Device, Layout, Speculation
from longproof.plan.layout_rule import Broken, ModelTraits, broken_heads, broken_stages

SOURCE = "vLLM 0.32.0"


def vllm_devices(layout: Layout) -> int:
    """Devices of one server: TP x PP x PCP for each data-parallel rank."""
    return layout.tp * layout.pp * layout.pcp * layout.dp


def broken_on_vllm(
    traits: ModelTraits, layout: Layout, platform: Device, speculation: Speculation | None
) -> Iterator[Broken]:
    """Every rule the layout breaks."""
    yield from _tensor_parallel(traits, layout)
    yield from broken_stages(traits, layout.pp, layout.partition, PartitionRule.VLLM, SOURCE)
    yield from _experts(traits, layout)
    if layout.pcp > 1:
        yield from _prefill_context(traits, layout, speculation)
    if layout.dcp > 1:
        yield from _decode_context(traits, layout)
    if platform is Device.CPU and max(layout.dcp, layout.pcp) > 1:
        yield _broken(
            "context parallelism needs a GPU",
            "Model Runner V1 does not support: prefill context parallel"
            if layout.pcp > 1
            else "Decode Context Parallelism (DCP) requires attention implementations to return the softmax LSE during "
            "decode, but CPUAttentionBackendImpl does not.",
            "use no context parallelism on CPU",
        )
    if layout.dp_attention:
        yield _broken(
            "attention DP is plain data parallelism here",
            "vLLM has no attention DP inside the tensor-parallel group: its data-parallel ranks have their own TP "
            "ranks, and expert layers span both",
            "use --data-parallel-size without attention DP",
        )


def _tensor_parallel(traits: ModelTraits, layout: Layout) -> Iterator[Broken]:
    for heads in traits.query_heads:
        if heads % layout.tp:
            yield _broken(
                "attention heads divide by the tensor-parallel size",
                f"Total number of attention heads ({heads}) must be divisible by tensor parallel size ({layout.tp}).",
                f"use a tensor-parallel size that divides {heads}",
            )
    yield from broken_heads(traits, layout.tp, SOURCE)


def _experts(traits: ModelTraits, layout: Layout) -> Iterator[Broken]:
    if layout.ep <= 1:
        return
    if not traits.experts:
        yield _broken(
            "expert parallelism is for mixtures of experts",
            "Number of experts in the model must be greater than 0 when expert parallelism is enabled.",
            "leave out --enable-expert-parallel",
        )
        return
    group = layout.tp * layout.pcp * layout.dp
    if layout.ep != group:
        yield _broken(
            "the expert-parallel group is all ranks of a stage",
            f"the EP group spans the TP x PCP x DP ranks ({group}); an expert-parallel size of {layout.ep} cannot be "
            "chosen",
            f"use an expert-parallel size of {group}, or none",
        )
    elif traits.experts < group:
        yield _broken(
            "every expert-parallel rank has an expert",
            f"{traits.experts} experts cannot be spread over {group} expert-parallel ranks",
            f"use at most {traits.experts} ranks",
        )


def _prefill_context(traits: ModelTraits, layout: Layout, speculation: Speculation | None) -> Iterator[Broken]:
    if not traits.latent or traits.kv_heads:
        yield _broken(
            "prefill context parallelism is for MLA models",
            "MRV2 PCP currently supports MLA models only.",
            "use --prefill-context-parallel-size 1",
        )
    if traits.encoder:
        yield _broken(
            "prefill context parallelism is for decoders",
            "MRV2 PCP does not support encoder-decoder models yet.",
            "use --prefill-context-parallel-size 1",
        )
    if traits.recurrent:
        yield _broken(
            "prefill context parallelism has no recurrent layers",
            "PCP not support mamba now.",
            "use --prefill-context-parallel-size 1",
        )
    if speculation is not None and speculation.method not in ("mtp", "dspark"):
        yield _broken(
            "prefill context parallelism drafts with MTP or DSpark only",
            "MRV2 PCP only supports DSpark or single-module MTP speculative decoding.",
            "draft with MTP, or use --prefill-context-parallel-size 1",
        )
    if layout.dcp > 1 and not traits.sparse_latent:
        yield _broken(
            "prefill and decode context parallelism together are for sparse MLA",
            "MRV2 PCP + DCP supports sparse MLA models only.",
            "use one of the two",
        )
    valid = sorted({1, layout.pcp, layout.tp * layout.pcp})
    if layout.dcp not in valid:
        yield _broken(
            "beside PCP, DCP is off, the PCP axis or the whole TP x PCP axis",
            "When PCP is enabled, DCP must be disabled, span the PCP axis, or span the full TP x PCP axis. "
            f"Got TP={layout.tp}, PCP={layout.pcp}, DCP={layout.dcp}; valid DCP sizes are {valid}.",
            f"use a decode-context-parallel size of {', '.join(map(str, valid))}",
        )


def _decode_context(traits: ModelTraits, layout: Layout) -> Iterator[Broken]:
    if layout.pcp == 1 and layout.tp % layout.dcp:
        yield _broken(
            "decode context parallelism divides the tensor-parallel size",
            f"tp_size={layout.tp} must be divisible by dcp_size={layout.dcp}.",
            f"use a decode-context-parallel size that divides {layout.tp}",
        )
    for present, words in (
        (traits.windowed, "DCP not support sliding window."),
        (traits.chunked, "DCP not support chunked local attn now."),
        (traits.recurrent, "DCP not support mamba now."),
    ):
        if present:
            yield _broken(
                "decode context parallelism shards full attention and MLA only",
                words,
                "use --decode-context-parallel-size 1",
            )
    if not traits.latent and traits.kv_heads:
        yield from _grouped_decode_context(traits, layout)


def _grouped_decode_context(traits: ModelTraits, layout: Layout) -> Iterator[Broken]:
    heads = max(traits.kv_heads)
    if layout.tp <= heads:
        yield _broken(
            "decode context parallelism needs more tensor-parallel ranks than KV heads",
            f"Decode context parallelism for GQA/MQA requires `--tensor-parallel-size` ({layout.tp}) to be greater than"
            f" the model's total number of KV heads ({heads}). Increase `--tensor-parallel-size` or set "
            "`--decode-context-parallel-size 1`.",
            f"use more than {heads} tensor-parallel ranks, or --decode-context-parallel-size 1",
        )
        return
    most = layout.tp // heads
    if layout.dcp > most:
        yield _broken(
            "decode context parallelism shares only the copies of a KV head",
            f"`--decode-context-parallel-size` ({layout.dcp}) exceeds the maximum supported value ({most}) for "
            f"`--tensor-parallel-size` ({layout.tp}) and {heads} model KV heads.",
            f"use at most {most}",
        )
    per_head = max(traits.query_heads, default=0) // heads
    if per_head % layout.dcp:
        yield _broken(
            "query heads per KV head divide by the decode-context-parallel size",
            f"The model's number of query heads per KV head ({per_head}) must be divisible by "
            f"`--decode-context-parallel-size` ({layout.dcp}) for GQA/MQA.",
            f"use a decode-context-parallel size that divides {per_head}",
        )


def _broken(rule: str, reason: str, advice: str) -> Broken:
    return Broken(rule=rule, reason=reason, source=SOURCE, advice=advice)
