"""Two vLLM servers as one engine: one computes the prompt, the other reads its KV and writes the answer.

As vLLM 0.32 with NixlConnector does it (kv_connector/v1/nixl, and the proxy among its examples):

    1. prefill side   the request with max_tokens 1, not streamed, kv_transfer_params {"do_remote_decode": true}
                      ─▶ keeps the blocks, answers with kv_transfer_params (who holds which blocks)
    2. decode side    the request as it is, streamed, with those kv_transfer_params
                      ─▶ reads the blocks over the side channel instead of computing the prompt

Each side's part of a request stays apart, in `engine_timings`, and each side's metrics under names of their own:
``prefill.vllm:…`` and ``decode.vllm:…``.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from dataclasses import replace

import orjson

from longproof.clock import Clock, SystemClock
from longproof.domain.deployment import Deployment
from longproof.domain.events import EngineSample, RequestTimeline
from longproof.domain.request import (
    ChatMessage,
    ChatPrompt,
    GenerationRequest,
    IdsPrompt,
    Prompt,
    TextPrompt,
    TokenCount,
)
from longproof.engines.base import Capabilities, OnContent
from longproof.engines.openai import OpenAIEngine
from longproof.engines.pd_deployment import pair_deployment
from longproof.engines.pd_handover import Handover
from longproof.engines.request_body import Prepared
from longproof.errors import UsageError

_ALIVE_TIMEOUT_S = 120.0


class PdEngine:
    """The engine port over two servers. `alone` asks the decode side without the other: the same prompt, computed
    there."""

    def __init__(self, prefill: OpenAIEngine, decode: OpenAIEngine, *, clock: Clock | None = None) -> None:
        self.prefill = prefill
        self.decode = decode
        self._clock = clock or SystemClock()

    @property
    def url(self) -> str:
        """Both base URLs."""
        return f"{self.prefill.url} + {self.decode.url}"

    @property
    def model(self) -> str:
        """The served model name, of the decode side."""
        return self.decode.model

    @property
    def capabilities(self) -> Capabilities:
        """What both sides can do. Nobody restarts a pair from here."""
        one, other = self.prefill.capabilities, self.decode.capabilities
        return Capabilities(
            chat=one.chat and other.chat,
            completions=one.completions and other.completions,
            token_ids=one.token_ids and other.token_ids,
            counts=one.counts,
            local_tokenizer=one.local_tokenizer,
            exact_output=other.exact_output,
            cold=one.cold and other.cold,
            logprobs=other.logprobs,
            metrics=one.metrics and other.metrics,
            aborts=one.aborts and other.aborts,
            disaggregated=True,
            fields_refused=tuple(sorted({*one.fields_refused, *other.fields_refused})),
        )

    # -- requests -----------------------------------------------------------------------------------------------------

    async def prepare(self, request: GenerationRequest) -> Prepared:
        """Makes the decode side's body, which lacks what only the prefill side can say: `send` makes it again."""
        return await self.decode.prepare(request)

    async def send(
        self,
        request: GenerationRequest | Prepared,
        *,
        on_content: OnContent | None = None,
        leave: asyncio.Event | None = None,
    ) -> RequestTimeline:
        """Both steps, one timeline: submitted when the prefill side is asked, tokens as the decode side gives them.
        `request.timeout_s` holds for both together."""
        asked = _as_prepared(request) if isinstance(request, Prepared) else request
        asked = replace(asked, request_id=asked.request_id or uuid.uuid4().hex)
        return await Handover(self.prefill, self.decode, asked, self._clock, on_content, leave).run()

    async def alone(self, request: GenerationRequest) -> RequestTimeline:
        """The decode side by itself."""
        return await self.decode.send(request)

    async def abort(self, engine_request_id: str) -> bool:
        """On both sides."""
        return all([await self.prefill.abort(engine_request_id), await self.decode.abort(engine_request_id)])

    async def alive(self) -> bool:
        """Whether the pair produces a token."""
        prompt = ChatPrompt(messages=(ChatMessage(role="user", content="Hi"),))
        timeline = await self.send(GenerationRequest(prompt=prompt, max_tokens=1, timeout_s=_ALIVE_TIMEOUT_S))
        return timeline.error is None and timeline.first_token_ns is not None

    # -- what it is ---------------------------------------------------------------------------------------------------

    async def introspect(self) -> Deployment:
        """Both sides, as one deployment. Raises UsageError where they do not belong together."""
        return pair_deployment(await self.prefill.introspect(), await self.decode.introspect())

    async def sample(self, *, wanted: frozenset[str] | None = None) -> EngineSample:
        """Both sides' metrics: requests added up, KV usage of the fuller side, values under prefixed names."""
        at_ns = self._clock.now_ns()
        one, other = await asyncio.gather(self.prefill.sample(wanted=wanted), self.decode.sample(wanted=wanted))
        usage = [side.kv_usage for side in (one, other) if side.kv_usage is not None]
        return EngineSample(
            at_ns=at_ns,
            running=_sum(one.running, other.running),
            waiting=_sum(one.waiting, other.waiting),
            kv_usage=max(usage, default=None),
            values={
                **{f"prefill.{name}": value for name, value in one.values.items()},
                **{f"decode.{name}": value for name, value in other.values.items()},
            },
        )

    def memory_bytes(self) -> int | None:
        """None: neither process is ours."""
        return None

    async def restart(self) -> None:
        """UsageError: a pair is not ours to restart."""
        raise UsageError(
            f"{self.url} is not ours to restart", advice="leave the restart probe out, or give --restart-cmd"
        )

    async def aclose(self) -> None:
        """Closes both."""
        await self.prefill.aclose()
        await self.decode.aclose()

    # -- tokens: the prefill side reads the prompt --------------------------------------------------------------------

    async def count(self, prompt: Prompt) -> TokenCount:
        """As the prefill side counts."""
        return await self.prefill.count(prompt)

    async def tokenize(self, text: str) -> list[int]:
        """By the prefill side."""
        return await self.prefill.tokenize(text)

    async def detokenize(self, ids: Sequence[int]) -> str:
        """By the prefill side."""
        return await self.prefill.detokenize(ids)

    async def render(self, messages: Sequence[ChatMessage]) -> str:
        """By the prefill side."""
        return await self.prefill.render(messages)


def _sum(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other


def _as_prepared(prepared: Prepared) -> GenerationRequest:
    """The request that a body says: one of a series has another prompt than the request it was made from."""
    fields = orjson.loads(b"".join(prepared.body.pieces))
    prompt: Prompt
    if "messages" in fields:
        prompt = ChatPrompt(messages=tuple(ChatMessage(**message) for message in fields["messages"]))
    elif isinstance(fields["prompt"], str):
        prompt = TextPrompt(text=fields["prompt"])
    else:
        prompt = IdsPrompt(ids=tuple(fields["prompt"]))
    return replace(prepared.request, prompt=prompt, request_id=prepared.request_id)
