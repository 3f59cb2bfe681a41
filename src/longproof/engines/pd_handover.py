"""One request through a prefill side and a decode side: what each of them did of it, and where it ended.

What the two sides are told and answer stands here once, for probes and gateway alike: `TRANSFER`, `PARAMS`,
`cached_tokens`, `NOTHING_HANDED_ON`.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from longproof.clock import NS_PER_S, Clock
from longproof.domain.events import EndedBy, RequestTimeline, ServerError
from longproof.domain.request import GenerationRequest
from longproof.engines.base import OnContent
from longproof.engines.json_fields import JsonObject, as_int, as_object
from longproof.engines.link import Refused
from longproof.engines.openai import OpenAIEngine
from longproof.errors import EngineMisbehaved, EngineUnreachable

PREFILL_NS, DECODE_TTFT_NS, HANDOVER_NS = "pd_prefill_ns", "pd_decode_ttft_ns", "pd_handover_ns"
"""In `engine_timings`: the prefill side's whole answer; the decode side from sending to its first token, transfer
included; and our own time between the two."""
DECODE_CACHED = "pd_decode_cached_tokens"
PREFILL_ERROR, BOOTSTRAP_ERROR, DECODE_ERROR = "pd_prefill", "pd_bootstrap", "pd_decode"
"""`ServerError.type` of what goes wrong: the prefill side fails, it hands nothing on, or the decode side fails before
its first token. The server's own type stands in the words."""


PARAMS = "kv_transfer_params"
TRANSFER = {"do_remote_decode": True, "do_remote_prefill": False}
"""What the prefill side is asked for beside one token: to keep the blocks, and to say under `PARAMS` where they are."""
NOTHING_HANDED_ON = (
    "the prefill side answered without kv_transfer_params: it has no KV connector, or nothing to hand on"
)


class Handover:
    """One request through both sides."""

    def __init__(
        self,
        prefill: OpenAIEngine,
        decode: OpenAIEngine,
        request: GenerationRequest,
        clock: Clock,
        on_content: OnContent | None,
        leave: asyncio.Event | None,
    ) -> None:
        self._prefill = prefill
        self._decode = decode
        self._request = request
        self._id = request.request_id or ""
        self._clock = clock
        self._on_content = on_content
        self._leave = leave
        self._submitted_ns = clock.now_ns()

    async def run(self) -> RequestTimeline:
        answer = await self._prefilled()
        if isinstance(answer, RequestTimeline):
            return answer
        prefilled_ns = self._clock.now_ns()
        params = as_object(answer.get(PARAMS))
        if not params:
            error = ServerError(message=NOTHING_HANDED_ON, type=BOOTSTRAP_ERROR)
            return self._ended(EndedBy.HTTP_ERROR, status=200, error=error)
        left_s = self._request.timeout_s - (prefilled_ns - self._submitted_ns) / NS_PER_S
        request = replace(self._request, timeout_s=max(0.0, left_s), extra={**self._request.extra, PARAMS: params})
        decoded = await self._decode.send(request, on_content=self._on_content, leave=self._leave)
        return self._joined(decoded, prefilled_ns, answer)

    async def _prefilled(self) -> JsonObject | RequestTimeline:
        """The prefill side's answer, or how the request ended there."""
        first = replace(self._request, max_tokens=1)
        fields = {PARAMS: dict(TRANSFER), "request_id": self._id}
        asking = asyncio.create_task(self._prefill.answer(first, self._id, fields))
        leaving = asyncio.create_task((self._leave or asyncio.Event()).wait())
        try:
            await asyncio.wait({asking, leaving}, return_when=asyncio.FIRST_COMPLETED)
            return asking.result() if asking.done() else self._ended(EndedBy.CANCELLED)
        except Refused as problem:
            words = f"prefill side: {problem.error.message}"
            error = replace(problem.error, message=words, type=problem.error.type or PREFILL_ERROR)
            if problem.status >= 500:
                error = replace(error, type=PREFILL_ERROR)
            return self._ended(EndedBy.HTTP_ERROR, status=problem.status, error=error)
        except EngineUnreachable as problem:
            late = self._clock.now_ns() - self._submitted_ns >= self._request.timeout_s * NS_PER_S
            ended = EndedBy.TIMEOUT if late else EndedBy.UNREACHABLE
            return self._ended(ended, transport_error=f"prefill side: {problem.what}")
        except EngineMisbehaved as problem:
            return self._ended(EndedBy.BAD_BODY, status=200, transport_error=f"prefill side: {problem.what}")
        finally:
            asking.cancel()
            leaving.cancel()
            await asyncio.wait({asking, leaving})

    def _joined(self, decoded: RequestTimeline, prefilled_ns: int, answer: JsonObject) -> RequestTimeline:
        """The decode side's timeline, begun when the prefill side was asked."""
        timings = {
            **decoded.engine_timings,
            PREFILL_NS: float(prefilled_ns - self._submitted_ns),
            HANDOVER_NS: float(decoded.submitted_ns - prefilled_ns),
        }
        if decoded.ttft_ns is not None:
            timings[DECODE_TTFT_NS] = float(decoded.ttft_ns)
        usage = decoded.usage
        if usage is not None:
            if usage.cached_tokens is not None:
                timings[DECODE_CACHED] = float(usage.cached_tokens)
            usage = replace(
                usage, cached_tokens=cached_tokens(answer)
            )  # what is transferred is no prefix that was cached
        error = decoded.error
        if error is not None and decoded.first_token_ns is None:
            own = f" ({error.type})" if error.type else ""
            error = replace(error, type=DECODE_ERROR, message=f"decode side{own}: {error.message}")
        return replace(
            decoded,
            request_id=self._id,
            submitted_ns=self._submitted_ns,
            engine_timings=timings,
            usage=usage,
            error=error,
        )

    def _ended(
        self,
        ended_by: EndedBy,
        *,
        status: int | None = None,
        error: ServerError | None = None,
        transport_error: str | None = None,
    ) -> RequestTimeline:
        """A request that did not get beyond the prefill side."""
        request = self._request
        return RequestTimeline(
            request_id=self._id,
            route=request.route,
            submitted_ns=self._submitted_ns,
            finished_ns=self._clock.now_ns(),
            ended_by=ended_by,
            prompt_tokens_sent=request.prompt_tokens,
            count_source=request.count_source,
            max_tokens=request.max_tokens,
            body_bytes=0,
            status=status,
            error=error,
            transport_error=transport_error,
        )


def cached_tokens(answer: JsonObject) -> int | None:
    """The prefill side's own cached tokens, where its usage tells them."""
    usage = as_object(answer.get("usage")) or {}
    return as_int((as_object(usage.get("prompt_tokens_details")) or {}).get("cached_tokens"))
