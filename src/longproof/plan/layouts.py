"""The layouts an engine can run a model in, and why it cannot run in the others.

    geometry + engine + Layout ──check_layout──▶ () or the rules broken, in the engine's words
    geometry + engine + N      ──possible_layouts──▶ every Layout that keeps all rules and takes at most N devices

Layout sizes mean what the engine's flags mean. Devices of one server:

    vLLM       TP x PP x PCP x DP            DCP reuses TP ranks; EP is all of TP x PCP x DP or off
    SGLang     TP x PP (x DP replicas)       attention DP, prefill CP and EP lie inside TP
    llama.cpp  PP                            layers over devices (--split-mode layer)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from longproof.errors import UsageError
from longproof.geometry.model import ModelGeometry
from longproof.geometry.sharding import PartitionRule
from longproof.plan.capacity import Device, Layout, PlanEngine, Speculation
from longproof.plan.layout_rule import Broken, ModelTraits, broken_heads, broken_stages, traits_of
from longproof.plan.layout_sglang import broken_on_sglang, sglang_devices
from longproof.plan.layout_vllm import broken_on_vllm, vllm_devices

_LLAMACPP_SOURCE, _TRTLLM_SOURCE = "llama.cpp b11434", "TensorRT-LLM"


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrangement:
    """What runs on the devices: `replicas` servers of one layout, or a prefill pool (`layout`) and a decode pool."""

    layout: Layout
    replicas: int = 1
    decode: Layout | None = None
    decode_replicas: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutSpace:
    """Which layouts a search looks at. `sizes` of every axis; () = powers of two and the divisors of the device count.

    `pools`: whether to try a prefill pool beside a decode pool.
    """

    sizes: tuple[int, ...] = ()
    pools: bool = True

    def sizes_on(self, devices: int) -> tuple[int, ...]:
        """The sizes that `devices` allow, smallest first."""
        doubled = {1 << n for n in range(devices.bit_length())}
        asked = set(self.sizes) or doubled | {n for n in range(1, devices + 1) if devices % n == 0}
        return tuple(sorted(size for size in asked if 1 <= size <= devices)) or (1,)


def check_layout(
    geometry: ModelGeometry,
    engine: PlanEngine,
    layout: Layout,
    *,
    devices: int | None = None,
    platform: Device = Device.CUDA,
    speculation: Speculation | None = None,
    traits: ModelTraits | None = None,
) -> tuple[Broken, ...]:
    """The rules `layout` breaks, all of them; () when the engine runs it.

    `devices`: those at hand, None = enough. `platform`: what the engine runs on. `traits`: of `geometry`,
    when asked often. Raises UsageError for a size below one.
    """
    sizes = (layout.tp, layout.pp, layout.dp, layout.ep, layout.dcp, layout.pcp)
    if min(sizes) < 1:
        raise UsageError(f"a parallel size is below 1: {sizes}", advice="every size counts ranks: use 1 for none")
    traits = traits or traits_of(geometry)
    return tuple(_broken(traits, engine, layout, devices, platform, speculation))


def require_layout(
    geometry: ModelGeometry,
    engine: PlanEngine,
    layout: Layout,
    *,
    devices: int | None = None,
    platform: Device = Device.CUDA,
    speculation: Speculation | None = None,
) -> None:
    """Raises LayoutError for the first rule broken."""
    for broken in check_layout(geometry, engine, layout, devices=devices, platform=platform, speculation=speculation):
        raise broken.error(describe_layout(layout))


def devices_of(engine: PlanEngine, layout: Layout) -> int:
    """Devices one server of the layout takes."""
    match engine:
        case PlanEngine.VLLM:
            return vllm_devices(layout)
        case PlanEngine.SGLANG | PlanEngine.TENSORRT_LLM:
            return sglang_devices(layout)
        case PlanEngine.LLAMACPP:
            return layout.tp * layout.pp * layout.dp


def arrangement_devices(engine: PlanEngine, arrangement: Arrangement) -> int:
    """Devices of all servers together."""
    taken = arrangement.replicas * devices_of(engine, arrangement.layout)
    if arrangement.decode is not None:
        taken += arrangement.decode_replicas * devices_of(engine, arrangement.decode)
    return taken


def describe_layout(layout: Layout) -> str:
    """``TP8 PP2 DCP4``; ``TP1`` for a single device. Attention DP inside TP is ``ADP``."""
    axes = (
        ("TP", layout.tp), ("PP", layout.pp), ("ADP" if layout.dp_attention else "DP", layout.dp), ("EP", layout.ep),
        ("DCP", layout.dcp), ("PCP", layout.pcp),
    )  # fmt: skip
    named = [f"{name}{size}" for name, size in axes if size > 1]
    if layout.partition:
        named.append(f"({','.join(map(str, layout.partition))})")
    return " ".join(named) or "TP1"


def describe_arrangement(arrangement: Arrangement) -> str:
    """``2 x TP8`` or ``prefill 1 x PP8 + decode 2 x TP4 DCP2``."""
    first = f"{arrangement.replicas} x {describe_layout(arrangement.layout)}"
    if arrangement.decode is None:
        return first
    return f"prefill {first} + decode {arrangement.decode_replicas} x {describe_layout(arrangement.decode)}"


def possible_layouts(
    geometry: ModelGeometry,
    engine: PlanEngine,
    devices: int,
    *,
    space: LayoutSpace | None = None,
    speculation: Speculation | None = None,
) -> tuple[Layout, ...]:
    """Every layout of one server on at most `devices` that breaks no rule, smallest first.

    Replicas are not layouts: SGLang's --dp-size and data parallelism of a dense model on vLLM are copies of a smaller
    layout and left to the arrangement. Raises UsageError for no devices.
    """
    if devices < 1:
        raise UsageError(f"{devices} devices", advice="give at least one device")
    traits = traits_of(geometry)
    space = space or LayoutSpace()
    sizes = space.sizes_on(devices)
    found = [
        layout
        for layout in _candidates(traits, engine, sizes, devices)
        if not check_layout(geometry, engine, layout, devices=devices, speculation=speculation, traits=traits)
    ]
    return tuple(sorted(found, key=lambda layout: (devices_of(engine, layout), _order(layout))))


def _candidates(traits: ModelTraits, engine: PlanEngine, sizes: tuple[int, ...], devices: int) -> Iterator[Layout]:
    match engine:
        case PlanEngine.VLLM:
            yield from _vllm_candidates(traits, sizes, devices)
        case PlanEngine.SGLANG:
            yield from _sglang_candidates(traits, sizes, devices)
        case PlanEngine.TENSORRT_LLM:
            for tp, pp in product(sizes, sizes):
                if tp * pp <= devices:
                    yield Layout(tp=tp, pp=pp)
        case PlanEngine.LLAMACPP:
            yield from (Layout(pp=pp) for pp in sizes)


def _vllm_candidates(traits: ModelTraits, sizes: tuple[int, ...], devices: int) -> Iterator[Layout]:
    # The rules are applied again by check_layout; what is left out here could only be refused.
    data_parallel = sizes if traits.experts else (1,)
    prefill_parallel = sizes if traits.latent and not traits.kv_heads else (1,)
    for tp, pp in product(sizes, sizes):
        if tp * pp > devices or any(heads % tp for heads in traits.query_heads):
            continue
        for dp, pcp in product(data_parallel, prefill_parallel):
            if tp * pp * dp * pcp > devices:
                continue
            group = tp * dp * pcp
            # Data-parallel and prefill-CP ranks share the experts of a mixture anyway; they do it by EP here.
            experts = {1} if not traits.experts else {group} if dp * pcp > 1 else {1, group}
            shards = {1, pcp, tp * pcp} if pcp > 1 else {size for size in sizes if tp % size == 0}
            for dcp, ep in product(sorted(shards), sorted(experts)):
                yield Layout(tp=tp, pp=pp, dp=dp, ep=ep, dcp=dcp, pcp=pcp)


def _sglang_candidates(traits: ModelTraits, sizes: tuple[int, ...], devices: int) -> Iterator[Layout]:
    for tp, pp in product(sizes, sizes):
        if tp * pp > devices:
            continue
        inner = tuple(size for size in sizes if tp % size == 0)
        experts = inner if traits.experts else (1,)
        # Attention DP pays where attention TP would repeat the cache.
        repeats = traits.latent or any(heads < tp for heads in traits.kv_heads)
        for dp, ep, dcp, pcp in product(inner if repeats else (1,), experts, inner, inner):
            if dcp > 1 and pcp > 1:
                continue
            yield Layout(tp=tp, pp=pp, dp=dp, dp_attention=dp > 1, ep=ep, dcp=dcp, pcp=pcp)


def _broken(
    traits: ModelTraits,
    engine: PlanEngine,
    layout: Layout,
    devices: int | None,
    platform: Device,
    speculation: Speculation | None,
) -> Iterator[Broken]:
    taken = devices_of(engine, layout)
    if devices is not None and taken > devices:
        yield Broken(
            rule="a layout takes no more devices than there are",
            reason=f"it takes {taken} devices and {devices} are given",
            source="arithmetic",
            advice=f"use sizes whose product is at most {devices}",
        )
    match engine:
        case PlanEngine.VLLM:
            yield from broken_on_vllm(traits, layout, platform, speculation)
        case PlanEngine.SGLANG:
            yield from broken_on_sglang(traits, layout, speculation)
        case PlanEngine.LLAMACPP:
            yield from _broken_on_llamacpp(traits, layout)
        case PlanEngine.TENSORRT_LLM:
            yield from _broken_on_trtllm(traits, layout)


def _broken_on_llamacpp(traits: ModelTraits, layout: Layout) -> Iterator[Broken]:
    yield from broken_stages(traits, layout.pp, layout.partition, PartitionRule.TENSORRT_LLM, _LLAMACPP_SOURCE)
    if max(layout.tp, layout.dp, layout.ep, layout.dcp, layout.pcp) > 1:
        yield Broken(
            rule="llama.cpp spreads layers over devices, nothing else",
            reason="its server has no data, expert or context parallelism, and its row split is not planned here",
            source=_LLAMACPP_SOURCE,
            advice="use pipeline stages only: one per device",
        )


def _broken_on_trtllm(traits: ModelTraits, layout: Layout) -> Iterator[Broken]:
    yield from broken_stages(traits, layout.pp, layout.partition, PartitionRule.TENSORRT_LLM, _TRTLLM_SOURCE)
    ranks = layout.tp // layout.dp if layout.dp_attention and layout.tp % layout.dp == 0 else layout.tp
    for heads in traits.query_heads:
        if heads % ranks:
            yield Broken(
                rule="attention heads divide by the tensor-parallel size",
                reason=f"{heads} attention heads cannot be split over {ranks} tensor-parallel ranks",
                source=_TRTLLM_SOURCE,
                advice=f"use a tensor-parallel size that divides {heads}",
            )
    yield from broken_heads(traits, ranks, _TRTLLM_SOURCE)
    if layout.ep > 1 and (not traits.experts or layout.tp % layout.ep):
        yield Broken(
            rule="expert parallelism is for mixtures of experts and divides the tensor-parallel size",
            reason=f"an expert-parallel size of {layout.ep} does not fit TP{layout.tp} and {traits.experts} experts",
            source=_TRTLLM_SOURCE,
            advice="use moe_expert_parallel_size 1",
        )
    if max(layout.dcp, layout.pcp) > 1:
        yield Broken(
            rule="context parallelism of TensorRT-LLM is not planned here",
            reason="its HELIX parallelism runs on decode servers of a split deployment only and is not modelled",
            source=_TRTLLM_SOURCE,
            advice="use context_parallel_size 1",
        )


def _order(layout: Layout) -> tuple[int, ...]:
    return (layout.pp, layout.pcp, layout.dp, layout.dcp, layout.ep, layout.tp)
