"""The options of `longproof plan`, and how they become what the planner takes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from longproof.cli.options import Command, TokensType
from longproof.errors import UsageError

if TYPE_CHECKING:
    from longproof.domain.shapes import RequestShape
    from longproof.geometry.model import ModelGeometry
    from longproof.hardware.device import Device
    from longproof.plan.capacity import Launch, Layout, Speculation
    from longproof.plan.planner import PlanChoices
    from longproof.plan.questions import RunningSessions

ENGINES = ("vllm", "sglang", "llamacpp", "tensorrt-llm")
_ENGINE_VALUES = {"llamacpp": "llama.cpp"}
_TOKENS = TokensType()

LAYOUT_OPTIONS = (
    click.option("--engine", type=click.Choice(ENGINES), default="vllm", show_default=True, help="Whose rules."),
    click.option("--engine-version", default="", metavar="RELEASE", help="e.g. 0.32.0; default: the newest known."),
    click.option("--device", metavar="NAME", help="h100-sxm, mi300x, rtx-4090 …; its memory, speed and price."),
    click.option("--tp", type=click.IntRange(1), default=1, help="Tensor-parallel ranks."),
    click.option("--pp", type=click.IntRange(1), default=1, help="Pipeline stages; devices, for llama.cpp."),
    click.option("--partition", metavar="N,N", help="Layers of each pipeline stage, e.g. 20,10."),
    click.option("--dp", type=click.IntRange(1), default=1, help="Data-parallel ranks."),
    click.option("--dp-attention", is_flag=True, help="Attention is data-parallel inside TP (SGLang)."),
    click.option("--ep", type=click.IntRange(1), default=1, help="Expert-parallel ranks."),
    click.option("--dcp", type=click.IntRange(1), default=1, help="Decode-context-parallel ranks."),
    click.option("--pcp", type=click.IntRange(1), default=1, help="Prefill-context-parallel ranks."),
)
REQUEST_OPTIONS = (
    click.option(
        "--context", "context_tokens", type=_TOKENS, help="Configured limit (max_model_len, context length, n_ctx);"
        " default: the trained window.",
    ),
    click.option("--input", "input_tokens", type=_TOKENS, help="Content of the request; default: all the limit takes."),
    click.option("--output", "output_tokens", type=_TOKENS, default=1000, show_default=True, help="Output allowance."),
    click.option("--template", "template_tokens", type=_TOKENS, default=0, help="Tokens the chat template adds."),
    click.option("--load", multiple=True, metavar="NxTOKENS", help="Sessions running already: 3x64k. Repeatable."),
    click.option("--watermark", type=click.FloatRange(0, 0.99), default=0.0, help="Share of a pool kept free."),
    click.option(
        "--mix", type=click.Path(exists=True, dir_okay=False), help="Sessions to size for: a trace or a table."
    ),
    click.option("--risk", type=float, default=0.01, show_default=True, help="Probability a mix may exceed its limit."),
)  # fmt: skip
MEMORY_OPTIONS = (
    click.option("--kv-dtype", default="auto", show_default=True, help="In the engine's words: fp8, q8_0 …"),
    click.option("--mem-fraction", type=float, help="Share of a device the engine may take; default: the engine's."),
    click.option(
        "--available-kv-gib", metavar="GIB[,GIB]", help="KV memory of a rank, measured: one figure, or one per stage."
    ),
    click.option("--weights-gib", type=float, help="All weights on disk; default: from the model's files or shapes."),
    click.option("--pool-tokens", type=_TOKENS, help="SGLang's --max-total-tokens."),
    click.option("--max-num-seqs", type=click.IntRange(1), help="Most requests at once; slots, for llama.cpp."),
    click.option("--max-num-batched-tokens", type=_TOKENS, help="Tokens of one forward pass."),
    click.option("--block-size", type=click.IntRange(1), help="Tokens of a block or page."),
    click.option("--unified/--separate", default=None, help="llama.cpp: slots share one cache, or have their own."),
    click.option("--speculate", metavar="METHOD:N", help="Speculative decoding, e.g. mtp:1."),
    click.option("--eager", is_flag=True, help="No CUDA graphs."),
)  # fmt: skip
MONEY_OPTIONS = (
    click.option("--usd-per-hour", type=float, help="Of one device; default: the range in its data file."),
    click.option(
        "--calibrate", type=click.Path(exists=True, file_okay=False), metavar="EVIDENCE",
        help="Take speeds from this proof of the same model, engine and device.",
    ),
)  # fmt: skip


def plan_options(command: Command) -> Command:
    """Everything that describes a launch and what is asked of it."""
    for decorate in reversed((*LAYOUT_OPTIONS, *REQUEST_OPTIONS, *MEMORY_OPTIONS, *MONEY_OPTIONS)):
        command = decorate(command)
    return command


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The options, understood."""

    geometry: ModelGeometry
    launch: Launch
    request: RequestShape
    device: Device | None
    choices: PlanChoices


def understood(model: str, given: dict[str, Any]) -> Asked:
    """Reads the model, the mix and the evidence, and turns the options into values. Raises UserError."""
    from longproof.geometry.read import read_geometry
    from longproof.hardware.catalogue import find_device
    from longproof.plan.planner import on_device

    _require_sense(given)
    geometry = _weighed(read_geometry(model), given["weights_gib"])
    device = None if given["device"] is None else find_device(given["device"])
    launch = on_device(_launch(given), device)
    return Asked(
        geometry=geometry,
        launch=launch,
        request=_request(geometry, launch, given),
        device=device,
        choices=_choices(geometry, launch, device, given),
    )


def _require_sense(given: dict[str, Any]) -> None:
    """Numbers that no launch or request can have, nan and infinity among them. Raises UsageError."""
    for name in ("context_tokens", "max_num_batched_tokens", "pool_tokens"):
        if given[name] == 0:
            option = "--context" if name == "context_tokens" else f"--{name.replace('_', '-')}"
            raise UsageError(f"{option} of 0 tokens leaves nothing to plan", advice="give a positive number of tokens")
    if not math.isfinite(given["watermark"]):
        raise UsageError(f"a watermark of {given['watermark']} is no share", advice="give e.g. 0.05")
    if not 0 < given["risk"] < 1:
        raise UsageError(
            f"a risk of {given['risk']} is not a probability", advice="give e.g. 0.01 for one moment in a hundred"
        )
    usd = given["usd_per_hour"]
    if usd is not None and not (math.isfinite(usd) and usd >= 0):
        raise UsageError(f"a price of {usd} USD per hour cannot be", advice="give the price of one device, e.g. 2.5")


def _weighed(geometry: ModelGeometry, gib: float | None) -> ModelGeometry:
    """The geometry with the size of its weights as the user says it."""
    from dataclasses import replace

    from longproof.domain.measure import given

    if gib is None:
        return geometry
    if not (math.isfinite(gib) and gib > 0):
        raise UsageError(f"weights of {gib} GiB cannot be", advice="give the size of the model's files")
    return replace(geometry, weight_file_bytes=given(int(gib * (1 << 30)), "--weights-gib"))


def _launch(given: dict[str, Any]) -> Launch:
    from longproof.plan.capacity import Launch, LlamacppOptions, PlanEngine, SglangOptions

    engine = PlanEngine(_ENGINE_VALUES.get(given["engine"], given["engine"]))
    if given["pool_tokens"] is not None and engine is not PlanEngine.SGLANG:
        raise UsageError("--pool-tokens is SGLang's --max-total-tokens", advice="use --engine sglang")
    return Launch(
        engine=engine,
        version=given["engine_version"],
        layout=_layout(given),
        kv_dtype=given["kv_dtype"],
        block_size_tokens=given["block_size"],
        max_model_len_tokens=given["context_tokens"],
        max_num_batched_tokens=given["max_num_batched_tokens"],
        max_num_seqs=given["max_num_seqs"],
        memory_fraction=given["mem_fraction"],
        speculation=_speculation(given["speculate"]),
        llamacpp=LlamacppOptions(unified=given["unified"]),
        sglang=SglangOptions(max_total_tokens=given["pool_tokens"]),
    )


def _layout(given: dict[str, Any]) -> Layout:
    from longproof.plan.capacity import Layout

    partition: tuple[int, ...] = ()
    if given["partition"] is not None:
        try:
            partition = tuple(int(part) for part in given["partition"].split(","))
        except ValueError:
            raise UsageError(f"'{given['partition']}' is no partition", advice="write e.g. 20,10") from None
    return Layout(
        tp=given["tp"],
        pp=len(partition) if partition and given["pp"] == 1 else given["pp"],
        partition=partition,
        dp=given["dp"],
        dp_attention=given["dp_attention"],
        ep=given["ep"],
        dcp=given["dcp"],
        pcp=given["pcp"],
    )


def _speculation(text: str | None) -> Speculation | None:
    from longproof.plan.capacity import Speculation

    if text is None:
        return None
    method, _, count = text.partition(":")
    if not method or not count.isdigit() or int(count) < 1:
        raise UsageError(f"'{text}' is no speculation", advice="write a method and its drafted tokens: mtp:1")
    return Speculation(method=method, tokens=int(count))


def _request(geometry: ModelGeometry, launch: Launch, given: dict[str, Any]) -> RequestShape:
    from dataclasses import replace

    from longproof.domain.shapes import RequestShape
    from longproof.plan.planner import whole_window

    template = given["template_tokens"]
    if given["input_tokens"] is not None:
        return RequestShape(
            content_tokens=given["input_tokens"], output_tokens=given["output_tokens"], template_tokens=template
        )
    whole = whole_window(geometry, launch, given["output_tokens"] + template)
    return replace(whole, output_tokens=given["output_tokens"], template_tokens=template)


def _choices(geometry: ModelGeometry, launch: Launch, device: Device | None, given: dict[str, Any]) -> PlanChoices:
    from longproof.plan.cost import Band
    from longproof.plan.planner import PlanChoices
    from longproof.plan.session_files import read_mix

    usd = given["usd_per_hour"]
    return PlanChoices(
        available_bytes=_available(given["available_kv_gib"]),
        available_source="--available-kv-gib",
        load=tuple(_running(text) for text in given["load"]),
        mix=None if given["mix"] is None else read_mix(Path(given["mix"])),
        risk=given["risk"],
        watermark=given["watermark"],
        eager=given["eager"],
        rates=_rates(geometry, launch, device, given["calibrate"]),
        usd_per_hour=None if usd is None else Band(low=usd, typical=usd, high=usd),
    )


def _available(text: str | None) -> tuple[int, ...]:
    if text is None:
        return ()
    try:
        amounts = [float(part) for part in text.split(",")]
    except ValueError:
        amounts = [math.nan]
    if not all(math.isfinite(amount) and amount >= 0 for amount in amounts):
        raise UsageError(f"'{text}' is no amount of memory", advice="write GiB: 42.5, or one per stage: 42.5,40")
    return tuple(int(amount * (1 << 30)) for amount in amounts)


def _running(text: str) -> RunningSessions:
    from longproof.domain.units import parse_tokens
    from longproof.plan.questions import RunningSessions

    count, _, size = text.partition("x")
    if not count.isdigit() or not size:
        raise UsageError(f"'{text}' is no load", advice="write sessions times tokens: 3x64k")
    return RunningSessions(count=int(count), tokens=parse_tokens(size))


def _rates(geometry: ModelGeometry, launch: Launch, device: Device | None, evidence: str | None) -> Any:
    if evidence is None:
        return None
    if device is None:
        raise UsageError("--calibrate scales a device's figures", advice="name the device it was proved on: --device")
    from longproof.claim.timed_points import timed_points
    from longproof.plan.speeds import calibrated_rates

    points = timed_points(Path(evidence))
    return calibrated_rates(geometry, launch, device, prefill=points.prefill, decode=points.decode)
