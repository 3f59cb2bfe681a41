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
from longproof.plan.capacity import Capacity, Launch, LlamacppOptions, PlanEngine, Speculation
from longproof.plan.llamacpp_rules import plan_llamacpp
from truth.cases import COUNTED, Case
from truth.verdict import Outcome, Verdict

_MIB = 1 << 20
_ROUNDING = 0.005 + 1e-6
_PARTS = (
    ("rs total", [("rs_r", "rs_s")]),
    ("rs r", [("rs_r",)]),
    ("rs s", [("rs_s",)]),
    ("rs", [("rs_r", "rs_s")]),
    ("swa", [("swa",)]),
    ("all", [("kv", "swa")]),
    ("full", [("kv",)]),
    ("", [("kv",), ("kv", "swa"), ("kv", "kv_indexer")]),
)
"""How a buffer line's label begins, and the pools it may stand for."""


def judge_llamacpp(case: Case, geometry: ModelGeometry) -> Verdict:
    """The verdict on one llama.cpp report."""
    lines = _lines(case)
    observed = ", ".join(f"{line['part']} {line['cells']} cells {line['logged_mib']} MiB" for line in lines)
    if case.kind in COUNTED and not lines:
        return Verdict(Outcome.UNKNOWN, "", observed, why="the report has no buffer line")
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
    if not isinstance(context, int):  # a report without n_ctx still says how many cells there were
        context = max(
            (n for line in lines if isinstance(n := line["cells"], int) and not _is_state(line)), default=None
        )
    states = [line["cells"] for line in lines if _is_state(line)]
    guesses: list[int | None] = [slots] if isinstance(slots, int) else [1, None]
    if not isinstance(slots, int) and states and isinstance(states[0], int):
        guesses = [states[0], *guesses]  # one state per sequence or snapshot, which cost the same
    plain = k_type in (None, "f16")
    windows: tuple[str | None, ...] = (None,) if plain else (None, "f16")
    values: tuple[str | None, ...] = (None,) if plain or isinstance(v_type, str) else (None, "f16")
    mtp = case.speculative is not None and case.speculative.method.startswith(("mtp", "nextn"))
    for value, swa, count in product(values, windows, guesses):
        launch = Launch(
            engine=PlanEngine.LLAMACPP,
            kv_dtype=k_type if isinstance(k_type, str) else "auto",
            max_model_len_tokens=context if isinstance(context, int) else None,
            max_num_seqs=count,
            speculation=Speculation(method="mtp", tokens=1) if mtp else None,
            llamacpp=replace(options, swa_dtype=swa, value_dtype=value or options.value_dtype),
        )
        assumed = [] if isinstance(slots, int) else [f"{'automatic' if count is None else count} slots"]
        yield launch, ", ".join([*assumed, *(["f16 windows"] if swa else []), *(["f16 values"] if value else [])])


def _is_state(line: Mapping[str, object]) -> bool:
    return str(line["part"]).lower().startswith("rs")


def _problem(plan: Capacity, line: Mapping[str, object]) -> str:
    """What of one buffer line the plan does not give; empty when it gives all."""
    label = str(line["part"]).lower()
    meanings = next(names for start, names in _PARTS if label.startswith(start))
    problems = [_mismatch(plan, line, names) for names in meanings]
    return "" if "" in problems else problems[0]


def _mismatch(plan: Capacity, line: Mapping[str, object], names: tuple[str, ...]) -> str:
    pools = [pool for stage in plan.stages for pool in stage.pools if pool.name in names]
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
