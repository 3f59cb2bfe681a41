"""The exact launch of an arrangement: commands to start by hand, or manifests for Kubernetes.

    emit(order, EmitTarget.VLLM)  one command per process, a comment line before each
    emit(order, EmitTarget.K8S)   LeaderWorkerSet and Service manifests, see `emit_k8s`

Nothing is started and nothing is asked of a server.
"""

from __future__ import annotations

import shlex
from enum import StrEnum

from longproof.errors import UsageError
from longproof.plan.capacity import Device, Launch, PlanEngine
from longproof.plan.emit_command import command_of
from longproof.plan.emit_flags import FLAGS
from longproof.plan.emit_k8s import manifests
from longproof.plan.emit_order import LaunchOrder, Placement, ServerCommand, pools_of, shell_placements

_VISIBLE = {Device.CUDA: "CUDA_VISIBLE_DEVICES", Device.ROCM: "HIP_VISIBLE_DEVICES"}


class EmitTarget(StrEnum):
    """What to write. K8S takes the launch's own engine."""

    VLLM = "vllm"
    SGLANG = "sglang"
    LLAMACPP = "llamacpp"
    K8S = "k8s"


_ENGINES = {
    EmitTarget.VLLM: PlanEngine.VLLM,
    EmitTarget.SGLANG: PlanEngine.SGLANG,
    EmitTarget.LLAMACPP: PlanEngine.LLAMACPP,
}


def emit(order: LaunchOrder, target: EmitTarget) -> str:
    """The launch as text, ready to paste.

    Raises UsageError for a target of another engine than was planned, LayoutError for a layout the engine refuses.
    """
    if target is EmitTarget.K8S:
        return manifests(order)
    if _ENGINES[target] is not order.launch.engine:
        raise UsageError(
            f"the plan is for {order.launch.engine.value}, and the launch is asked for {target.value}",
            advice=f"plan with --engine {target.value}, or emit for {order.launch.engine.value}",
        )
    lines = [f"# {order.launch.engine.value} {FLAGS[order.launch.engine].version}"]
    if order.arrangement.decode is not None:
        lines.append("# A router in front sends each prompt to a prefill server first, then to a decode server.")
        if order.launch.engine is PlanEngine.VLLM:
            lines.append("# HOST_ADDRESS is the host's own address, as the other pool reaches it.")
    for command in server_commands(order):
        lines += [f"# {command.comment}", _line(command)]
    return "\n".join(lines) + "\n"


def server_commands(order: LaunchOrder) -> tuple[ServerCommand, ...]:
    """Every distinct process to start. Raises as `emit`."""
    found: list[ServerCommand] = []
    for pool in pools_of(order):
        for place, comment in shell_placements(order, pool):
            argv, env = command_of(order, place)
            shares = pool.nodes == 1 and min(pool.per_host, pool.replicas) > 1
            visible = _visible(order.launch, pool.devices, place) if shares else ()
            found.append(ServerCommand(role=place.role, argv=argv, env=(*visible, *env), comment=comment))
    return tuple(found)


def needs_router(order: LaunchOrder) -> bool:
    """Whether something must stand in front: pools are split, or there are replicas."""
    return order.arrangement.decode is not None or order.arrangement.replicas > 1


def _visible(launch: Launch, devices: int, place: Placement) -> tuple[tuple[str, str], ...]:
    name = _VISIBLE.get(launch.device)
    if name is None:
        return ()
    first = place.slot * devices
    return ((name, ",".join(str(n) for n in range(first, first + devices))),)


def _line(command: ServerCommand) -> str:
    env = [f"{name}={_quoted(value)}" for name, value in command.env]
    return " ".join([*env, *(_quoted(word) for word in command.argv)])


def _quoted(word: str) -> str:
    # A variable of the shell must stay one.
    return f'"{word}"' if word.startswith("$") else shlex.quote(word)
