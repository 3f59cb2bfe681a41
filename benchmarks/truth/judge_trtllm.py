"""TensorRT-LLM: do the logged bytes give the logged blocks? A logged GiB stands for ±0.005, and releases round a block
up or down."""

from __future__ import annotations

from longproof.errors import UserError
from longproof.geometry.model import ModelGeometry
from longproof.plan.capacity import Launch, PlanEngine, same_budget
from longproof.plan.trtllm_rules import DEFAULT_BLOCK_TOKENS, plan_trtllm
from truth.cases import COUNTED, GIB, Case
from truth.verdict import Outcome, Verdict

_ROUNDING = 0.005 + 1e-9


def judge_trtllm(case: Case, geometry: ModelGeometry) -> Verdict:
    """The verdict on one TensorRT-LLM report."""
    logged, blocks, tokens = (
        case.number("available_kv_memory_gib"),
        case.count("kv_cache_blocks"),
        case.count("kv_cache_tokens"),
    )
    observed = f"{logged} GiB {blocks} blocks {tokens} tokens"
    block = case.block_size or DEFAULT_BLOCK_TOKENS
    if logged is None or (blocks is None and tokens is None):
        return Verdict(Outcome.UNKNOWN, "", observed, why="the report gives no bytes or no tokens")
    launch = Launch(
        engine=PlanEngine.TENSORRT_LLM,
        layout=case.layout,
        kv_dtype=case.kv_dtype,
        block_size_tokens=block,
        max_model_len_tokens=case.max_model_len,
    )
    found: list[int] = []
    try:
        for off in (-_ROUNDING, _ROUNDING):
            budgets = same_budget(case.layout, int((logged + off) * GIB), "report")
            plan = plan_trtllm(geometry, launch, budgets)
            found.append(plan.report.blocks or 0)
    except UserError as error:
        return Verdict(Outcome.UNKNOWN, "", observed, why=str(error))
    low, high = found[0] - 1, found[1]
    seen = blocks if blocks is not None else (tokens or 0) // block
    predicted = f"{low} to {high} blocks of {block} tokens"
    whole = tokens is None or tokens == seen * block
    if low <= seen <= high and whole:
        return Verdict(Outcome.AGREES if case.kind in COUNTED else Outcome.SHOWN, predicted, observed)
    outcome = Outcome.DISAGREES if case.kind in COUNTED else Outcome.SHOWN
    return Verdict(outcome, predicted, observed, why=f"reported {seen} blocks")


def judge_unlisted(case: Case) -> Verdict | None:
    """A size line of zero beside real blocks misleads whatever the model is; None when there is nothing to say."""
    blocks, tokens = case.count("kv_cache_blocks"), case.count("kv_cache_tokens")
    if case.kind != "log-wrong" or case.number("available_kv_memory_gib") or not blocks or not tokens:
        return None
    block = case.block_size or DEFAULT_BLOCK_TOKENS
    return Verdict(
        Outcome.MISLEADING,
        f"really {blocks * block} tokens in {blocks} blocks",
        f"0.00 GiB {tokens} tokens",
        why="AutoDeploy keeps its caches outside the manager that prints the size",
    )
