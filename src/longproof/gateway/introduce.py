"""Getting to know the engines of a fleet before the first request: who serves what, how much each holds, how to count.

    connect ─▶ introspect ─▶ rule (`replica_rules`) ─▶ tokenizer, checked against the engine ─▶ Introduced

An engine that does not answer in time is taken in as down, with what its section says and what a sibling of the same
pool tells, if there is one: a fleet must come up although one of its engines does not.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from longproof.domain.deployment import Deployment, EngineKind
from longproof.engines.address import base_url
from longproof.engines.base import Engine
from longproof.engines.link import Link
from longproof.engines.pd_connect import connect_pair
from longproof.engines.registry import connect
from longproof.errors import EngineMisbehaved, TargetError, UserError
from longproof.gateway.count_check import check_counting, learn_rate
from longproof.gateway.counting import FleetCounting, ModelCounting
from longproof.gateway.engine_count import EngineCount
from longproof.gateway.engine_counts import EngineCounts
from longproof.gateway.fleet import Replica
from longproof.gateway.found_tokenizer import found_tokenizer
from longproof.gateway.launched import Standing
from longproof.gateway.local_count import LocalCount
from longproof.gateway.model_tokenizer import load_model_tokenizer
from longproof.gateway.replica_rules import RuledReplica, described, ruled
from longproof.gateway.text_memory import TextMemory

_RETRY_S = 0.5
_log = logging.getLogger("longproof.gateway")


@dataclass(frozen=True, slots=True, kw_only=True)
class Introduced:
    """One replica, known. `engine` None: it did not answer, and is taken to be down."""

    standing: Standing
    replica: Replica
    ruled: RuledReplica
    deployment: Deployment
    engine: Engine | None
    api_key: str | None


@dataclass(slots=True, kw_only=True)
class Met:
    """All replicas, and how their prompts are counted. `aclose` ends the connections that were made for it."""

    replicas: list[Introduced]
    counting: FleetCounting
    links: list[Link] = field(default_factory=list[Link])

    async def aclose(self) -> None:
        """Closes what asks the engines; the engines themselves are stopped by whoever started them."""
        self.counting.close()
        for link in self.links:
            await link.aclose()
        for one in self.replicas:
            if one.engine is not None:
                await one.engine.aclose()


async def meet(standing: Sequence[Standing], *, within_s: float, count_workers: int) -> Met:
    """Gets to know all of them at once. UserError when none answers, or one is not what its section says."""
    found = await asyncio.gather(*(_ask(one, within_s) for one in standing))
    known = [(one, engine, deployment) for one, engine, deployment in found if engine is not None]
    if not known:
        first = found[0][2]
        raise (
            first
            if isinstance(first, UserError)
            else TargetError(f"no engine answers: {first}", advice="start the engines, or give their right addresses")
        )
    replicas = [_introduced(one, engine, deployment, known) for one, engine, deployment in found]
    for one in replicas:
        state = described(one.ruled) if one.engine is not None else "does not answer; taken to be down"
        _log.info("replica %s (%s) at %s: %s", one.replica.name, ", ".join(one.replica.models), one.replica.url, state)
        for note in one.ruled.notes:
            _log.info("  %s: %s", one.replica.name, note)
    counting, links = await _counting(replicas, count_workers)
    return Met(replicas=replicas, counting=counting, links=links)


async def engine_of(one: Standing, api_key: str | None) -> Engine:
    """What answers there: one engine, or a pair as one. Raises as `connect` and `connect_pair` do."""
    if one.prefill_url is None:
        return await connect(one.url, model=one.model, api_key=api_key, known=one.known)
    names = "prefill_url", "decode_url"
    return await connect_pair(one.prefill_url, one.url, model=one.model, api_key=api_key, names=names)


async def asked_again(one: Introduced) -> Deployment:
    """What a replica is now. Raises TargetError and EngineMisbehaved."""
    engine = await engine_of(one.standing, one.api_key)
    try:
        return await engine.introspect()
    finally:
        await engine.aclose()


async def _ask(one: Standing, within_s: float) -> tuple[Standing, Engine | None, Deployment | Exception]:
    key = os.environ.get(one.api_key_env or "") or None
    end_s = asyncio.get_running_loop().time() + within_s
    while True:
        try:
            engine = await engine_of(one, key)
            try:
                return one, engine, await engine.introspect()
            except BaseException:
                await engine.aclose()
                raise
        except (TargetError, EngineMisbehaved) as problem:
            if asyncio.get_running_loop().time() >= end_s:
                return one, None, problem
            await asyncio.sleep(_RETRY_S)


def _introduced(
    one: Standing,
    engine: Engine | None,
    answer: Deployment | Exception,
    known: Sequence[tuple[Standing, Engine, Deployment | Exception]],
) -> Introduced:
    section = one.section
    key = os.environ.get(one.api_key_env or "") or None
    if engine is not None and isinstance(answer, Deployment):
        deployment, model = answer, engine.model
    else:
        like = next((k for k in known if k[0].section.pool == section.pool), known[0])
        deployment = like[2] if isinstance(like[2], Deployment) else Deployment(engine=EngineKind.OPENAI)
        model = one.model or like[1].model
    models = tuple(dict.fromkeys((model, *section.aliases)))
    rule = ruled(one.name, models, section, deployment)
    replica = Replica(
        name=one.name,
        url=base_url(one.url),
        prefill_url=None if one.prefill_url is None else base_url(one.prefill_url),
        models=models,
        authorization=None if key is None else f"Bearer {key}",
        limit_tokens=rule.limit_tokens,
        usage_in_streams=section.usage_in_streams,
        salts=deployment.engine is not EngineKind.LLAMACPP,
    )
    return Introduced(standing=one, replica=replica, ruled=rule, deployment=deployment, engine=engine, api_key=key)


async def _counting(replicas: Sequence[Introduced], workers: int) -> tuple[FleetCounting, list[Link]]:
    """One way of counting per model: by the tokenizer of the first replica that names one, judged by an engine; where
    engines have to count, by the first of the model's replicas that answers."""
    links: list[Link] = []
    models: dict[str, ModelCounting] = {}
    engines: dict[str, EngineCounts] = {}
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="count-check") as pool:
        for one in replicas:
            if one.engine is None:
                continue
            link = Link(one.replica.url, api_key=one.api_key)
            links.append(link)
            model = one.replica.models[0]
            engine = EngineCount(link, one.deployment.engine, one.engine.model)
            if model in engines:
                engines[model].add(engine)
                continue
            engines[model] = EngineCounts([engine])
            file = _tokenizer_file(replicas, one)
            counting = ModelCounting(
                model=model,
                block_tokens=one.ruled.rule.block_tokens,
                local=None if file is None else _local(file),
                engine=engines[model],
                alarm=_log.warning,
            )
            if counting.local is not None:
                check = await check_counting(counting, pool, link=link)
                for shape, reason in check.reasons.items():
                    _log.warning("%s: prompts of the kind '%s' are estimated: %s", model, shape, reason)
            if counting.inferred and not await learn_rate(counting):
                _log.info("%s: lengths are bounds until the first answers tell how long its tokens are", model)
            models.update(dict.fromkeys(one.replica.models, counting))
    return FleetCounting(models, workers=workers), links


def _tokenizer_file(replicas: Sequence[Introduced], of: Introduced) -> Path | None:
    for one in replicas:
        if one.replica.models[0] == of.replica.models[0] and one.standing.tokenizer is not None:
            return one.standing.tokenizer
    return found_tokenizer(of.deployment, of.replica.url)


def _local(file: Path) -> LocalCount | None:
    try:
        return LocalCount(load_model_tokenizer(file), TextMemory())
    except UserError as problem:
        _log.warning("%s: %s; lengths are estimated instead", problem.problem, problem.advice)
        return None
