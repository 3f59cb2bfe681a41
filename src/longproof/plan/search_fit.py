"""What a search asks for each layout: the capacity of its launch, the memory estimated term by term."""

from __future__ import annotations

from dataclasses import replace

from longproof.geometry.model import ModelGeometry
from longproof.plan.capacity import Capacity, Launch, Layout, PlanEngine, RankBudget
from longproof.plan.memory import MemoryChoices, estimate_memory, estimated_budgets
from longproof.plan.planner import capacity_of
from longproof.plan.search_question import CapacityOf


def window_tokens(engine: PlanEngine, request_tokens: int) -> int:
    """The limit to launch with so that a request of that many tokens, output included, is taken.

    SGLang keeps one token of its context length back (tp_worker, max_req_len).
    """
    return request_tokens + 1 if engine is PlanEngine.SGLANG else request_tokens


def estimated_capacity(geometry: ModelGeometry, launch: Launch, choices: MemoryChoices) -> CapacityOf:
    """The capacity of `launch` in each layout that is asked for."""
    budgets: dict[Layout, tuple[RankBudget, ...]] = {}

    def of(layout: Layout) -> Capacity:
        laid = replace(launch, layout=layout)
        # DCP spreads the cache and nothing else: layouts that differ in it leave the same memory.
        alike = replace(layout, dcp=1)
        if alike not in budgets:
            budgets[alike] = estimated_budgets(estimate_memory(geometry, laid, choices))
        return capacity_of(geometry, laid, budgets[alike])

    return of
