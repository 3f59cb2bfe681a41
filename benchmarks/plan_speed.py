"""How long one plan takes after imports, how it grows with layers, and how long a search over layouts takes.

    python benchmarks/plan_speed.py MODELS.jsonl

Every model of the file is planned at one rank with 20 GiB by vLLM's rules, and whole (memory, capacity, admission,
time, price) on 8 devices; then one synthetic model of growing depth; then the searches of `search_speed.py`. Times are
the median and the worst of the repeats, on one core.
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import search_speed
from truth.models import KnownModels

from longproof.errors import UserError
from longproof.geometry.kinds import GroupedAttention, LayerKind
from longproof.geometry.model import Layer, ModelGeometry
from longproof.hardware.catalogue import find_device
from longproof.plan.capacity import Launch, Layout, PlanEngine, same_budget
from longproof.plan.planner import make_plan, whole_window
from longproof.plan.vllm_capacity import plan_vllm

_REPEATS = 20
_DEPTHS = (32, 64, 128, 256, 512, 1024)


def main(arguments: list[str]) -> int:
    """Time all plans; 1 when the median of one model reaches 50 ms (a single plan may meet another process)."""
    if len(arguments) != 1:
        print("usage: python benchmarks/plan_speed.py MODELS.jsonl", file=sys.stderr)
        return 2
    known = KnownModels.read(Path(arguments[0]))
    worst = 0.0
    medians: list[float] = []
    whole: list[float] = []
    for name in known.configs:
        try:
            geometry = known.geometry(name)
            if geometry is None:
                continue
            times = _times(geometry)
        except UserError as error:
            print(f"{name}: not planned: {error}")
            continue
        medians.append(statistics.median(times))
        whole += _whole(geometry)
        worst = max(worst, *times)
    print(
        f"{len(medians)} models: median {statistics.median(medians):.2f} ms, slowest model {max(medians):.2f} ms, "
        f"slowest single plan {worst:.2f} ms"
    )
    middle = statistics.median(whole)
    print(f"{len(whole)} whole plans on 8 devices: median {middle:.2f} ms, slowest {max(whole):.2f} ms")
    for depth in _DEPTHS:
        times = _times(_uniform(depth))
        median = statistics.median(times)
        print(f"{depth} layers: median {median:.2f} ms, {1e3 * median / depth:.1f} us a layer")
    searched = search_speed.main()
    return 0 if max(medians) < 50 and middle < 50 and searched == 0 else 1


def _whole(geometry: ModelGeometry) -> list[float]:
    """Milliseconds of one whole plan with 8 tensor-parallel ranks; nothing where the model does not go there."""
    launch = Launch(engine=PlanEngine.VLLM, max_model_len_tokens=32_768, layout=Layout(tp=8))
    begin = time.perf_counter()
    try:
        make_plan(geometry, launch, whole_window(geometry, launch, 1000), find_device("b200"))
    except UserError:
        return []  # heads that do not divide by 8, or weights too large: nothing was planned
    return [1e3 * (time.perf_counter() - begin)]


def _times(geometry: ModelGeometry) -> list[float]:
    launch = Launch(engine=PlanEngine.VLLM, max_model_len_tokens=131_072)
    budgets = same_budget(launch.layout, 20 << 30, "benchmark")
    found: list[float] = []
    for _ in range(_REPEATS):
        begin = time.perf_counter()
        plan_vllm(geometry, launch, budgets)
        found.append(1e3 * (time.perf_counter() - begin))
    return found


def _uniform(depth: int) -> ModelGeometry:
    attention = GroupedAttention(kind=LayerKind.FULL, query_heads=32, kv_heads=8, k_dim=128, v_dim=128)
    layers = tuple(Layer(index=i, attention=attention) for i in range(depth))
    return ModelGeometry(name="uniform", architecture="llama", source="benchmark", layers=layers)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
