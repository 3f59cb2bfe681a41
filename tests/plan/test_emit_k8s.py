"""LeaderWorkerSet manifests against the fields of the real custom resource.

FIELDS has the part of the CRD that the manifests use, with its types, enumerations and required fields, as read in
kubernetes-sigs/lws (config/crd/bases/leaderworkerset.x-k8s.io_leaderworkersets.yaml, commit 060ab4d, 2026-08-21). A
structural schema drops what it does not know, so an unknown field is an error here.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from longproof.errors import UsageError
from longproof.geometry.kinds import GroupedAttention, LayerKind
from longproof.geometry.model import Layer, Mlp, ModelGeometry
from longproof.plan.capacity import Device, Launch, Layout, PlanEngine
from longproof.plan.emit import EmitTarget, emit
from longproof.plan.emit_order import LaunchOrder
from longproof.plan.layouts import Arrangement

# A field ending in ! is required. A list of one is an array, a set an enumeration, {"*": x} a map.
PROBE = {
    "httpGet": {"path": str, "port!": int, "host": str, "scheme": str},
    "periodSeconds": int,
    "failureThreshold": int,
    "initialDelaySeconds": int,
}
CONTAINER = {
    "name!": str,
    "image": str,
    "command": [str],
    "args": [str],
    "env": [
        {
            "name!": str,
            "value": str,
            "valueFrom": {
                "fieldRef": {"fieldPath!": str, "apiVersion": str},
                "secretKeyRef": {"name": str, "key!": str, "optional": bool},
            },
        }
    ],
    "ports": [{"containerPort!": int, "name": str, "protocol": str}],
    "resources": {"limits": {"*": str}, "requests": {"*": str}},
    "readinessProbe": PROBE,
    "startupProbe": PROBE,
    "livenessProbe": PROBE,
    "volumeMounts": [{"name!": str, "mountPath!": str, "readOnly": bool}],
}
POD = {
    "metadata": {"labels": {"*": str}, "annotations": {"*": str}, "name": str, "namespace": str},
    "spec": {
        "containers!": [CONTAINER],
        "volumes": [{"name!": str, "emptyDir": {"medium": str, "sizeLimit": str}}],
        "nodeSelector": {"*": str},
        "hostNetwork": bool,
    },
}
FIELDS = {
    "apiVersion": {"leaderworkerset.x-k8s.io/v1"},
    "kind": {"LeaderWorkerSet"},
    "metadata": {"name!": str, "namespace": str, "labels": {"*": str}},
    "spec": {
        "replicas": int,
        "startupPolicy": {"LeaderCreated", "LeaderReady"},
        "networkConfig": {"subdomainPolicy!": {"Shared", "UniquePerReplica"}},
        "leaderWorkerTemplate": {
            "size": int,
            "restartPolicy": {"Default", "RecreateGroupOnPodRestart", "RecreateGroupAfterStart", "None"},
            "subGroupPolicy": {"subGroupSize": int},
            "leaderTemplate": POD,
            "workerTemplate!": POD,
        },
    },
}
SERVICE = {
    "apiVersion!": {"v1"},
    "kind!": {"Service"},
    "metadata!": {"name!": str},
    "spec!": {"selector": {"*": str}, "ports": [{"port!": int, "targetPort": int, "name": str, "protocol": str}]},
}
QUANTITY = re.compile(r"^[0-9]+(\.[0-9]+)?([KMGTPE]i?|[num])?$")


def faults(value: Any, fields: Any, path: str = "") -> list[str]:
    """What of `value` the fields do not allow."""
    if isinstance(fields, set):
        return [] if value in fields else [f"{path}: {value!r} is none of {sorted(fields)}"]
    if isinstance(fields, list):
        if not isinstance(value, list):
            return [f"{path}: no array"]
        return [fault for n, item in enumerate(value) for fault in faults(item, fields[0], f"{path}[{n}]")]
    if isinstance(fields, type):
        fits = isinstance(value, fields) and not (fields is int and isinstance(value, bool))
        return [] if fits else [f"{path}: {value!r} is no {fields.__name__}"]
    if not isinstance(value, dict):
        return [f"{path}: no object"]
    if "*" in fields:
        return [fault for key, item in value.items() for fault in faults(item, fields["*"], f"{path}.{key}")]
    named = {key.rstrip("!"): inner for key, inner in fields.items()}
    found = [f"{path}.{key}: unknown" for key in value if key not in named]
    found += [f"{path}.{key[:-1]}: missing" for key in fields if key.endswith("!") and key[:-1] not in value]
    return found + [f for key, item in value.items() if key in named for f in faults(item, named[key], f"{path}.{key}")]


def order(engine: PlanEngine, arrangement: Arrangement, **changes: Any) -> LaunchOrder:
    attention = GroupedAttention(kind=LayerKind.FULL, query_heads=64, kv_heads=8, k_dim=128, v_dim=128)
    layers = tuple(Layer(index=i, attention=attention, mlp=Mlp(dense_size=64)) for i in range(80))
    geometry = ModelGeometry(name="dense", architecture="llama", source="test", layers=layers)
    launch = Launch(engine=engine, max_model_len_tokens=131_072, device=changes.pop("device", Device.CUDA))
    return LaunchOrder(model="Org/Some_Model.70B", geometry=geometry, launch=launch, arrangement=arrangement, **changes)


def documents(asked: LaunchOrder) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(emit(asked, EmitTarget.K8S)))


WIDE = Arrangement(layout=Layout(tp=8, pp=2), replicas=3)
SPLIT = Arrangement(layout=Layout(tp=8, pp=2), replicas=2, decode=Layout(tp=4), decode_replicas=5)


@pytest.mark.parametrize("engine", [PlanEngine.VLLM, PlanEngine.SGLANG])
@pytest.mark.parametrize("arrangement", [Arrangement(layout=Layout(tp=4)), WIDE, SPLIT])
def test_manifests_keep_the_schema_when_emitted(engine: PlanEngine, arrangement: Arrangement) -> None:
    found = documents(order(engine, arrangement))
    assert [d["kind"] for d in found] == ["LeaderWorkerSet", "Service"] * (2 if arrangement.decode else 1)
    for document in found:
        assert faults(document, FIELDS if document["kind"] == "LeaderWorkerSet" else SERVICE) == []
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", document["metadata"]["name"])


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"spec": {"leaderWorkerTemplate": {}}}, ".spec.leaderWorkerTemplate.workerTemplate: missing"),
        ({"spec": {"replica": 1}}, ".spec.replica: unknown"),
        ({"spec": {"replicas": "1"}}, ".spec.replicas: '1' is no int"),
        ({"kind": "StatefulSet"}, ".kind: 'StatefulSet' is none of ['LeaderWorkerSet']"),
    ],
)
def test_the_check_itself_finds_faults_when_there_are_some(change: dict[str, Any], fault: str) -> None:
    assert fault in faults(change, FIELDS)


def test_one_pod_per_host_when_a_server_spans_hosts() -> None:
    lws, service = documents(order(PlanEngine.VLLM, WIDE))
    spec = lws["spec"]
    assert spec["replicas"] == 3
    template = spec["leaderWorkerTemplate"]
    assert template["size"] == 2  # 16 devices, 8 a host
    leader, worker = (template[part]["spec"]["containers"][0] for part in ("leaderTemplate", "workerTemplate"))
    for container in (leader, worker):
        assert container["resources"]["limits"] == {"nvidia.com/gpu": "8"}
        assert QUANTITY.match(container["resources"]["limits"]["nvidia.com/gpu"])
    assert "--headless" in worker["command"]
    assert "--headless" not in leader["command"]
    assert worker["command"][worker["command"].index("--node-rank") + 1] == "$(LWS_WORKER_INDEX)"
    assert leader["command"][leader["command"].index("--master-addr") + 1] == "$(LWS_LEADER_ADDRESS)"
    assert "readinessProbe" in leader
    assert "readinessProbe" not in worker
    # the service finds leaders and nothing else
    labels = template["leaderTemplate"]["metadata"]["labels"]
    own = {k: v for k, v in service["spec"]["selector"].items() if k != "leaderworkerset.sigs.k8s.io/name"}
    assert own.items() <= labels.items()
    assert not own.items() <= template["workerTemplate"]["metadata"]["labels"].items()
    assert service["spec"]["selector"]["leaderworkerset.sigs.k8s.io/name"] == lws["metadata"]["name"]


def test_pools_are_sets_of_their_own_when_split() -> None:
    prefill, _, decode, _ = documents(order(PlanEngine.VLLM, SPLIT))
    assert prefill["metadata"]["name"] == "some-model-70b-prefill"
    assert decode["metadata"]["name"] == "some-model-70b-decode"
    assert (prefill["spec"]["replicas"], decode["spec"]["replicas"]) == (2, 5)
    assert decode["spec"]["leaderWorkerTemplate"]["size"] == 1
    (container,) = decode["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"]["containers"]
    env = {one["name"]: one for one in container["env"]}
    names = [one["name"] for one in container["env"]]
    # $(POD_ADDRESS) is expanded only where it is defined before
    assert env["VLLM_NIXL_SIDE_CHANNEL_HOST"]["value"] == "$(POD_ADDRESS)"
    assert names.index("POD_ADDRESS") < names.index("VLLM_NIXL_SIDE_CHANNEL_HOST")
    assert "$HOST_ADDRESS" not in str(container)


def test_resource_follows_the_vendor_when_emitted() -> None:
    def limits(device: Device) -> dict[str, str]:
        lws, _ = documents(order(PlanEngine.VLLM, Arrangement(layout=Layout(tp=4)), device=device))
        (container,) = lws["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"]["containers"]
        return container["resources"].get("limits", {})

    assert limits(Device.CUDA) == {"nvidia.com/gpu": "4"}
    assert limits(Device.ROCM) == {"amd.com/gpu": "4"}
    assert limits(Device.CPU) == {}


def test_image_is_the_engine_s_own_when_none_is_given() -> None:
    def image(engine: PlanEngine, **changes: Any) -> str:
        lws, _ = documents(order(engine, Arrangement(layout=Layout()), **changes))
        return lws["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"]["containers"][0]["image"]

    assert image(PlanEngine.VLLM) == "vllm/vllm-openai:v0.32.0"
    assert image(PlanEngine.SGLANG) == "lmsysorg/sglang:v0.5.23"
    assert image(PlanEngine.LLAMACPP, image="own/llama:1") == "own/llama:1"
    with pytest.raises(UsageError, match="no container image"):
        image(PlanEngine.LLAMACPP)


def test_name_leaves_room_for_pod_suffixes_when_the_model_s_is_long() -> None:
    lws, _ = documents(order(PlanEngine.VLLM, Arrangement(layout=Layout()), served_name="x" * 200))
    assert len(lws["metadata"]["name"]) <= 50
