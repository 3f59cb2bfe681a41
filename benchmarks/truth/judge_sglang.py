"""SGLang: do the tokens a server reported cost the bytes it reported, and do the bytes it had left give those tokens?

A logged GiB stands for ±0.005 GiB. A pool is allocated one page longer than it counts; builds differ in whether the
size line shows that page, so both are accepted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from longproof.errors import UserError
from longproof.geometry.model import ModelGeometry
from longproof.plan.capacity import Capacity, Launch, PlanEngine, SglangOptions, Speculation, same_budget
from longproof.plan.sglang_rules import minimum_memory_fraction, plan_sglang, rest_bytes
from truth.cases import COUNTED, GIB, Case
from truth.verdict import Outcome, Verdict

_ROUNDING = 0.005 + 1e-6
_TOKENS = ("max_total_num_tokens", "full_tokens", "physical_tokens")
_SIZES = {
    "k_gb": ("k",),
    "v_gb": ("v",),
    "kv_gb": ("k", "v", "latent", "indexer"),
    "full_k_gb": ("k",),
    "full_v_gb": ("v",),
    "swa_k_gb": ("swa_k",),
    "swa_v_gb": ("swa_v",),
    "pool_gb": ("k", "v", "latent", "indexer", "swa_k", "swa_v"),
    "conv_gb": ("conv",),
    "ssm_gb": ("ssm",),
    "intermediate_ssm_gb": ("draft_ssm",),
}
"""Reported sizes and the pools they add up."""
_DRAFT_SIZES = {"draft_k_gb": ("draft_k",), "draft_v_gb": ("draft_v",)}
"""Checked for MTP alone: other drafts have a config of their own, which no report gives."""
_FRACTION_ROUNDING = 0.00005 + 1e-9


@dataclass(frozen=True)
class _Check:
    name: str
    low: float
    high: float
    seen: float

    @property
    def holds(self) -> bool:
        return self.low <= self.seen <= self.high


def judge_sglang(case: Case, geometry: ModelGeometry) -> Verdict:
    """The verdict on one SGLang report."""
    observed = " ".join(f"{name} {value}" for name, value in case.observed.items())
    try:
        if case.observed.get("refused"):
            return _verdict(case, _refusal_checks(case), observed)
        tokens = next((case.count(name) for name in _TOKENS if case.count(name)), None)
        if tokens is None:
            return Verdict(Outcome.UNKNOWN, "", observed, why="the report gives no pool size")
        return _judge_pool(case, geometry, _launch(case, tokens), tokens, observed)
    except UserError as error:
        return Verdict(Outcome.UNKNOWN, "", observed, why=str(error))


def _judge_pool(case: Case, geometry: ModelGeometry, launch: Launch, tokens: int, observed: str) -> Verdict:
    tried: list[list[_Check]] = []
    for options, assumed in _builds(launch.sglang):
        trial = replace(launch, sglang=options)
        checks = _checks(case, plan_sglang(geometry, trial)) + _rest_checks(case, geometry, trial, tokens)
        if checks and all(check.holds for check in checks):
            return replace(_verdict(case, checks, observed), assumed=assumed)
        tried.append(checks)
    plan = plan_sglang(geometry, replace(launch, sglang=replace(launch.sglang, indexer_in_budget=False)))
    printed = _printed_without_indexer(case, plan)
    if plan.report.misleading is not None and printed and all(check.holds for check in printed):
        true = sum(pool.total_bytes for pool in plan.stages[0].pools) / GIB
        why = f"{plan.report.misleading}: {true:.2f} GiB in truth"
        return Verdict(Outcome.MISLEADING, f"{_text(printed)}, really {true:.2f} GiB", observed, why=why)
    return _verdict(case, tried[0], observed)


def _builds(options: SglangOptions) -> list[tuple[SglangOptions, str]]:
    """What builds and backends differ in, the usual one first; no report records it."""
    return [
        (options, ""),
        (replace(options, raw_fp8_latent=True), "fp8 latents without scales"),
        (replace(options, indexer_on_shared_layers=False), "no index keys on layers that share a choice"),
    ]


def _launch(case: Case, tokens: int) -> Launch:
    full, swa = case.count("full_tokens"), case.count("swa_tokens")
    options = SglangOptions(max_total_tokens=tokens, max_mamba_slots=case.count("mamba_slots"))
    if full and swa:
        options = replace(options, swa_full_tokens_ratio=swa / full)
    layout = case.layout
    devices = case.raw.get("n_gpus")
    if isinstance(devices, int) and layout.dp > 1 and layout.tp * layout.dp > devices:
        layout = replace(layout, dp_attention=True)  # more ranks than devices: the groups share them
    speculation = None
    if case.speculative is not None:
        speculation = Speculation(method=case.speculative.method, tokens=case.speculative.tokens or 1)
    return Launch(
        engine=PlanEngine.SGLANG,
        layout=layout,
        kv_dtype=case.kv_dtype,
        block_size_tokens=case.block_size,
        max_model_len_tokens=case.max_model_len,
        speculation=speculation,
        sglang=options,
    )


def _checks(case: Case, plan: Capacity) -> list[_Check]:
    known = {pool.name for stage in plan.stages for pool in stage.pools}
    mtp = case.speculative is not None and case.speculative.method.startswith(("mtp", "nextn"))
    return [
        _size_check(case, plan, name, pools)
        for name, pools in (_SIZES | (_DRAFT_SIZES if mtp else {})).items()
        if case.number(name) is not None and known.intersection(pools)
    ]


def _printed_without_indexer(case: Case, plan: Capacity) -> list[_Check]:
    names = tuple(pool for pool in _SIZES["kv_gb"] if pool != "indexer")
    return [_size_check(case, plan, "kv_gb", names)] if case.number("kv_gb") is not None else []


def _size_check(case: Case, plan: Capacity, name: str, pools: tuple[str, ...]) -> _Check:
    found = [pool for pool in plan.stages[0].pools if pool.name in pools]
    counted = sum(pool.units * pool.bytes_per_unit for pool in found) / GIB
    allocated = sum(pool.total_bytes for pool in found) / GIB
    low = allocated if any(pool.unit == "slot" for pool in found) else counted
    return _Check(name, low - _ROUNDING, allocated + _ROUNDING, case.number(name) or 0.0)


def _rest_checks(case: Case, geometry: ModelGeometry, launch: Launch, tokens: int) -> list[_Check]:
    """From the memory before and after loading to the tokens, where both were logged."""
    before, after = case.number("avail_before_load_gb"), case.number("avail_after_load_gb")
    fraction = case.raw.get("mem_fraction_static")
    if before is None or after is None or not isinstance(fraction, float):
        return []
    free = replace(launch, sglang=replace(launch.sglang, max_total_tokens=None))
    found: list[int] = []
    for off in (-_ROUNDING, _ROUNDING):
        rest = rest_bytes((after + off) * GIB, (before - off) * GIB, fraction)
        found.append(plan_sglang(geometry, free, same_budget(free.layout, rest, "report")).report.tokens or 0)
    return [_Check("tokens of the rest", found[0], found[1], tokens)]


def _refusal_checks(case: Case) -> list[_Check]:
    """What was free before loading lies between what weights and rest add up to and the whole device."""
    after, weights = case.number("avail_after_load_gb"), case.number("weights_gb")
    seen, fraction = case.number("min_viable_mem_fraction"), case.raw.get("mem_fraction_static")
    if after is None or weights is None or case.memory_bytes is None:
        return []
    least, most = after + weights, case.memory_bytes / GIB
    checks: list[_Check] = []
    if isinstance(fraction, float):
        rest = rest_bytes(after * GIB, least * GIB, fraction) / GIB
        checks.append(_Check("rest below zero", rest, 0.0, rest if rest < 0 else 1.0))
    if seen is not None:
        low = minimum_memory_fraction(after + _ROUNDING, least - _ROUNDING) - _FRACTION_ROUNDING
        high = minimum_memory_fraction(after - _ROUNDING, most) + _FRACTION_ROUNDING
        checks.append(_Check("smallest fraction", low, high, seen))
    return checks


def _verdict(case: Case, checks: list[_Check], observed: str) -> Verdict:
    if not checks:
        return Verdict(Outcome.UNKNOWN, "", observed, why="the report gives no size to compare")
    failed = [check for check in checks if not check.holds]
    if case.kind not in COUNTED:
        return Verdict(Outcome.SHOWN, _text(checks), observed)
    outcome = Outcome.DISAGREES if failed else Outcome.AGREES
    return Verdict(outcome, _text(checks), observed, why=f"off: {_text(failed)}" if failed else "")


def _text(checks: list[_Check]) -> str:
    return " ".join(f"{check.name} {check.low:.6g}..{check.high:.6g}" for check in checks)
