"""Would this configuration serve? Held against the plan and the engines that run, before anything is started.

every section ─▶ its rule                         what is no rule is an error with its place
files, ports, addresses ─▶ this machine           `config_check`
[[engine]] embedded ─▶ the plan's arithmetic      its weights and KV against the memory that is free
[[replica]] ─▶ asked                              its longest sequence against what its KV pool holds
names ─▶ each other                               pools, tenants, models and claims that nothing goes by
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from longproof.domain.deployment import Deployment
from longproof.domain.measure import Measured, value_or_none
from longproof.domain.units import format_bytes, format_tokens
from longproof.engines.model_files import resolve_model
from longproof.errors import UserError
from longproof.gateway.config import EngineSection, FleetConfig
from longproof.gateway.config_check import config_problems
from longproof.gateway.introduce import Introduced, meet
from longproof.gateway.keys import KeyRing
from longproof.gateway.launched import running_replicas
from longproof.gateway.replica_rules import described
from longproof.gateway.rules import controller_config, key_rules, price_book, routing_rule
from longproof.geometry.read import read_geometry
from longproof.geometry.weights import model_weight_bytes
from longproof.plan.capacity import Launch, LlamacppOptions, PlanEngine, RankBudget
from longproof.plan.llamacpp_rules import plan_llamacpp
from longproof.policy.claim_gate import ProvenLimits

Proven = Callable[[Mapping[str, Sequence[Deployment]]], Mapping[str, ProvenLimits]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """What was found: `facts` for people, `problems` that would keep requests from being served as configured."""

    facts: tuple[str, ...]
    problems: tuple[str, ...]


async def check_config(config: FleetConfig, proven: Proven, *, within_s: float, state: Path) -> Checked:
    """Checks everything that can be checked without starting an engine. `state`: where usage would be kept. Raises
    UserError for what is no configuration at all."""
    facts: list[str] = []
    problems: list[str] = []
    KeyRing.of(key_rules(config))
    price_book(config.price)
    routing_rule(config)
    controller_config(config, (), {})
    problems += await asyncio.to_thread(lambda: list(config_problems(config, state)))
    for number, engine in enumerate(config.engine):
        name = engine.name or f"engine {number}"
        if engine.kind == "embedded":
            said, wrong = await asyncio.to_thread(_planned, name, engine, config.directory)
            facts += said
            problems += wrong
    pools = {section.pool for section in (*config.replica, *config.engine)}
    problems += (*_unknown_pools(config, pools), *_unknown_tenants(config))
    if config.replica:
        try:
            met = await meet(running_replicas(config), within_s=within_s, count_workers=1)
        except UserError as problem:
            among = "" if len(config.replica) == 1 else f"none of {len(config.replica)} replicas answers; the first: "
            problems.append(f"{among}{problem.problem}; {problem.advice}")
        else:
            try:
                facts += (f"{one.replica.name}: {described(one.ruled)}" for one in met.replicas)
                problems += (problem for one in met.replicas for problem in _replica_problems(one))
                running: dict[str, list[Deployment]] = {}
                for one in met.replicas:
                    for model in one.replica.models:
                        running.setdefault(model, []).append(one.deployment)
                if not config.engine:
                    problems += _unknown_models(config, set(running))
                    problems += _claims(proven, running)
            finally:
                await met.aclose()
    return Checked(facts=tuple(facts), problems=tuple(problems))


def _planned(name: str, engine: EngineSection, directory: Path) -> tuple[list[str], list[str]]:
    """The embedded engine by the planner's own arithmetic."""
    model = engine.model
    path = resolve_model(model if model is None or model.startswith("hf://") else directory / model)
    geometry = read_geometry(path)
    weights = model_weight_bytes(geometry)
    free = psutil.virtual_memory().available
    slots = engine.slots or 1
    left = free - (weights.value.best_bytes if isinstance(weights, Measured) else 0)
    window = engine.context or value_or_none(geometry.max_position_tokens)
    launch = Launch(
        engine=PlanEngine.LLAMACPP,
        kv_dtype=engine.kv_type,
        max_model_len_tokens=None if window is None else window * (1 if engine.kv_unified else slots),
        max_num_seqs=slots,
        llamacpp=LlamacppOptions(unified=engine.kv_unified, value_dtype=engine.kv_type),
    )
    budget = RankBudget(stage=0, rank=0, available_bytes=max(0, left), source="free memory less the weights")
    capacity = plan_llamacpp(geometry, launch, (budget,))
    kv_bytes = sum(pool.total_bytes for stage in capacity.stages for pool in stage.pools)
    longest = capacity.longest_request_tokens
    window = f" of {format_tokens(longest.value)} tokens" if isinstance(longest, Measured) else ""
    fact = f"{name}: {format_bytes(kv_bytes)} of KV cache for {slots} slots{window}; {format_bytes(free)} are free"
    problems = [] if capacity.refusal is None else [f"{name}: {capacity.refusal.sentence}"]
    return [fact], problems


def _replica_problems(one: Introduced) -> Iterator[str]:
    name = one.replica.name
    if one.engine is None:
        yield f"{name} at {one.replica.url} does not answer"
        return
    limit = one.ruled.limit_tokens
    if limit is None:
        return
    for pool in one.ruled.rule.pools:
        holds = pool.need.longest_tokens(pool.capacity_blocks, at_most=limit)
        if holds < limit:
            yield (
                f"{name} takes sequences of {format_tokens(limit)} tokens, and its KV pool holds"
                f" {format_tokens(holds)}: longer requests are refused (set context, or give it more memory)"
            )


def _unknown_pools(config: FleetConfig, pools: set[str]) -> Iterator[str]:
    named = [("[pools] long_pool", config.pools.long_pool)]
    named += [(f"[[claim]] {claim.path.name}", claim.pool) for claim in config.claim]
    named += [(f"[[price]] {price.name}", pool) for price in config.price for pool in price.pools]
    for where, pool in named:
        if pool is not None and pool not in pools:
            yield f"{where} speaks of pool '{pool}'; replicas are in {', '.join(sorted(pools))}"


def _unknown_tenants(config: FleetConfig) -> Iterator[str]:
    """A tenant is whose key a request has; whoever has no key is tenant ""."""
    known = {key.tenant or key.name for key in config.key}
    for tenant in config.tenant:
        if tenant.name not in known:
            yield f"[[tenant]] {tenant.name} has no key; tenants with one: {', '.join(sorted(known)) or 'none'}"


def _unknown_models(config: FleetConfig, served: set[str]) -> Iterator[str]:
    for where, models in [
        *((f"[[key]] {key.name}", key.models or ()) for key in config.key),
        *((f"[[price]] {price.name}", price.models) for price in config.price),
        ("[slo] min_hit", config.slo.min_hit),
    ]:
        for model in models:
            if model not in served:
                yield f"{where} speaks of model '{model}'; served are {', '.join(sorted(served))}"


def _claims(proven: Proven, running: Mapping[str, Sequence[Deployment]]) -> list[str]:
    try:
        limits = proven(running)
    except UserError as problem:
        return [f"{problem.problem}; {problem.advice}"]
    return [f"claim {one.claim}: {one.problem}" for one in limits.values() if one.problem is not None]
