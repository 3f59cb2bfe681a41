"""A llama-server's command line, for llama.cpp b11434. Stages are devices: layers are split, and --tensor-split says
how many each takes."""

from __future__ import annotations

from longproof.errors import UsageError
from longproof.plan.capacity import Device, Launch
from longproof.plan.emit_flags import LLAMACPP_FLAGS, FlagValue
from longproof.plan.emit_order import LaunchOrder, Placement

_ALL_LAYERS = 999
_UNQUANTIZED = frozenset({"f32", "f16", "bf16", "auto"})


def llamacpp_command(order: LaunchOrder, place: Placement) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """(argv, environment) of one server. Raises UsageError for what its server cannot do."""
    launch, options = order.launch, order.launch.llamacpp
    if place.nodes > 1:
        raise UsageError(
            f"llama.cpp runs on one host; {place.layout.pp} devices do not fit one of {order.devices_per_host}",
            advice="use fewer devices, or name more per host",
        )
    if launch.speculation is not None:
        raise UsageError("launch flags for llama.cpp's drafting are not written", advice="add them by hand")
    values = options.value_dtype or launch.kv_dtype
    pairs: list[tuple[str, FlagValue]] = [
        *_model(order.model),
        ("--alias", order.served_name),
        ("--host", order.host),
        ("--port", place.port),
        ("--ctx-size", launch.max_model_len_tokens),
        ("--parallel", launch.max_num_seqs),
        ("--kv-unified", options.unified is True),
        ("--no-kv-unified", options.unified is False),
        ("--cache-type-k", _named(launch.kv_dtype)),
        ("--cache-type-v", _named(values)),
        # A quantised V cache needs flash attention.
        ("--flash-attn", None if values in _UNQUANTIZED else "on"),
        ("--batch-size", launch.max_num_batched_tokens),
        ("--ubatch-size", options.micro_batch_tokens),
        ("--swa-full", options.swa_full),
        *_devices(launch, place),
        ("--metrics", True),
    ]
    return ("llama-server", *LLAMACPP_FLAGS.written(pairs)), ()


def _model(model: str) -> list[tuple[str, FlagValue]]:
    is_file = model.endswith(".gguf")
    if not is_file and model.startswith(("/", ".", "~")):
        raise UsageError(
            f"llama.cpp serves .gguf files, and {model} is none",
            advice="name the model's .gguf file, or a repository that has one (owner/name)",
        )
    return [("--model", model if is_file else None), ("--hf-repo", None if is_file else model)]


def _devices(launch: Launch, place: Placement) -> list[tuple[str, FlagValue]]:
    if launch.device is Device.CPU:
        return [("--n-gpu-layers", 0)]
    layout = place.layout
    return [
        ("--n-gpu-layers", _ALL_LAYERS),
        ("--split-mode", "layer" if layout.pp > 1 else None),
        ("--tensor-split", ",".join(map(str, layout.partition)) or None),
    ]


def _named(word: str) -> str | None:
    return None if word == "auto" else word
