"""llama.cpp: do the window, slots and types of a report give the cells and MiB that its buffer lines show?

A logged MiB stands for ±0.005 MiB per device. Slots a report did not record are tried as one, then as the server's
automatic four; a quantised cache is tried with f16 windows last, as some builds keep them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product

from longproof.errors import UserError
from longproof.geometry.dtypes import KvDtype
from longproof.geometry.footprint import kv_bytes
from longproof.geometry.model import ModelGeometry
from longproof.plan.capacity import Capacity, Launch, LlamacppOptions, PlanEngine, PoolCapacity
from longproof.plan.llamacpp_rules import plan_llamacpp
from truth.cases import COUNTED, Case
from truth.verdict import Outcome, Verdict

_MIB = 1 << 20
_ROUNDING = 0.005 + 1e-6
_PARTS = (
    ("swa", ("swa",)),
    ("rs total", ("rs_r", "rs_s")),
    ("rs r", ("rs_r",)),
    ("rs s", ("rs_s",)),
    ("all", ("kv", "swa")),
    ("", ("kv",)),
)
"""How a buffer line's label begins, and the pools it stands for; the first that fits."""


def judge_llamacpp(case: Case, geometry: ModelGeometry) -> Verdict:
    """The verdict on one llama.cpp report."""
    lines = _lines(case)
    observed = ", ".join(f"{line['part']} {line['cells']} cells {line['logged_mib']} MiB" for line in lines)
    tried: list[tuple[Capacity, str, str]] = []
    try:
        for launch, assumed in _launches(case, lines):
            plan = plan_llamacpp(geometry, launch)
            if plan.report.misleading is not None:
                return _misleading(case, geometry, plan, observed)
            problem = "; ".join(filter(None, (_problem(plan, line) for line in lines)))
            if not problem:
                return Verdict(
                    Outcome.AGREES if case.kind in COUNTED else Outcome.SHOWN, _text(plan), observed, assumed=assumed
                )
            tried.append((plan, assumed, problem))
    except UserError as error:
        return Verdict(Outcome.UNKNOWN, "", observed, why=str(error))
    plan, _, problem = tried[0]
    outcome = Outcome.DISAGREES if case.kind in COUNTED else Outcome.SHOWN
    return Verdict(outcome, _text(plan), observed, why=problem)


def _launches(case: Case, lines: list[Mapping[str, object]]) -> Iterator[tuple[Launch, str]]:
    raw = case.raw
    slots, unified, context = raw.get("n_parallel"), raw.get("kv_unified"), raw.get("n_ctx")
    micro_batch, v_type = raw.get("n_ubatch"), raw.get("cache_type_v")
    options = LlamacppOptions(
        micro_batch_tokens=micro_batch if isinstance(micro_batch, int) else 512,
        unified=unified if isinstance(unified, bool) else None,
        swa_full=raw.get("swa_full") is True,
        value_dtype=v_type if isinstance(v_type, str) else None,
    )
    k_type = raw.get("cache_type_k")
    states = [line["cells"] for line in lines if str(line["part"]).startswith("rs")]
    guesses: list[int | None] = [slots] if isinstance(slots, int) else [1, None]
    if not isinstance(slots, int) and states and isinstance(states[0], int):
        guesses = [states[0], *guesses]  # one state per sequence or snapshot, which cost the same
    dtypes: tuple[str | None, ...] = (None,) if k_type in (None, "f16") else (None, "f16")
    for swa, count in product(dtypes, guesses):
        launch = Launch(
            engine=PlanEngine.LLAMACPP,
            kv_dtype=k_type if isinstance(k_type, str) else "auto",
            max_model_len_tokens=context if isinstance(context, int) else None,
            max_num_seqs=count,
            llamacpp=replace(options, swa_dtype=swa),
        )
        assumed = [] if isinstance(slots, int) else [f"{'automatic' if count is None else count} slots"]
        yield launch, ", ".join([*assumed, *(["f16 windows"] if swa else [])])


def _problem(plan: Capacity, line: Mapping[str, object]) -> str:
    """What of one buffer line the plan does not give; empty when it gives all."""
    pools = _pools(plan, str(line["part"]))
    cells, layers, logged = line.get("cells"), line.get("layers"), line.get("logged_mib")
    total = sum(pool.total_bytes for pool in pools) / _MIB
    if isinstance(logged, int | float) and abs(total - logged) > _ROUNDING:
        return f"{line['part']}: {total:.2f} MiB, reported {logged}"
    if isinstance(cells, int) and pools and cells not in {pool.units for pool in pools}:
        return f"{line['part']}: {pools[0].units} cells, reported {cells}"
    held = {pool.layers for pool in pools} | {sum(pool.layers for pool in pools)}
    if isinstance(layers, int) and layers not in held:
        return f"{line['part']}: {sorted(held)} layers, reported {layers}"
    return ""


def _pools(plan: Capacity, label: str) -> list[PoolCapacity]:
    names = next(names for start, names in _PARTS if label.lower().startswith(start))
    return [pool for stage in plan.stages for pool in stage.pools if pool.name in names]


def _misleading(case: Case, geometry: ModelGeometry, plan: Capacity, observed: str) -> Verdict:
    tokens = plan.report.tokens or 0
    least = kv_bytes(geometry.layers, tokens, KvDtype.FLOAT16) / _MIB
    outcome = Outcome.MISLEADING if case.kind == "log-wrong" else Outcome.UNKNOWN
    return Verdict(
        outcome,
        f"really at least {least:.0f} MiB of windows and compressed entries for {tokens} tokens",
        observed,
        why=plan.report.misleading or "",
    )


def _lines(case: Case) -> list[Mapping[str, object]]:
    buffers = case.observed.get("buffers")
    return [line for line in buffers if isinstance(line, dict)] if isinstance(buffers, list) else []


def _text(plan: Capacity) -> str:
    pools = [pool for stage in plan.stages for pool in stage.pools]
    return ", ".join(f"{pool.name} {pool.units} cells {pool.total_bytes / _MIB:.2f} MiB" for pool in pools)
