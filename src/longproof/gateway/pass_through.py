"""Engines' other routes: embeddings, scores, token counts. They generate nothing, so admission has no part in them.

Only routes that are named get through: engines also have routes that flush caches, abort other people's requests or
shut the server down, and those are for their owner.
"""

from __future__ import annotations

import asyncio
import itertools
import re

from aiohttp.web import BaseRequest, Response, StreamResponse
from yarl import URL

from longproof.clock import NS_PER_S, Clock
from longproof.engines.json_fields import as_text
from longproof.errors import UsageError
from longproof.gateway.answers import engine_problem, whole_body
from longproof.gateway.body_object import body_object
from longproof.gateway.errors import ApiError, Problem, bad_request
from longproof.gateway.fleet import Fleet, Replica
from longproof.gateway.intake import Intake
from longproof.gateway.keys import KeyRing
from longproof.gateway.routes import not_found
from longproof.gateway.upstream import Answer, Lost, Unreached, retry_after_ns

SAFE_ROUTES = (
    "/v1/embeddings",
    "/v1/rerank",
    "/v1/score",
    "/v1/classify",
    "/v1/moderations",
    "/v1/chat/completions/input_tokens",
    "/v1/tokenize",
    "/v1/detokenize",
    "/tokenize",
    "/detokenize",
    "/apply-template",
    "/pooling",
    "/score",
    "/rerank",
    "/classify",
    "/embedding",
    "/embeddings",
)
"""Routes of vLLM 0.32, SGLang 0.5 and llama.cpp that read or compute without generating."""

OWN_ROUTES = frozenset(
    {
        ("POST", "/v1/chat/completions"),
        ("POST", "/v1/completions"),
        ("POST", "/v1/responses"),
        ("GET", "/v1/models"),
        ("GET", "/v1/prefixes"),
        ("GET", "/health"),
        ("GET", "/live"),
        ("GET", "/ready"),
        ("GET", "/metrics"),
        ("GET", "/dashboard"),
        ("GET", "/dashboard/events"),
        ("GET", "/openapi.json"),
    }
)
"""What the gateway answers itself, whatever engines have there."""

_PLAIN_PATH = re.compile(r"(/[A-Za-z0-9._~:@!$&'()*+,;=-]+)+")
_MEDIA_TYPE = re.compile(r"[ -~]{1,256}")


def named_route(route: str) -> tuple[str, str]:
    """Method and path of an entry of `pass_through`; POST where it names none. UsageError for one of our own."""
    method, _, path = route.rpartition(" ")
    if (method or "POST", path) in OWN_ROUTES:
        raise UsageError(f"[gateway] pass_through: the gateway answers {path} itself", advice="leave it out")
    return method or "POST", path


class PassThrough:
    """Sends a request on as it is, to a replica that serves its model, in turn."""

    def __init__(self, fleet: Fleet, intake: Intake, keys: KeyRing, clock: Clock, *, timeout_s: float) -> None:
        self._fleet = fleet
        self._intake = intake
        self._keys = keys
        self._clock = clock
        self._timeout_s = timeout_s
        self._turn = itertools.count()
        self._not_before_ns: dict[str, int] = {}
        """Replicas that asked to be left alone, and until when."""

    async def answer(self, request: BaseRequest) -> StreamResponse:
        """One of the safe routes, or of those that the owner has named."""
        rule = self._keys.rule_of(request.headers.getall("Authorization", ()))
        if not _PLAIN_PATH.fullmatch(request.path) or ".." in request.path:
            raise not_found(request.method, request.path)  # below a route with "/*", a way out of it
        body = await self._intake.read(request, rule.name)
        held = len(body)
        try:
            held += await self._intake.weigh(body)
            model, replicas = await self._serving(body, request.query.get("model"))
            self._keys.enter(rule, model, self._clock.now_ns())
            try:
                async with asyncio.timeout(self._timeout_s):
                    return await self._first_reached(request, replicas, body)
            except TimeoutError:
                message = f"no answer within {self._timeout_s:g} s"
                raise ApiError(Problem(status=504, code="replica_silent", message=message)) from None
            finally:
                self._keys.leave(rule)
        finally:
            self._intake.release(held)

    async def _serving(self, body: bytes, asked: str | None) -> tuple[str, tuple[Replica, ...]]:
        """The replicas of the model that the body or the query names; where none does, all that serve the only one."""
        fields = await body_object(self._intake, body) if body else {}
        self._intake.fields.require(fields)
        names = self._fleet.model_names()
        model = as_text(fields.get("model")) or asked or (names[0] if len(names) == 1 else None)
        if model is None:
            raise bad_request("'model' must be the name of a served model", param="model")
        return model, self._fleet.serving(model)

    async def _first_reached(self, request: BaseRequest, replicas: tuple[Replica, ...], body: bytes) -> Response:
        start, waits_ns = next(self._turn), list[int]()
        for place in range(len(replicas)):
            replica = replicas[(start + place) % len(replicas)]
            wait_ns = self._not_before_ns.get(replica.name, 0) - self._clock.now_ns()
            if wait_ns > 0:
                waits_ns.append(wait_ns)
                continue
            kind = request.headers.get("Content-Type", "")
            headers = {"Content-Type": kind if _MEDIA_TYPE.fullmatch(kind) else "application/json"}
            if replica.authorization is not None:
                headers["Authorization"] = replica.authorization
            elif not self._keys.asks_for_keys and "Authorization" in request.headers:
                headers["Authorization"] = request.headers["Authorization"]
            try:
                sent = None if request.method == "GET" else body
                answer = await self._fleet.upstream.send(
                    URL(replica.url + request.path), headers, sent, method=request.method
                )
            except Unreached:
                continue
            except Lost as problem:
                raise _lost(replica, str(problem)) from problem
            if answer.status in (429, 503):
                answer.drop()
                told_ns = retry_after_ns(answer.headers.get("retry-after")) or NS_PER_S
                self._not_before_ns[replica.name] = self._clock.now_ns() + told_ns
                waits_ns.append(told_ns)
                continue
            return await _whole(replica, answer)
        busy = bool(waits_ns)
        words = "every replica of this model has asked to be left alone" if busy else "no replica of it can be reached"
        raise ApiError(
            Problem(
                status=503,
                code="engine_busy" if busy else "no_replica",
                message=words,
                retry_after_ns=min(waits_ns, default=NS_PER_S),
            )
        )


async def _whole(replica: Replica, answer: Answer) -> Response:
    try:
        body = await whole_body(answer)
    except Lost as problem:
        raise _lost(replica, str(problem)) from problem
    finally:
        answer.drop()  # one that is whole has given its connection back already
    status = answer.status
    if status in (401, 403) or not (200 <= status < 300 or 400 <= status < 600):
        raise ApiError(  # it is about the gateway's own access, which is not the client's business
            Problem(
                status=502,
                code="replica_refuses_gateway",
                message=f"replica {replica.name} answered the gateway with status {status}",
            )
        )
    if status >= 400 and (problem := engine_problem(status, body)) is not None:
        raise ApiError(problem)
    kind = answer.headers.get("content-type", "application/json") if status < 400 else "application/json"
    return Response(status=status, body=body, headers={"Content-Type": kind, "X-Content-Type-Options": "nosniff"})


def _lost(replica: Replica, why: str) -> ApiError:
    message = f"the connection to replica {replica.name} was lost: {why}"
    return ApiError(Problem(status=502, code="replica_lost", message=message))
