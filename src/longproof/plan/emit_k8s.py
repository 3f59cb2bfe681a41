"""LeaderWorkerSet manifests (leaderworkerset.x-k8s.io/v1): one set per pool, one Service before its leaders.

    LeaderWorkerSet  replicas = servers of the pool, size = hosts of one server, one pod per host
    Service          picks the leaders: they alone answer HTTP

LWS gives every pod LWS_LEADER_ADDRESS, LWS_GROUP_SIZE and LWS_WORKER_INDEX; Kubernetes expands $(NAME) in commands.
Fields as in the CRD of kubernetes-sigs/lws v0.9. A llama.cpp image must have llama-server on its path.
"""

from __future__ import annotations

import re
from typing import TypeAlias

import yaml

from longproof.errors import UsageError
from longproof.plan.capacity import Device, PlanEngine
from longproof.plan.emit_command import command_of
from longproof.plan.emit_order import LaunchOrder, Placement, Pool, Role, pools_of

_Node: TypeAlias = "str | int | bool | list[_Node] | dict[str, _Node]"
_IMAGES = {PlanEngine.VLLM: "vllm/vllm-openai:v0.32.0", PlanEngine.SGLANG: "lmsysorg/sglang:v0.5.23"}
_DEVICE_RESOURCE = {Device.CUDA: "nvidia.com/gpu", Device.ROCM: "amd.com/gpu", Device.TPU: "google.com/tpu"}
_LEADER, _INDEX = "$(LWS_LEADER_ADDRESS)", "$(LWS_WORKER_INDEX)"
_POD_ADDRESS = "POD_ADDRESS"
_START_MINUTES = 60
"""Weights of hundreds of GB are read before the first answer."""


def manifests(order: LaunchOrder) -> str:
    """All documents as YAML. Raises UsageError without an image, LayoutError for a layout the engine refuses."""
    documents: list[_Node] = []
    for pool in pools_of(order):
        name = _name(order, pool)
        documents += [_set(order, pool, name), _service(order, pool, name)]
    # types-PyYAML leaves `width` partly untyped
    return yaml.safe_dump_all(documents, sort_keys=False, width=120)  # pyright: ignore[reportUnknownMemberType]


def _set(order: LaunchOrder, pool: Pool, name: str) -> _Node:
    template: dict[str, _Node] = {"size": pool.nodes, "restartPolicy": "RecreateGroupOnPodRestart"}
    if pool.nodes > 1:
        template["leaderTemplate"] = _pod(order, pool, _place(order, pool, leader=True))
        template["workerTemplate"] = _pod(order, pool, _place(order, pool, leader=False))
    else:
        template["workerTemplate"] = _pod(order, pool, _place(order, pool, leader=True))
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {"name": name},
        "spec": {"replicas": pool.replicas, "startupPolicy": "LeaderCreated", "leaderWorkerTemplate": template},
    }


def _place(order: LaunchOrder, pool: Pool, *, leader: bool) -> Placement:
    return Placement(
        role=pool.role,
        layout=pool.layout,
        nodes=pool.nodes,
        node="0" if leader else _INDEX,
        leader=_LEADER,
        port=order.port,
        headless=not leader,
    )


def _pod(order: LaunchOrder, pool: Pool, place: Placement) -> _Node:
    argv, env = command_of(order, place)
    leads = not place.headless
    container: dict[str, _Node] = {
        "name": "engine",
        "image": _image(order),
        "command": list[_Node](argv),
        "env": [*_own_address(place), *_token(), *({"name": n, "value": _expanded(v)} for n, v in env)],
        "resources": _resources(order, pool),
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],  # noqa: S108 - where NCCL keeps its buffers
    }
    if leads:
        check: dict[str, _Node] = {"path": "/health", "port": place.port}
        container["ports"] = [{"name": "http", "containerPort": place.port}]
        container["readinessProbe"] = {"httpGet": check, "periodSeconds": 10}
        container["startupProbe"] = {"httpGet": check, "periodSeconds": 10, "failureThreshold": _START_MINUTES * 6}
    labels: dict[str, _Node] = {"longproof/pool": pool.role.value, "longproof/part": "leader" if leads else "worker"}
    return {
        "metadata": {"labels": labels},
        "spec": {
            "containers": [container],
            "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}],
        },
    }


def _resources(order: LaunchOrder, pool: Pool) -> _Node:
    resource = _DEVICE_RESOURCE.get(order.launch.device)
    return {} if resource is None else {"limits": {resource: str(pool.devices // pool.nodes)}}


def _own_address(place: Placement) -> list[_Node]:
    if place.role is Role.SERVE:
        return []
    return [{"name": _POD_ADDRESS, "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]


def _token() -> list[_Node]:
    """A hub token, when the cluster has one: the manifest holds no secret."""
    return [{"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hf-token", "key": "token", "optional": True}}}]


def _expanded(value: str) -> str:
    return f"$({_POD_ADDRESS})" if value == "$HOST_ADDRESS" else value


def _service(order: LaunchOrder, pool: Pool, name: str) -> _Node:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {
            "selector": {
                "leaderworkerset.sigs.k8s.io/name": name,
                "longproof/pool": pool.role.value,
                "longproof/part": "leader",
            },
            "ports": [{"name": "http", "port": order.port, "targetPort": order.port}],
        },
    }


def _image(order: LaunchOrder) -> str:
    image = order.image or _IMAGES.get(order.launch.engine)
    if image is None:
        raise UsageError(f"no container image of {order.launch.engine.value} is known", advice="name one with --image")
    return image


def _name(order: LaunchOrder, pool: Pool) -> str:
    """A DNS label: at most 63 characters, of which LWS adds up to 12 for replica and worker."""
    plain = re.sub(r"[^a-z0-9]+", "-", (order.served_name or order.model.rsplit("/", 1)[-1]).lower()).strip("-")
    suffix = "" if pool.role is Role.SERVE else f"-{pool.role.value}"
    return f"{plain[: 50 - len(suffix)].strip('-') or 'model'}{suffix}"
