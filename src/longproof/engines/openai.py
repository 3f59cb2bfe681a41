"""Any server that speaks OpenAI's HTTP API, and nothing else is known about it. The other adapters build on this one.

A dialect overrides: `kind`, `dialect`, `exact_output_fields`, `cold_fields`, `logprobs_fields`, `request_headers`,
and whichever of introspect, count, tokenize, detokenize, render, abort, sample, restart its server offers.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol, TypeAlias

from longproof.domain.deployment import Deployment, EngineKind
from longproof.domain.events import EngineSample, RequestTimeline
from longproof.domain.measure import Unknown, reported
from longproof.domain.request import (
    ChatMessage,
    ChatPrompt,
    CountSource,
    GenerationRequest,
    IdsPrompt,
    Prompt,
    Route,
    TokenCount,
)
from longproof.engines.base import Capabilities, OnContent
from longproof.engines.json_fields import JsonObject
from longproof.engines.known import joined
from longproof.engines.link import Link
from longproof.engines.local_tokenizer import LocalTokenizer
from longproof.engines.metrics_text import metric_values
from longproof.engines.refused_fields import refused_field, without
from longproof.engines.request_body import Prepared, json_body
from longproof.engines.served import ServedModel, choose_model, served_models
from longproof.errors import EngineProtocolError, UsageError

_ALIVE_TIMEOUT_S = 120.0


Known: TypeAlias = Callable[[], Deployment]
"""What is known of a server without asking it: launch options, model file, start-up log. Called anew for each
introspection."""


class Owner(Protocol):
    """The process behind an engine, where we own it: as much of `process.OwnedProcess` as an adapter needs."""

    @property
    def url(self) -> str:
        """Where it serves now; a restart may move it."""
        ...

    async def restart(self) -> None:
        """Stops it if it runs, starts it again, returns when it serves."""
        ...

    async def stop(self) -> None:
        """Ends it. Safe to call twice."""
        ...

    def memory_bytes(self) -> int | None:
        """Resident memory of all its processes; None when it has ended."""
        ...


class OpenAIEngine:
    """Engine over one `Link`. Build it through `registry.connect`, or directly: ``OpenAIEngine(Link(url), model="x")``.

    It owns the link, and the process behind it where an `owner` is given: `aclose` closes and stops them. `tokenizer`
    is a local fallback where the server does not count. `native=False`: something in between passes only /v1, so
    whatever the dialect offers elsewhere (counts, metrics, abort) is not there.
    """

    kind = EngineKind.OPENAI
    dialect = Capabilities()
    """What the dialect can do where all of its routes are reachable."""
    known: Known | None = None
    """What whoever started the server knows of it; `registry.connect` sets it."""
    chat_path = "/v1/chat/completions"
    completions_path = "/v1/completions"

    def __init__(
        self,
        link: Link,
        *,
        model: str,
        tokenizer: LocalTokenizer | None = None,
        owner: Owner | None = None,
        native: bool = True,
    ) -> None:
        self._link = link
        self._model = model
        self._tokenizer = tokenizer
        self._owner = owner
        self._native = native
        self._refused: set[str] = set()

    @property
    def url(self) -> str:
        """Base URL without a trailing slash or /v1."""
        return self._link.url

    @property
    def model(self) -> str:
        """The served model name that requests carry."""
        return self._model

    @property
    def capabilities(self) -> Capabilities:
        """The dialect's, less what cannot be reached, and restarts where we own the process."""
        found = replace(
            self.dialect,
            restarts=self._owner is not None,
            local_tokenizer=self._tokenizer is not None,
            fields_refused=tuple(sorted(self._refused)),
        )
        return found if self._native else replace(found, counts=False, metrics=False, aborts=False)

    # -- requests -----------------------------------------------------------------------------------------------------

    async def prepare(self, request: GenerationRequest) -> Prepared:
        """Makes a request's body, off the clock."""
        request_id = request.request_id or uuid.uuid4().hex
        fields = self.body(request, request_id)
        return Prepared(
            request=request,
            request_id=request_id,
            path=self.chat_path if request.route is Route.CHAT else self.completions_path,
            headers=self.request_headers(request_id),
            body=await json_body(fields),
            fields=frozenset(fields),
        )

    async def send(
        self,
        request: GenerationRequest | Prepared,
        *,
        on_content: OnContent | None = None,
        leave: asyncio.Event | None = None,
    ) -> RequestTimeline:
        """Sends one request as a stream and records what happens, to the end, to `request.timeout_s` or until `leave`
        is set.

        A field that the server refuses by name, and that a request can do without, is left out from then on
        (`capabilities.fields_refused`), and the request is sent again, unless its body was prepared.
        """
        while True:
            prepared = request if isinstance(request, Prepared) else await self.prepare(request)
            fields = prepared.fields
            sending = self._link.stream(prepared, on_content=on_content, leave=leave)
            del prepared  # a body of megabytes goes when it is sent, not when the answer is over
            timeline = await sending
            name = refused_field(timeline, fields)
            if name is None or name in self._refused:
                return timeline
            self._refused.add(name)
            if isinstance(request, Prepared):
                return timeline

    async def answer(self, request: GenerationRequest, request_id: str, fields: Mapping[str, object]) -> JsonObject:
        """The whole answer to a request that is not streamed, with `fields` in its body. Raises EngineUnreachable, also
        when `request.timeout_s` is over, `Refused`, or EngineProtocolError for what is no answer."""
        body = {**self.body(request, request_id), **fields, "stream": False}
        del body["stream_options"]
        path = self.chat_path if request.route is Route.CHAT else self.completions_path
        return await self._link.post_json(path, body, timeout_s=request.timeout_s)

    def body(self, request: GenerationRequest, request_id: str) -> dict[str, object]:
        """The JSON body of a request. `request.extra` comes last and wins."""
        fields: dict[str, object] = {
            "model": self._model,
            "max_tokens": request.max_tokens,
            "temperature": request.temperature,
            "seed": request.seed,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        match request.prompt:
            case ChatPrompt(messages=messages):
                fields["messages"] = message_fields(messages)
            case IdsPrompt(ids=ids):
                fields["prompt"] = ids
            case _:
                fields["prompt"] = request.prompt.text
        if request.exact_output:
            fields.update(self.exact_output_fields(request))
        if request.cold:
            fields.update(self.cold_fields(request_id))
        if request.top_logprobs > 0:
            fields.update(self.logprobs_fields(request))
        return {**without(fields, self._refused), **request.extra}

    def exact_output_fields(self, request: GenerationRequest) -> Mapping[str, object]:  # noqa: ARG002 - for dialects
        """Body fields that make the engine produce exactly max_tokens. Plain OpenAI has none."""
        return {}

    def cold_fields(self, request_id: str) -> Mapping[str, object]:  # noqa: ARG002 - for dialects
        """Body fields that keep a request from reusing cached prefixes. Plain OpenAI has none."""
        return {}

    def logprobs_fields(self, request: GenerationRequest) -> Mapping[str, object]:
        """Body fields that ask for `top_logprobs` alternatives per token."""
        if request.route is Route.CHAT:
            return {"logprobs": True, "top_logprobs": request.top_logprobs}
        return {"logprobs": request.top_logprobs}

    def request_headers(self, request_id: str) -> Mapping[str, str]:  # noqa: ARG002 - for dialects
        """Headers of a generation request, beside the key."""
        return {}

    async def abort(self, engine_request_id: str) -> bool:  # noqa: ARG002 - the port's signature
        """False: plain OpenAI aborts by closing the connection only."""
        return False

    async def alive(self) -> bool:
        """Whether it produces a token: one real, short request."""
        prompt = ChatPrompt(messages=(ChatMessage(role="user", content="Hi"),))
        timeline = await self.send(GenerationRequest(prompt=prompt, max_tokens=1, timeout_s=_ALIVE_TIMEOUT_S))
        produced = timeline.usage.completion_tokens if timeline.usage is not None else None
        return timeline.error is None and (timeline.first_token_ns is not None or bool(produced))

    # -- what it is ---------------------------------------------------------------------------------------------------

    async def introspect(self) -> Deployment:
        """All that the server tells of itself, joined with what whoever started it knows; provenance per field."""
        told = await self.read_deployment()
        return told if self.known is None else joined(told, self.known())

    async def read_deployment(self) -> Deployment:
        """What the server tells of itself: here the model's name, and that nothing else is known. Dialects override
        this."""
        entry = await self.served()
        silent = Unknown(reason="an OpenAI-compatible server does not report it")
        return Deployment(
            engine=self.kind,
            engine_version=silent,
            engine_build=silent,
            model=reported(self._model, "GET /v1/models id"),
            configured_limit_tokens=silent,
            trained_limit_tokens=silent,
            slots=silent,
            kv_capacity_tokens=silent,
            prefix_caching=silent,
            other={} if entry.owned_by is None else {"owned_by": reported(entry.owned_by, "GET /v1/models owned_by")},
        )

    async def served(self) -> ServedModel:
        """This model's entry in /v1/models. Raises TargetError when it is gone."""
        return choose_model(await served_models(self._link), self._model, self.url)

    async def sample(self, *, wanted: frozenset[str] | None = None) -> EngineSample:
        """Prometheus metrics where /metrics has them; otherwise an EngineProtocolError."""
        at_ns = self._link.clock.now_ns()
        return EngineSample(at_ns=at_ns, values=await self.metrics(wanted))

    async def metrics(self, wanted: frozenset[str] | None = None) -> dict[str, float]:
        """Samples of /metrics, ``name{label="x"}`` → value: those with a bare name in `wanted`, else those that
        `keeps_metric`."""
        text = (await self._link.get("/metrics")).content.decode("utf-8", "replace")
        values = metric_values(text, self.keeps_metric if wanted is None else wanted.__contains__)
        if not values and not metric_values(text):
            raise EngineProtocolError("/metrics holds no Prometheus samples", url=self.url)
        return values

    def keeps_metric(self, name: str) -> bool:  # noqa: ARG002 - for dialects
        """Whether a metric of this bare name belongs into a sample. All do, of a server nothing is known of."""
        return True

    def memory_bytes(self) -> int | None:
        """Resident memory of the engine's processes now; None where we do not own them, or they have ended."""
        return None if self._owner is None else self._owner.memory_bytes()

    async def restart(self) -> None:
        """Restarts the process we own and waits until it serves. UsageError where we do not own it."""
        if self._owner is None:
            raise UsageError(
                f"{self.url} is not ours to restart",
                advice="leave the restart probe out, or let longproof start the engine",
            )
        await self._owner.restart()
        self._link.move(self._owner.url)

    async def aclose(self) -> None:
        """Closes connections and stops the process where we own it. Safe to call twice."""
        await self._link.aclose()
        if self._owner is not None:
            await self._owner.stop()

    # -- tokens -------------------------------------------------------------------------------------------------------

    async def count(self, prompt: Prompt) -> TokenCount:
        """Ids are their own count. Texts only by the local tokenizer: contents alone, the template stays unknown and
        uncounted.

        Raises UsageError without a local tokenizer: check `capabilities.counts` first.
        """
        if isinstance(prompt, IdsPrompt):
            return count_of_ids(prompt)
        tokenizer = self._local_tokenizer()
        texts = [m.content for m in prompt.messages] if isinstance(prompt, ChatPrompt) else [prompt.text]
        tokens = sum(len(tokenizer.encode(text)) for text in texts)
        return TokenCount(
            total=tokens,
            content=tokens,
            template=0,
            special=None,
            source=CountSource.LOCAL_TOKENIZER,
            how=f"{tokenizer.name}: contents only, template and special tokens not counted",
        )

    async def tokenize(self, text: str) -> list[int]:
        """Token ids by the local tokenizer. Raises UsageError without one."""
        return self._local_tokenizer().encode(text)

    async def detokenize(self, ids: Sequence[int]) -> str:
        """Text of ids by the local tokenizer. Raises UsageError without one."""
        return self._local_tokenizer().decode(ids)

    async def render(self, messages: Sequence[ChatMessage]) -> str:  # noqa: ARG002 - the port's signature
        """UsageError: plain OpenAI does not show its template."""
        raise UsageError(
            f"{self.url} does not show what its chat template makes of messages", advice="prove the completions route"
        )

    def _local_tokenizer(self) -> LocalTokenizer:
        if self._tokenizer is None:
            raise UsageError(
                f"{self.url} does not count tokens for its clients",
                advice="give the model's tokenizer.json with --tokenizer FILE",
            )
        return self._tokenizer


def message_fields(messages: Sequence[ChatMessage]) -> list[dict[str, str]]:
    """Messages as the API takes them."""
    return [{"role": message.role, "content": message.content} for message in messages]


def count_of_ids(prompt: IdsPrompt) -> TokenCount:
    """Ids are counted by counting them."""
    return TokenCount(
        total=len(prompt.ids),
        content=len(prompt.ids),
        template=0,
        special=None,
        source=CountSource.IDS,
        how="number of ids sent",
    )
