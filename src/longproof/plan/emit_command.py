"""One process's command line, by the launch's engine."""

from __future__ import annotations

from longproof.errors import UsageError
from longproof.plan.capacity import PlanEngine
from longproof.plan.emit_llamacpp import llamacpp_command
from longproof.plan.emit_order import LaunchOrder, Placement
from longproof.plan.emit_sglang import sglang_command
from longproof.plan.emit_vllm import vllm_command


def command_of(order: LaunchOrder, place: Placement) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """(argv, environment) of one process by the launch's engine. Raises UsageError where none is written."""
    match order.launch.engine:
        case PlanEngine.VLLM:
            return vllm_command(order, place)
        case PlanEngine.SGLANG:
            return sglang_command(order, place)
        case PlanEngine.LLAMACPP:
            return llamacpp_command(order, place)
        case PlanEngine.TENSORRT_LLM:
            raise UsageError(
                "launches of TensorRT-LLM are not written", advice="emit for vllm, sglang or llama.cpp, or write it"
            )
