"""A search from a launch: its cache dtype, its precision, and each layout's capacity, memory estimated term by term.

geometry + launch + Hardware + Workload ──search_devices──▶ SearchResult
"""

from __future__ import annotations

from dataclasses import replace

from longproof.geometry.model import ModelGeometry
from longproof.plan.capacity import Capacity, Launch, Layout, PlanEngine
from longproof.plan.layouts import LayoutSpace
from longproof.plan.memory import MemoryChoices, RankMemory, estimate_memory, estimated_budgets
from longproof.plan.perf_estimate import Rates
from longproof.plan.perf_model import work_of
from longproof.plan.planner import capacity_of, check_weights, on_device
from longproof.plan.search import search_layouts
from longproof.plan.search_question import CapacityOf, Hardware, SearchQuestion, SearchResult, Slo, Workload
from longproof.plan.speeds import cache_dtype, narrow_cache, precision_of


def search_devices(
    geometry: ModelGeometry,
    launch: Launch,
    hardware: Hardware,
    workload: Workload,
    *,
    slo: Slo | None = None,
    space: LayoutSpace | None = None,
    rates: Rates | None = None,
    eager: bool = False,
) -> SearchResult:
    """The best layouts of a launch for a workload; the launch's own layout is not looked at.

    A launch without a limit gets the one the workload needs. `rates`: calibrated, None = the device's. `eager`: no CUDA
    graphs. Raises UsageError for what the device or the model does not tell, or no devices.
    """
    if launch.max_model_len_tokens is None:
        launch = replace(launch, max_model_len_tokens=window_tokens(launch.engine, workload.total_tokens))
    launch = on_device(launch, hardware.device)
    dtype = cache_dtype(geometry, launch)
    question = SearchQuestion(
        geometry=geometry,
        work=work_of(geometry, dtype),
        engine=launch.engine,
        hardware=hardware,
        workload=workload,
        slo=slo or Slo(),
        space=space or LayoutSpace(),
        precision=precision_of(geometry),
        rates=rates,
        narrow_cache=narrow_cache(dtype),
        speculation=launch.speculation,
    )
    choices = MemoryChoices(eager=eager, total_bytes=hardware.device.memory_bytes())
    return search_layouts(question, estimated_capacity(geometry, launch, choices))


def window_tokens(engine: PlanEngine, request_tokens: int) -> int:
    """The limit to launch with so that a request of that many tokens, output included, is taken.

    SGLang keeps one token of its context length back (tp_worker, max_req_len).
    """
    return request_tokens + 1 if engine is PlanEngine.SGLANG else request_tokens


def estimated_capacity(geometry: ModelGeometry, launch: Launch, choices: MemoryChoices) -> CapacityOf:
    """The capacity of `launch` in each layout that is asked for.

    What it returns raises LayoutError, with the amounts per rank, where the weights leave nothing.
    """
    memory: dict[Layout, tuple[RankMemory, ...]] = {}

    def of(layout: Layout) -> Capacity:
        laid = replace(launch, layout=layout)
        # DCP spreads the cache and nothing else: layouts that differ in it leave the same memory.
        alike = replace(layout, dcp=1)
        if alike not in memory:
            memory[alike] = estimate_memory(geometry, laid, choices)
        check_weights(memory[alike])
        return capacity_of(geometry, laid, estimated_budgets(memory[alike]))

    return of
