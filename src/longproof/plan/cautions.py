"""What a plan must say beside its figures: settings the engine may not take, or that change nothing. Pure."""

from __future__ import annotations

from longproof.domain.measure import value_or_none
from longproof.domain.units import format_tokens
from longproof.geometry.model import ModelGeometry
from longproof.plan.capacity import Device, Launch, PlanEngine
from longproof.plan.vllm_release import NEWEST, parse_release

_OVERRIDES = {
    PlanEngine.VLLM: "vLLM starts with it only under VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 (ModelConfig, 0.32)",
    PlanEngine.SGLANG: "SGLang starts with it only under SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1"
    " (ModelConfig, 0.5.23)",
}


def cautions(geometry: ModelGeometry, launch: Launch) -> tuple[str, ...]:
    """One sentence each, in the order limit, version, block, speculation; empty when there is nothing to say."""
    return (
        *_beyond_training(geometry, launch),
        *_unread_release(launch),
        *_odd_block(launch),
        *_without_drafts(geometry, launch),
    )


def _beyond_training(geometry: ModelGeometry, launch: Launch) -> tuple[str, ...]:
    trained, limit = value_or_none(geometry.max_position_tokens), launch.max_model_len_tokens
    rope = geometry.rope
    if trained is not None and rope is not None and rope.kind == "yarn" and rope.factor:
        # vLLM 0.32 ModelConfig: a YaRN model takes the window before stretching times the factor
        trained = max(trained, int((rope.original_tokens or trained) * rope.factor))
    if trained is None or limit is None or limit <= trained:
        return ()
    start = _OVERRIDES.get(launch.engine, "quality beyond it is not known")
    return (f"a limit of {format_tokens(limit)} is beyond the model's {format_tokens(trained)} positions: {start}",)


def _unread_release(launch: Launch) -> tuple[str, ...]:
    if launch.engine is not PlanEngine.VLLM or not launch.version:
        return ()
    release = parse_release(launch.version)
    newest = ".".join(map(str, NEWEST))
    if release is None:
        return (f"'{launch.version}' names no vLLM release: the rules of {newest} are used",)
    if release > NEWEST:
        return (f"vLLM {launch.version} is newer than the rules, which were read in {newest}",)
    return ()


def _odd_block(launch: Launch) -> tuple[str, ...]:
    block = launch.block_size_tokens
    if launch.engine is not PlanEngine.VLLM or launch.device is not Device.CUDA or block is None or not block % 16:
        return ()
    return (f"a block of {block} tokens is no multiple of 16, which vLLM's CUDA attention backends ask for",)


def _without_drafts(geometry: ModelGeometry, launch: Launch) -> tuple[str, ...]:
    speculation = launch.speculation
    if speculation is None or geometry.drafts or not speculation.method.endswith(("mtp", "nextn")):
        return ()
    return (f"the checkpoint describes no draft layers: {speculation.method} adds none, and the engine may refuse it",)
