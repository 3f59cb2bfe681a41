"""The routes that generate: from the HTTP request to its exchange.

key ─▶ body ─▶ Ask ─▶ model served? ─▶ the key's own bounds ─▶ upper bound of its length ─▶ Exchange
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from aiohttp.web import BaseRequest, StreamResponse

from longproof.domain.request import Route
from longproof.domain.units import NS_PER_S, parse_duration_ns
from longproof.errors import UsageError
from longproof.gateway.ask import Ask, Json
from longproof.gateway.body_object import body_object
from longproof.gateway.count_shape import Estimated
from longproof.gateway.downstream import Downstream, shown_id
from longproof.gateway.errors import bad_request
from longproof.gateway.exchange import Exchange, Surroundings
from longproof.gateway.fleet import Replica
from longproof.gateway.intake import Intake, parsed
from longproof.gateway.keys import KeyRing, KeyRule, require_within
from longproof.gateway.owner_fields import FieldRule
from longproof.gateway.ports import Counted
from longproof.gateway.responses import parsed_response
from longproof.gateway.wire_body import engine_body, limit_output
from longproof.policy.arrivals import Arrival

_TRACE_HEADERS = ("traceparent", "tracestate")
_VISIBLE = re.compile(r"[ -~]{1,512}")
_ESTIMATE_MAY_DOUBLE = 2
_SESSION_HEADERS = ("X-Session-Id", "X-Longproof-Session")
DEADLINE = "X-Longproof-Deadline"
_MOST_WITHIN_NS = 24 * 3_600 * NS_PER_S


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerRules:
    """`keepalive_s` of silence before a comment goes into a stream (0: never). `stall_s`: how long a client may take
    nothing of its stream. `default_output_tokens`: the allowance of a request that names none, where no limit of its
    model tells. `trace_headers`: what goes upstream of a request's trace, from its id and what it came with."""

    keepalive_s: float = 10.0
    stall_s: float = 60.0
    default_output_tokens: int = 4_096
    trace_headers: Callable[[str, Mapping[str, str]], Mapping[str, str]] = lambda _, given: given


class Generations:
    """Answers requests to generate."""

    def __init__(self, around: Surroundings, intake: Intake, keys: KeyRing, rules: AnswerRules) -> None:
        self._around = around
        self._intake = intake
        self._keys = keys
        self._rules = rules
        self._boot = os.urandom(4).hex()
        self._numbers = itertools.count(1)
        self._apart = any(rule.prefix_salt for rule in keys.rules.values())

    async def chat(self, request: BaseRequest) -> StreamResponse:
        """POST /v1/chat/completions."""
        return await self._answer(request, Route.CHAT)

    async def completions(self, request: BaseRequest) -> StreamResponse:
        """POST /v1/completions."""
        return await self._answer(request, Route.COMPLETIONS)

    async def responses(self, request: BaseRequest) -> StreamResponse:
        """POST /v1/responses."""
        return await self._answer(request, None)

    async def _answer(self, request: BaseRequest, route: Route | None) -> StreamResponse:
        """`route` None: the Responses API."""
        rule = self._keys.rule_of(request.headers.getall("Authorization", ()))
        body = await self._intake.read(request, rule.name)
        held = len(body)
        try:
            held += await self._intake.weigh(body)
            ask = await self._parsed(body, route)
        except BaseException:
            self._intake.release(held)
            raise
        ask.on_dropped = partial(self._intake.release, held)
        del body  # the Ask lets go of it as soon as nobody needs it again
        try:
            return await self._exchanged(request, ask, rule)
        finally:
            ask.drop_body()

    async def _parsed(self, body: bytes, route: Route | None) -> Ask:
        request_id = f"lp-{self._boot}-{next(self._numbers)}"
        fields = await body_object(self._intake, body)
        return _ask(body, route, request_id, self._intake.fields, fields)

    async def _exchanged(self, request: BaseRequest, ask: Ask, rule: KeyRule) -> StreamResponse:
        replicas = self._around.fleet.serving(ask.model)
        now_ns = ask.received_ns = self._around.clock.now_ns()
        if ask.responses:
            _require_no_pair(replicas)
        self._keys.enter(rule, ask.model, now_ns)
        try:
            self._own(ask, rule, request)
            # what one tenant caches there, all others would find, and see that it was asked
            cold = self._apart and not all(replica.salts for replica in replicas)
            if cold:
                ask.salt = f"{ask.salt} {ask.id}"  # and nobody expects to find anything
            bound = await self._counted_for(rule, ask)
            arrival = self._arrival(ask, bound, rule.most_output_tokens)
            require_within(
                rule, arrival.input_tokens, arrival.output_tokens, known=bound.exact or isinstance(bound, Estimated)
            )
            usage = all(replica.usage_in_streams for replica in replicas)
            ask.body = engine_body(ask, usage_in_streams=usage, salt=ask.salt if rule.prefix_salt else "", cold=cold)
            rules = self._rules
            down = Downstream(request, shown_id(request, ask.id), keepalive_s=rules.keepalive_s, stall_s=rules.stall_s)
            exchange = Exchange(self._around, ask, bound, down, self._headers(request, ask.id))
            return await exchange.run(arrival)
        finally:
            self._keys.leave(rule)

    async def _counted_for(self, rule: KeyRule, ask: Ask) -> Counted:
        """Its bound; its length where the key has a limit that the bound might exceed."""
        bound, most = self._around.counting.bound(ask), rule.most_input_tokens
        if most is None or bound.exact:
            return bound
        surely_within = bound.input_tokens <= (most // _ESTIMATE_MAY_DOUBLE if isinstance(bound, Estimated) else most)
        return bound if surely_within else await self._around.counting.count(ask, exact=True)

    def _own(self, ask: Ask, rule: KeyRule, request: BaseRequest) -> None:
        """Whose it is."""
        ask.tenant, ask.key, ask.priority = rule.tenant, rule.name, rule.priority
        ask.salt = rule.salt(ask.salt)
        if (within := request.headers.get(DEADLINE)) is not None:
            ask.deadline_ns = ask.received_ns + _within_ns(within)
        for name in _SESSION_HEADERS:
            if value := request.headers.get(name):
                ask.session = value[:256].encode("utf-8", "replace").decode()  # logs and books are UTF-8
                break

    def _arrival(self, ask: Ask, bound: Counted, most_output_tokens: int | None) -> Arrival:
        """`most_output_tokens`: what the key allows; a request that names no allowance gets no more than that."""
        output_tokens = ask.output_tokens
        if output_tokens is None:
            limit = self._around.fleet.limit_tokens(ask.model)
            room = self._rules.default_output_tokens if limit is None else limit - bound.input_tokens
            output_tokens = max(1, room) * ask.choices
            if most_output_tokens is not None and output_tokens > most_output_tokens:
                output_tokens = limit_output(ask, most_output_tokens)
            ask.output_tokens = output_tokens
        return Arrival(
            id=ask.id,
            tenant=ask.tenant,
            model=ask.model,
            input_tokens=bound.input_tokens,
            exact=bound.exact,
            output_tokens=output_tokens,
            blocks=bound.blocks,
            by_text=bound.by_text,
            priority=ask.priority,
            deadline_ns=ask.deadline_ns,
            session=ask.session,
            streamed=ask.stream,
        )

    def _headers(self, request: BaseRequest, request_id: str) -> dict[str, str]:
        """What goes upstream, made anew: nothing of the client's gets through that is not named here."""
        headers = {"Content-Type": "application/json", "X-Request-Id": request_id}
        given = request.headers
        trace = {name: given[name] for name in _TRACE_HEADERS if name in given and _VISIBLE.fullmatch(given[name])}
        headers.update(self._rules.trace_headers(request_id, trace))
        if not self._keys.asks_for_keys and "Authorization" in given:
            headers["Authorization"] = given["Authorization"]
        return headers


def _ask(body: bytes, route: Route | None, request_id: str, rule: FieldRule, fields: Json) -> Ask:
    if route is None:
        return parsed_response(body, request_id=request_id, rule=rule, fields=fields)
    return parsed(body, route, request_id=request_id, rule=rule, fields=fields)


def _within_ns(text: str) -> int:
    """A deadline as clients write it: "2.5s", "800ms", or seconds without a unit. ApiError 400 for anything else."""
    try:
        within_ns = parse_duration_ns(f"{text}s" if text[-1:].isdigit() else text)
    except UsageError:
        within_ns = _MOST_WITHIN_NS + 1
    if within_ns > _MOST_WITHIN_NS:
        raise bad_request(f'{DEADLINE} must be a time of at most a day, like "2.5s"', param=DEADLINE)
    return within_ns


def _require_no_pair(replicas: Iterable[Replica]) -> None:
    """ApiError 400 where a prefill/decode pair may get it: pairs hand over what came by the other two routes."""
    if any(replica.prefill_url is not None for replica in replicas):
        message = "this model is served by a prefill/decode pair, which has no Responses API; use /v1/chat/completions"
        raise bad_request(message, code="not_served_by_pairs")
