"""Every route of the gateway, and what stands behind it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from aiohttp.web import BaseRequest, StreamResponse

from longproof.clock import NS_PER_S
from longproof.gateway import openapi
from longproof.gateway.config import GatewaySection
from longproof.gateway.dashboard import Dashboard
from longproof.gateway.errors import ApiError, Problem
from longproof.gateway.exchange import Surroundings
from longproof.gateway.generate import AnswerRules, Generations
from longproof.gateway.health import Health
from longproof.gateway.intake import Intake
from longproof.gateway.kept_prefixes import KeptPrefixes
from longproof.gateway.keys import KeyRing
from longproof.gateway.models import ModelList
from longproof.gateway.openapi import Description
from longproof.gateway.owner_fields import FieldRule
from longproof.gateway.pass_through import SAFE_ROUTES, PassThrough, named_route
from longproof.gateway.prefixes import ROUTE, PrefixRoutes
from longproof.gateway.routes import Endpoint, Routes
from longproof.gateway.sight import Sight
from longproof.gateway.warming import Warming


@dataclass(frozen=True, slots=True, kw_only=True)
class Front:
    """What answers. `health.draining` is set when it should get nothing new; `dashboard` is started and closed with
    the gateway."""

    routes: Routes
    health: Health
    dashboard: Dashboard
    intake: Intake
    warming: Warming


def front_of(
    section: GatewaySection,
    around: Surroundings,
    keys: KeyRing,
    sight: Sight,
    prefixes: KeptPrefixes,
    problem: Callable[[], str | None],
) -> Front:
    """All routes. `problem`: why nothing can be served now, None = it can."""
    health = Health(problem)
    intake = Intake(
        body_limit_bytes=section.body_limit,
        open_limit_bytes=max(section.open_limit, section.body_limit),
        body_timeout_s=section.body_timeout / NS_PER_S,
        fields=FieldRule(allowed=frozenset(section.allow_fields), media_hosts=frozenset(section.media_hosts)),
    )
    rules = AnswerRules(
        keepalive_s=section.keepalive / NS_PER_S,
        stall_s=section.stall / NS_PER_S,
        default_output_tokens=section.default_output_tokens,
        trace_headers=sight.trace_headers,
    )
    generations, models = Generations(around, intake, keys, rules), ModelList(around.fleet, keys)
    passing = PassThrough(around.fleet, intake, keys, around.clock, timeout_s=section.silence / NS_PER_S)
    warming = Warming(around, prefixes, sight.sources.fleet)
    pinned = PrefixRoutes(prefixes, around.fleet, intake, keys, warming.caches)
    admins_only = for_admins(keys)
    dashboard = Dashboard(sight.sources, admins_only)
    metrics = sight.metrics.answer if section.open_metrics else guarded(sight.metrics.answer, admins_only)
    routes = Routes()
    routes.add("POST", "/v1/chat/completions", generations.chat)
    routes.add("POST", "/v1/completions", generations.completions)
    routes.add("POST", "/v1/responses", generations.responses)
    routes.add("GET", "/v1/models", models.all)
    routes.add("GET", "/v1/models/*", models.one)
    routes.add("GET", ROUTE, pinned.all)
    for method, endpoint in (("PUT", pinned.put), ("GET", pinned.one), ("DELETE", pinned.delete)):
        routes.add(method, f"{ROUTE}/*", endpoint)
    for path in ("/health", "/live"):
        routes.add("GET", path, health.live)
    routes.add("GET", "/ready", health.ready)
    routes.add("GET", "/metrics", metrics)
    routes.add("GET", "/dashboard", dashboard.page)
    routes.add("GET", "/dashboard/events", dashboard.events)
    for route in dict.fromkeys((*SAFE_ROUTES, *section.pass_through)):
        method, path = named_route(route)
        routes.add(method, path, passing.answer)
    described = Description([*routes.table(), ("GET", openapi.ROUTE)], asks_for_keys=keys.asks_for_keys)
    routes.add("GET", openapi.ROUTE, described.answer)
    return Front(routes=routes, health=health, dashboard=dashboard, intake=intake, warming=warming)


def guarded(endpoint: Endpoint, guard: Callable[[BaseRequest], None]) -> Endpoint:
    """An endpoint behind a guard."""

    async def answer(request: BaseRequest) -> StreamResponse:
        guard(request)
        return await endpoint(request)

    return answer


def for_admins(keys: KeyRing) -> Callable[[BaseRequest], None]:
    """A guard: ApiError 401 and 403 for whoever may not see the fleet. Without keys everybody may."""

    def guard(request: BaseRequest) -> None:
        if not keys.rule_of(request.headers.getall("Authorization", ())).admin:
            message = "this key may not see the fleet; it needs admin = true"
            raise ApiError(Problem(status=403, code="not_admin", message=message))

    return guard
