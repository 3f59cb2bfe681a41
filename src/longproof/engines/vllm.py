"""vLLM's dialect, read in and run against 0.32.0.

Where it differs from plain OpenAI:

- POST /tokenize counts a chat with its template and special tokens, exactly as a request is counted, and has no length
  limit of its own: 40 times the window is counted as well.
- ``ignore_eos`` goes on to max_tokens. ``min_tokens`` is not used: near the end of the window vLLM clamps max_tokens
  first and then refuses a min_tokens above it.
- ``cache_salt`` keys the prefix cache: under a fresh salt nothing is shared with any earlier request.
- The request id is ours: header X-Request-Id, with ``chatcmpl-`` or ``cmpl-`` in front.
- Cached tokens stand in usage only with --enable-prompt-tokens-details; the counters in /metrics are always there.
- /server_info and /abort_requests exist only with VLLM_SERVER_DEV_MODE=1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from longproof.domain.deployment import Deployment, EngineKind
from longproof.domain.events import EngineSample
from longproof.domain.request import (
    ChatMessage,
    ChatPrompt,
    CountSource,
    GenerationRequest,
    IdsPrompt,
    Prompt,
    TokenCount,
)
from longproof.engines.base import Capabilities
from longproof.engines.json_fields import JsonObject, as_int, as_list, as_object, as_text
from longproof.engines.link import Refused
from longproof.engines.metrics_text import largest, total
from longproof.engines.openai import OpenAIEngine, count_of_ids, message_fields
from longproof.engines.told_apart import told_apart
from longproof.engines.vllm_facts import Told, cache_labels, deployment
from longproof.errors import EngineMisbehaved, EngineProtocolError

_TOKENIZE_TIMEOUT_S = 600.0
_FINGERPRINT_TIMEOUT_S = 120.0
_NOT_SAMPLED = ("_bucket", "_created", "_info")
_ABORT = "/abort_requests"


class VllmEngine(OpenAIEngine):
    """The vLLM dialect. `capabilities.aborts` is known after `introspect`; before it is False.

    Whoever has the server's start-up log gives it as `known`: ``lambda: deployment_of_log(text)`` of `vllm_facts`.
    """

    kind = EngineKind.VLLM
    dialect = Capabilities(token_ids=True, counts=True, exact_output=True, cold=True, logprobs=True, metrics=True)

    # -- requests -----------------------------------------------------------------------------------------------------

    def exact_output_fields(self, request: GenerationRequest) -> Mapping[str, object]:  # noqa: ARG002 - for dialects
        """Goes on after EOS, and shows it: a hidden EOS as first token would be a first token that nobody sees."""
        return {"ignore_eos": True, "skip_special_tokens": False}

    def cold_fields(self, request_id: str) -> Mapping[str, object]:
        """A salt that no request had before: the request's own id."""
        return {"cache_salt": request_id}

    def request_headers(self, request_id: str) -> Mapping[str, str]:
        """vLLM takes our id as its own, in its log too."""
        return {"X-Request-Id": request_id}

    async def abort(self, engine_request_id: str) -> bool:
        """True when the server took the order; it takes one for an unknown id as well. False outside developer mode."""
        if not engine_request_id:
            return False  # vLLM reads an empty list as "abort everything"
        # a completion's prompts are numbered inside: cmpl-ID-0; an id of ours has the route's name in front
        ids = [engine_request_id, f"{engine_request_id}-0"]
        ids += [f"chatcmpl-{engine_request_id}", f"cmpl-{engine_request_id}-0"]
        try:
            await self._link.post(_ABORT, {"request_ids": ids})
        except Refused as problem:
            if problem.absent:
                return False
            raise
        return True

    # -- what it is ---------------------------------------------------------------------------------------------------

    async def read_deployment(self) -> Deployment:
        """All that vLLM tells. Generates one token: the fingerprint of its configuration comes only with an answer."""
        entry = await self.served()
        version = await self._link.get_json_if_served("/version") or {}
        info = await self._link.get_json_if_served("/server_info?config_format=json") or {}
        tokenizer = await self._link.get_json_if_served("/tokenizer_info") or {}
        routes = as_object((await self._link.get_json_if_served("/openapi.json") or {}).get("paths")) or {}
        self.dialect = replace(self.dialect, aborts=_ABORT in routes)
        return deployment(
            Told(
                model=entry,
                version=as_text(version.get("version")),
                cache=cache_labels(await self._metrics_text()),
                config=as_object(info.get("vllm_config")),
                fingerprint=await self._fingerprint(),
                chat_template=as_text(tokenizer.get("chat_template")),
            )
        )

    def keeps_metric(self, name: str) -> bool:
        """vLLM's own counters, gauges, and the sum and count of every histogram; buckets stay out of the evidence."""
        return name.startswith("vllm:") and not name.endswith(_NOT_SAMPLED)

    async def sample(self, *, wanted: frozenset[str] | None = None) -> EngineSample:
        """/metrics, without what `keeps_metric` turns down."""
        at_ns = self._link.clock.now_ns()
        found = await self.metrics(wanted)
        usage = largest(found, "vllm:kv_cache_usage_perc")
        return EngineSample(
            at_ns=at_ns,
            running=_whole(total(found, "vllm:num_requests_running")),
            waiting=_whole(total(found, "vllm:num_requests_waiting")),
            kv_usage=largest(found, "vllm:gpu_cache_usage_perc") if usage is None else usage,
            values=found,
        )

    async def _metrics_text(self) -> str:
        try:
            return (await self._link.get("/metrics")).text
        except EngineProtocolError:
            return ""

    async def _fingerprint(self) -> str | None:
        body: dict[str, object] = {"model": self._model, "prompt": "Hi", "max_tokens": 1, "temperature": 0}
        try:
            answer = await self._link.post_json(self.completions_path, body, timeout_s=_FINGERPRINT_TIMEOUT_S)
        except EngineMisbehaved:
            return None
        return as_text(answer.get("system_fingerprint"))

    # -- tokens -------------------------------------------------------------------------------------------------------

    async def count(self, prompt: Prompt) -> TokenCount:
        """As vLLM counts a request: template, generation prompt and special tokens included.

        Raises EngineProtocolError where /tokenize refuses or answers without ids.
        """
        if isinstance(prompt, IdsPrompt):
            return count_of_ids(prompt)
        if not self._native:
            return await super().count(prompt)
        if isinstance(prompt, ChatPrompt):
            whole, content = await self._count_chat(prompt.messages)
            special = None
            how = "POST /tokenize with messages and generation prompt; content: each message's text alone"
        else:
            whole, content = await told_apart([prompt.text], whole=self._text_tokens, alone=self._content_tokens)
            special = whole - content
            how = "POST /tokenize with and without special tokens"
        return TokenCount(
            total=whole,
            content=content,
            template=whole - content,
            special=special,
            source=CountSource.SERVER,
            how=how,
        )

    async def _count_chat(self, messages: Sequence[ChatMessage]) -> tuple[int, int]:
        async def count_whole(texts: Sequence[str]) -> int:
            filled = [
                ChatMessage(role=message.role, content=text) for message, text in zip(messages, texts, strict=True)
            ]
            return len(await self._chat_ids(filled))

        texts = [message.content for message in messages]
        return await told_apart(texts, whole=count_whole, alone=self._content_tokens)

    async def _text_tokens(self, texts: Sequence[str]) -> int:
        return len(await self._text_ids(texts[0], special=True))

    async def _content_tokens(self, text: str) -> int:
        return len(await self._text_ids(text, special=False))

    async def tokenize(self, text: str) -> list[int]:
        """Token ids of a text, no special tokens added. Special tokens written out in it become what they name."""
        if not self._native:
            return await super().tokenize(text)
        return await self._text_ids(text, special=False)

    async def detokenize(self, ids: Sequence[int]) -> str:
        """Text of token ids, special tokens written out. vLLM leaves ids out that its vocabulary lacks."""
        if not self._native:
            return await super().detokenize(ids)
        body: dict[str, object] = {"model": self._model, "tokens": list(ids)}
        answer = await self._link.post_json("/detokenize", body, timeout_s=_TOKENIZE_TIMEOUT_S)
        text = as_text(answer.get("prompt"))
        if text is None:
            raise EngineProtocolError("/detokenize answered without a prompt", url=self.url)
        return text

    async def render(self, messages: Sequence[ChatMessage]) -> str:
        """What the template makes of messages, by way of its tokens: the render routes answer only with
        --enable-scale-out."""
        if not self._native:
            return await super().render(messages)
        return await self.detokenize(await self._chat_ids(messages))

    async def _text_ids(self, text: str, *, special: bool) -> list[int]:
        return await self._ids({"prompt": text, "add_special_tokens": special})

    async def _chat_ids(self, messages: Sequence[ChatMessage]) -> list[int]:
        return await self._ids({"messages": message_fields(messages), "add_generation_prompt": True})

    async def _ids(self, what: JsonObject) -> list[int]:
        answer = await self._link.post_json("/tokenize", {"model": self._model, **what}, timeout_s=_TOKENIZE_TIMEOUT_S)
        tokens = as_list(answer.get("tokens"))
        ids = [number for item in tokens or [] if (number := as_int(item)) is not None]
        if tokens is None or len(ids) != len(tokens):
            raise EngineProtocolError("/tokenize answered without token ids", url=self.url)
        return ids


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)
