"""SGLang, from documented responses; not yet run against a live server.

Field and route names were read from the sources of SGLang 0.5.23 (entrypoints/http_server.py,
entrypoints/openai/protocol.py, managers/scheduler_components/internal_state.py, observability/metrics_collector.py).
The deployment says so itself, in ``other.adapter``, until a live server has confirmed it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from longproof.domain.deployment import Deployment, EngineKind
from longproof.domain.events import EngineSample
from longproof.domain.measure import Measured, Provenance, Reading, Unknown, derived, reported
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
from longproof.engines.json_fields import JsonObject, as_bool, as_int, as_list, as_object, as_text
from longproof.engines.known import answered
from longproof.engines.link import Refused
from longproof.engines.metrics_text import largest, total
from longproof.engines.openai import OpenAIEngine, count_of_ids, message_fields
from longproof.engines.told_apart import told_apart
from longproof.errors import EngineProtocolError

_COUNT_TIMEOUT_S = 300.0
UNTRIED = "written from the responses that SGLang 0.5.23's sources document; not yet run against a live server"
_LAYOUT = {"tp": "tp_size", "pp": "pp_size", "dp": "dp_size", "ep": "ep_size", "cp": "attn_cp_size", "dcp": "dcp_size"}
_SETTINGS = (
    "allow_auto_truncate",
    "attention_backend",
    "disaggregation_mode",
    "enable_cache_report",
    "enable_dp_attention",
    "enable_hierarchical_cache",
    "max_req_input_len",
    "mem_fraction_static",
    "quantization",
    "schedule_policy",
    "speculative_algorithm",
    "swa_full_tokens_ratio",
)
"""Settings of /server_info that change what a claim means. Never the whole answer: it holds keys and paths."""


class SglangEngine(OpenAIEngine):
    """The SGLang dialect."""

    kind = EngineKind.SGLANG
    dialect = Capabilities(
        token_ids=True, counts=True, exact_output=True, cold=True, logprobs=True, metrics=True, aborts=True
    )

    # -- requests -----------------------------------------------------------------------------------------------------

    def body(self, request: GenerationRequest, request_id: str) -> dict[str, object]:
        """Our request id becomes the engine's (`rid`), so that it can be aborted before its first chunk."""
        return {"rid": request_id, **super().body(request, request_id)}

    def exact_output_fields(self, request: GenerationRequest) -> Mapping[str, object]:  # noqa: ARG002 - the hook's signature
        """Goes on after EOS, and shows it: a hidden EOS as first token would be a first token that nobody sees.

        Not `min_tokens`: it adds a penalizer to every step, and SGLang refuses what does not fit instead of clipping
        it.
        """
        return {"ignore_eos": True, "skip_special_tokens": False}

    def cold_fields(self, request_id: str) -> Mapping[str, object]:
        """A `cache_salt` of its own: prefixes are shared only under the same salt."""
        return {"cache_salt": request_id}

    async def abort(self, engine_request_id: str) -> bool:
        """POST /abort_request. The server answers 200 for unknown ids too, so True means "asked". False where it is
        refused (an admin key may be needed)."""
        try:
            await self._link.post("/abort_request", {"rid": engine_request_id})
        except Refused:
            return False
        return True

    async def flush_cache(self) -> bool:
        """Empties the prefix cache. False where it is refused, which a server with requests in flight does too."""
        try:
            await self._link.post("/flush_cache", {})
        except Refused:
            return False
        return True

    # -- what it is ---------------------------------------------------------------------------------------------------

    async def read_deployment(self) -> Deployment:
        """What /server_info and /model_info (before 0.5: /get_server_info, /get_model_info) and /v1/models tell."""
        entry = await self.served()
        info, path = await self._first_served("/server_info", "/get_server_info")
        model_info, model_path = await self._first_served("/model_info", "/get_model_info")
        state = as_object((as_list(info.get("internal_states")) or [None])[0]) or {}
        page = answered(as_int(info.get("page_size")), f"GET {path} page_size")
        capacity = _capacity(info, path)
        untried: dict[str, Reading[str]] = {
            "adapter": Measured(value=UNTRIED, provenance=Provenance.ASSUMED, source="longproof's SGLang adapter")
        }
        return Deployment(
            engine=self.kind,
            engine_version=answered(as_text(info.get("version")), f"GET {path} version"),
            engine_build=Unknown(reason="SGLang reports a version, no build"),
            model=reported(self._model, "GET /v1/models id"),
            model_file=answered(as_text(model_info.get("model_path")), f"GET {model_path} model_path"),
            model_sha256=Unknown(reason="a server does not hash its model files for its clients"),
            weight_dtype=_settled(info, "dtype", path),
            configured_limit_tokens=_limit(entry.fields, info, path),
            trained_limit_tokens=Unknown(reason="SGLang does not report what the model was trained for"),
            slots=_slots(info, state, path),
            slot_limit_tokens=Unknown(reason="SGLang has no slots of a fixed size"),
            kv_capacity_tokens=capacity,
            kv_blocks=_pages(capacity, page),
            block_size_tokens=page,
            kv_dtype=_settled(info, "kv_cache_dtype", path),
            kv_unified=derived(True, "SGLang's sequences share one pool per data-parallel rank"),
            prefix_caching=_prefix_caching(info, path),
            max_batched_tokens=_chunk(info, path),
            layout=_layout(info, path),
            chat_template_sha256=Unknown(reason="SGLang does not report its chat template"),
            other=untried | _other(info, path),
        )

    async def _first_served(self, *paths: str) -> tuple[JsonObject, str]:
        if self._native:
            for path in paths:
                found = await self._link.get_json_if_served(path)
                if found is not None:
                    return found, path
        return {}, paths[0]

    async def sample(self, *, wanted: frozenset[str] | None = None) -> EngineSample:
        """/metrics, which is there when the server was started with --enable-metrics."""
        at_ns = self._link.clock.now_ns()
        values = await self.metrics(wanted)
        running = total(values, "sglang:num_running_reqs")
        waiting = total(values, "sglang:num_queue_reqs")
        return EngineSample(
            at_ns=at_ns,
            running=None if running is None else int(running),
            waiting=None if waiting is None else int(waiting),
            kv_usage=largest(values, "sglang:token_usage"),
            values=values,
        )

    # -- tokens -------------------------------------------------------------------------------------------------------

    async def count(self, prompt: Prompt) -> TokenCount:
        """By the server's /tokenize: messages as for a chat completion, text with special tokens added."""
        if isinstance(prompt, IdsPrompt):
            return count_of_ids(prompt)
        if not self._native:
            return await super().count(prompt)
        if isinstance(prompt, ChatPrompt):
            messages = prompt.messages
            texts = [message.content for message in messages]

            async def count_whole(texts: Sequence[str]) -> int:
                filled = [
                    ChatMessage(role=message.role, content=text) for message, text in zip(messages, texts, strict=True)
                ]
                return len(await self._ids({"messages": message_fields(filled)}))
        else:
            texts = [prompt.text]

            async def count_whole(texts: Sequence[str]) -> int:
                return len(await self._ids({"prompt": texts[0], "add_special_tokens": True}))

        whole, content = await told_apart(texts, whole=count_whole, alone=self._content_tokens)
        is_chat = isinstance(prompt, ChatPrompt)
        return TokenCount(
            total=whole,
            content=content,
            template=whole - content,
            special=None if is_chat else whole - content,
            source=CountSource.SERVER,
            how="POST /tokenize, messages" if is_chat else "POST /tokenize, add_special_tokens",
        )

    async def _content_tokens(self, text: str) -> int:
        return len(await self._ids({"prompt": text, "add_special_tokens": False}))

    async def tokenize(self, text: str) -> list[int]:
        """Token ids by POST /tokenize, no special tokens added."""
        if not self._native:
            return await super().tokenize(text)
        return await self._ids({"prompt": text, "add_special_tokens": False})

    async def detokenize(self, ids: Sequence[int]) -> str:
        """Text by POST /detokenize, special tokens written out."""
        if not self._native:
            return await super().detokenize(ids)
        body = {"model": self._model, "tokens": list(ids), "skip_special_tokens": False}
        text = as_text((await self._link.post_json("/detokenize", body, timeout_s=_COUNT_TIMEOUT_S)).get("text"))
        if text is None:
            raise EngineProtocolError("/detokenize answered without text", url=self.url)
        return text

    async def render(self, messages: Sequence[ChatMessage]) -> str:
        """The text of the ids that /tokenize makes of messages: SGLang has no route that shows the template's text
        itself."""
        if not self._native:
            return await super().render(messages)
        return await self.detokenize(await self._ids({"messages": message_fields(messages)}))

    async def _ids(self, fields: Mapping[str, object]) -> list[int]:
        body = {"model": self._model, **fields}
        found = as_list((await self._link.post_json("/tokenize", body, timeout_s=_COUNT_TIMEOUT_S)).get("tokens"))
        ids = [number for item in found or [] if (number := as_int(item)) is not None]
        if found is None or len(ids) != len(found):
            raise EngineProtocolError("/tokenize answered without a list of token ids", url=self.url)
        return ids


def _limit(entry: JsonObject, info: JsonObject, path: str) -> Reading[int]:
    listed = as_int(entry.get("max_model_len"))
    if listed is not None:
        return reported(listed, "GET /v1/models max_model_len")
    return answered(as_int(info.get("context_length")), f"GET {path} context_length")


def _capacity(info: JsonObject, path: str) -> Reading[int]:
    ranks = as_int(info.get("dp_size")) or 1
    per_rank = " (of the first data-parallel rank; each has its own pool)" if ranks > 1 else ""
    return answered(as_int(info.get("max_total_num_tokens")), f"GET {path} max_total_num_tokens{per_rank}")


def _pages(capacity: Reading[int], page: Reading[int]) -> Reading[int]:
    if isinstance(capacity, Measured) and isinstance(page, Measured) and page.value > 0:
        return derived(capacity.value // page.value, "max_total_num_tokens // page_size")
    return Unknown(reason="max_total_num_tokens or page_size is missing")


def _slots(info: JsonObject, state: JsonObject, path: str) -> Reading[int]:
    effective = as_int(state.get("effective_max_running_requests_per_dp"))
    if effective is not None:
        return reported(effective, f"GET {path} internal_states[0].effective_max_running_requests_per_dp")
    return answered(as_int(info.get("max_running_requests")), f"GET {path} max_running_requests")


def _settled(info: JsonObject, name: str, path: str) -> Reading[str]:
    """A dtype that may still say ``auto``, which is no dtype."""
    value = as_text(info.get(name))
    if value == "auto":
        return Unknown(reason=f"GET {path} {name} says auto, not what that became")
    return answered(value, f"GET {path} {name}")


def _prefix_caching(info: JsonObject, path: str) -> Reading[bool]:
    disabled = as_bool(info.get("disable_radix_cache"))
    if disabled is None:
        return Unknown(reason=f"GET {path} disable_radix_cache is missing")
    return derived(not disabled, f"GET {path} disable_radix_cache is {str(disabled).lower()}")


def _chunk(info: JsonObject, path: str) -> Reading[int]:
    tokens = as_int(info.get("chunked_prefill_size"))
    if tokens is not None and tokens <= 0:
        return Unknown(reason=f"GET {path} chunked_prefill_size is {tokens}: chunked prefill is off")
    return answered(tokens, f"GET {path} chunked_prefill_size")


def _layout(info: JsonObject, path: str) -> Reading[str]:
    sizes = [(short, as_int(info.get(name))) for short, name in _LAYOUT.items()]
    if all(size is None for _, size in sizes):
        return Unknown(reason=f"GET {path} has no parallel sizes")
    shown = [f"{short}={size}" for short, size in sizes if size is not None]
    return derived(" ".join(shown), f"GET {path} " + ", ".join(_LAYOUT.values()))


def _other(info: JsonObject, path: str) -> dict[str, Reading[str]]:
    found: dict[str, Reading[str]] = {}
    for name in _SETTINGS:
        value = info.get(name)
        if isinstance(value, bool):
            found[name] = reported(str(value).lower(), f"GET {path} {name}")
        elif isinstance(value, str | int | float):
            found[name] = reported(str(value), f"GET {path} {name}")
    return found
