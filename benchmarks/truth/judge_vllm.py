"""vLLM: does some whole number of blocks that the logged bytes allow print the figures that were printed?

A logged GiB stands for ±0.005 GiB, so the bytes allow a small range of block counts (one, for an exact byte figure).
Settings a report did not record are tried (vllm_trials); the verdict names what had to be assumed.
"""

from __future__ import annotations

from longproof.errors import UserError
from longproof.geometry.model import ModelGeometry
from longproof.plan.capacity import Capacity, EngineReport
from longproof.plan.vllm_capacity import log_line
from longproof.plan.vllm_groups import padding_layers
from longproof.plan.vllm_hybrid import largest_state_bytes
from longproof.plan.vllm_release import LogLine
from truth.cases import COUNTED, GIB, Case
from truth.verdict import Outcome, Verdict
from truth.vllm_trials import Trial, trials

_ROUNDING = 0.005 + 1e-9
"""Half of the last logged digit of GiB and of the concurrency."""
_BOUND = 0.03
"""How far below rank 0's bytes the smallest rank may lie in a rank-min report."""


def judge_vllm(case: Case, geometry: ModelGeometry) -> Verdict:
    """The verdict on one vLLM report."""
    observed = _observed(case)
    if case.kind in COUNTED and not _tests(case):
        return Verdict(Outcome.UNKNOWN, "", observed, why="the report has no figure that a prediction could miss")
    first: Trial | None = None
    counted = case.kind in COUNTED
    try:
        for trial in trials(case, geometry):
            first = first or trial
            if _problem(trial) is None:
                outcome = Outcome.AGREES if counted else Outcome.SHOWN
                if case.kind == "log-wrong":
                    outcome = Outcome.MISLEADING
                return Verdict(outcome, _predicted(trial), observed, assumed=trial.assumed)
    except UserError as error:
        return Verdict(Outcome.UNKNOWN, "", observed, why=str(error))
    assert first is not None
    if case.kind == "rank-min":
        return _bound(first, observed)
    if case.kind == "log-wrong" and (contradiction := _contradiction(case)) is not None:
        return Verdict(Outcome.MISLEADING, contradiction, observed, why=_problem(first) or "")
    outcome = Outcome.DISAGREES if counted or case.kind == "log-wrong" else Outcome.SHOWN
    return Verdict(outcome, _predicted(first), observed, why=_problem(first) or "")


def _refused(case: Case) -> bool:
    """Whether the server refused to start; only then does it log what a request needs."""
    return bool(case.observed.get("refused")) or case.number("needed_kv_gib") is not None


def _tests(case: Case) -> bool:
    """Whether the report has a figure of the kind its class compares."""
    if _refused(case):
        return any(case.observed.get(name) is not None for name in ("needed_kv_gib", "available_kv_memory_gib"))
    if case.number("kv_cache_blocks") is not None and _bytes(case) is not None:
        return True
    return any(case.number(name) is not None for name in ("kv_cache_tokens", "max_concurrency", "attention_block"))


def _problem(trial: Trial) -> str | None:
    """Why this trial does not explain the report; None when it does."""
    return _hybrid_problem(trial) or _need_problem(trial) or _figures_problem(trial)


def _hybrid_problem(trial: Trial) -> str | None:
    case, pool = trial.case, trial.pool
    if not pool.pages.state_page_bytes:
        return None
    block = pool.pages.block_tokens
    recorded = case.count("attention_block") or case.block_size
    if recorded is not None and recorded != block:
        return f"attention block {block}, reported {recorded}"
    padded = case.number("mamba_pad_pct")
    state = largest_state_bytes(trial.geometry, trial.launch)
    percent = 100 * (pool.pages.state_page_bytes - state) / state
    if padded is not None and abs(percent - padded) > _ROUNDING:
        return f"states padded by {percent:.2f} %, reported {padded} %"
    layers = case.count("padding_layers")
    if layers is not None and layers != padding_layers(pool.groups):
        return f"{padding_layers(pool.groups)} padding layers, reported {layers}"
    return None


def _need_problem(trial: Trial) -> str | None:
    case = trial.case
    if not _refused(case):
        return None
    needed = case.number("needed_kv_gib")
    low, high = _bytes(case) or (0, 0)
    poor, rich = trial.plan(low), trial.plan(high)
    computed = _needed_bytes(trial, poor) / GIB
    if needed is not None and abs(computed - needed) > _ROUNDING:
        return f"needs {computed:.2f} GiB, reported {needed}"
    if high and poor.refusal is None:
        return "would start, the report was refused"
    longest = case.count("estimated_max_model_len")
    if longest is None or not high:
        return None
    least, most = (
        trial.pool.length_tokens if plan.refusal is None else plan.refusal.longest_request_tokens
        for plan in (poor, rich)
    )
    return None if least <= longest <= most else f"longest request {least} to {most}, reported {longest}"


def _needed_bytes(trial: Trial, plan: Capacity) -> int:
    if plan.refusal is not None:
        return plan.refusal.needed_bytes
    return plan.need.blocks * max(trial.pool.stage_block_bytes)


def _figures_problem(trial: Trial) -> str | None:
    case = trial.case
    figures = ("kv_cache_tokens", "max_concurrency", *(["kv_cache_blocks"] if _bytes(case) else []))
    if all(case.number(name) is None for name in figures):
        return None
    low, high = _blocks(trial)
    if any(_prints(trial, blocks, line) for line in trial.lines for blocks in range(low, high + 1)):
        return None
    printed = log_line(trial.pool, (low + high) // 2, trial.lines[0])
    return (
        f"{low} to {high} blocks of {max(trial.pool.stage_block_bytes)} bytes; the middle one prints {_report(printed)}"
    )


def _prints(trial: Trial, blocks: int, line: LogLine) -> bool:
    printed = log_line(trial.pool, blocks, line)
    seen = trial.case.count("kv_cache_blocks")
    tokens = trial.case.count("kv_cache_tokens")
    concurrency = trial.case.number("max_concurrency")
    return (
        (seen is None or seen == blocks)
        and (tokens is None or printed.tokens == tokens)
        and (concurrency is None or abs((printed.concurrency or 0.0) - concurrency) <= _ROUNDING)
    )


def _blocks(trial: Trial) -> tuple[int, int]:
    """Block counts the logged bytes allow; without bytes those the logged concurrency or tokens allow."""
    case, pool = trial.case, trial.pool
    given = _bytes(case)
    if given is not None:
        size = max(pool.stage_block_bytes)
        return given[0] // size, given[1] // size
    concurrency = case.number("max_concurrency")
    if concurrency is not None:
        return int((concurrency - _ROUNDING) * trial.need), int((concurrency + _ROUNDING) * trial.need) + 1
    tokens = case.count("kv_cache_tokens") or 0
    smallest = min(group.spec.block_tokens for group in pool.groups)
    guessed = {
        LogLine.PER_LENGTH: tokens * trial.need // pool.length_tokens,
        LogLine.PER_GROUP: tokens * len(pool.groups) // (smallest * pool.dcp),
    }[trial.lines[0]]
    return guessed - 1, guessed + len(pool.groups)


def _bytes(case: Case) -> tuple[int, int] | None:
    exact = case.count("kv_cache_memory_bytes")
    if exact is not None:
        return exact, exact
    logged = case.number("available_kv_memory_gib")
    if logged is None:
        return None
    return int((logged - _ROUNDING) * GIB), int((logged + _ROUNDING) * GIB)


def _bound(trial: Trial, observed: str) -> Verdict:
    """Rank 0's bytes bound the pool from above; the smallest rank decides."""
    low, high = _blocks(trial)
    seen = trial.case.count("kv_cache_blocks") or round((trial.case.number("max_concurrency") or 0) * trial.need)
    fits = low * (1 - _BOUND) <= seen <= high
    return Verdict(
        Outcome.SHOWN,
        f"at most {high} blocks by rank 0's bytes",
        observed,
        why=f"the smallest rank had {100 * (1 - seen / high):.1f} % fewer" if fits else "the bound does not hold",
    )


def _contradiction(case: Case) -> str | None:
    """The true figure where the report's own figures contradict its token line, although its launch is not recorded
    well enough to compute them."""
    tokens, concurrency, length = case.count("kv_cache_tokens"), case.number("max_concurrency"), case.max_model_len
    before = case.count("tokens_old_log")
    if before is not None and tokens is not None and before != tokens:
        return f"one pool printed as {before} and as {tokens} tokens: the line counts something else in each release"
    if tokens is None or concurrency is None or length is None or abs(tokens / length - concurrency) <= _ROUNDING:
        return None
    real = round(concurrency * length, -3)
    return f"its own {concurrency}x of {length} tokens are about {real:.0f} tokens, not {tokens}"


def _predicted(trial: Trial) -> str:
    case, pool = trial.case, trial.pool
    parts = [f"need {trial.need} blocks"]
    if _refused(case):
        size = _bytes(case)
        plan = trial.plan(size[1] if size else 0)
        parts.append(f"{_needed_bytes(trial, plan) / GIB:.2f} GiB")
        if plan.refusal is not None and size:
            parts.append(f"longest {plan.refusal.longest_request_tokens}")
    if pool.pages.state_page_bytes:
        parts.append(f"block {pool.pages.block_tokens}")
    if case.count("kv_cache_tokens") or case.number("max_concurrency"):
        low, high = _blocks(trial)
        exact = [(b, line) for line in trial.lines for b in range(low, high + 1) if _prints(trial, b, line)]
        blocks, line = exact[0] if exact else ((low + high) // 2, trial.lines[0])
        parts.append(_report(log_line(pool, blocks, line)))
        if case.kind == "log-wrong":
            parts.append(f"really {int(blocks / trial.need * pool.length_tokens)} tokens at {pool.length_tokens}")
    return " ".join(parts)


def _report(report: EngineReport) -> str:
    concurrency = "" if report.concurrency is None else f" {report.concurrency:.2f}x"
    return f"{report.blocks} blocks {report.tokens} tokens{concurrency}"


def _observed(case: Case) -> str:
    names = {
        "needed_kv_gib": "needs {} GiB",
        "available_kv_memory_gib": "of {} GiB",
        "estimated_max_model_len": "longest {}",
        "kv_cache_blocks": "{} blocks",
        "kv_cache_tokens": "{} tokens",
        "max_concurrency": "{}x",
        "attention_block": "block {}",
    }
    parts = [text.format(case.observed[name]) for name, text in names.items() if case.observed.get(name) is not None]
    return ("refused " if _refused(case) else "") + " ".join(parts)
