"""llama.cpp's llama-server.

Read from and exercised against xllamacpp 2026.10.11549. What it tells: /props, /slots, /v1/models; what it counts:
/apply-template, /tokenize and /v1/chat/completions/input_tokens; what it measures: /metrics and `timings` in the
stream. What it does not tell over HTTP: the KV cache's type, whether slots share one pool, batch sizes. Those come from
whoever started it (`known`), or stay unknown.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import PurePosixPath

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
from longproof.engines.metrics_text import total
from longproof.engines.openai import OpenAIEngine, count_of_ids, message_fields
from longproof.engines.told_apart import told_apart
from longproof.errors import EngineProtocolError

_COUNT_TIMEOUT_S = 300.0
_NO_OTHER_BUILD = "b0-unknown"
_PLACEHOLDER = "x"


_CHATML = """
{%- for message in messages -%} {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' -}}
{%- endfor -%} {%- if add_generation_prompt -%} {{- '<|im_start|>assistant\n' -}} {%- endif -%}
"""
"""What llama-server shows, and renders chats with, where a model file has no chat template (white space aside)."""
_CHATML_MARKER = "<|im_start|>"
_NO_TEMPLATE = (
    "the model file has no chat template; llama-server stands in with ChatML, whose markers it has no tokens for"
)


class LlamaCppEngine(OpenAIEngine):
    """The llama.cpp dialect. An abort is the connection's closing; the server has no route for it.

    `capabilities.chat` is known after `introspect`; before it is True. It is False for a model without a chat template:
    the server renders ChatML all the same, but the model was never shown its markers.
    """

    kind = EngineKind.LLAMACPP
    dialect = Capabilities(token_ids=True, counts=True, exact_output=True, cold=True, logprobs=True, metrics=True)

    # -- requests -----------------------------------------------------------------------------------------------------

    def exact_output_fields(self, request: GenerationRequest) -> Mapping[str, object]:  # noqa: ARG002 - the hook's signature
        """`ignore_eos`: exactly max_tokens come, unless the slot fills up."""
        return {"ignore_eos": True}

    def cold_fields(self, request_id: str) -> Mapping[str, object]:  # noqa: ARG002 - the hook's signature
        """`cache_prompt` false: the slot's own cache is not reused. A fresh first token is still the safer way."""
        return {"cache_prompt": False}

    # -- what it is ---------------------------------------------------------------------------------------------------

    async def read_deployment(self) -> Deployment:
        """What /props, /slots and /v1/models tell."""
        entry = await self.served()
        meta = as_object(entry.fields.get("meta")) or {}
        props = await self._link.get_json_if_served("/props") if self._native else None
        if props is None:
            return _without_props(self._model, meta)
        settings = as_object(props.get("default_generation_settings")) or {}
        slot_tokens = answered(as_int(settings.get("n_ctx")), "GET /props default_generation_settings.n_ctx")
        slots = answered(as_int(props.get("total_slots")), "GET /props total_slots")
        build = as_text(props.get("build_info"))
        self.dialect = replace(self.dialect, chat=not await self._is_base(as_text(props.get("chat_template"))))
        capacity = _capacity(slot_tokens, slots)
        return Deployment(
            engine=self.kind,
            engine_version=_version(build),
            engine_build=answered(build, "GET /props build_info"),
            model=reported(self._model, "GET /v1/models id"),
            model_file=_file_name(props),
            model_sha256=Unknown(reason="a server does not hash its model file for its clients"),
            weight_dtype=answered(as_text(props.get("model_ftype")), "GET /props model_ftype"),
            configured_limit_tokens=slot_tokens,
            trained_limit_tokens=answered(as_int(meta.get("n_ctx_train")), "GET /v1/models meta.n_ctx_train"),
            slots=slots,
            slot_limit_tokens=slot_tokens,
            kv_capacity_tokens=capacity,
            kv_blocks=_cells(capacity),
            block_size_tokens=derived(1, "llama.cpp keeps the KV of each token in a cell of its own"),
            kv_dtype=Unknown(reason="llama-server does not report its KV cache types (-ctk, -ctv)"),
            kv_unified=Unknown(reason="llama-server does not report whether its slots share one pool (-kvu)"),
            prefix_caching=Measured(
                value=True, provenance=Provenance.ASSUMED, source="llama-server's default of cache_prompt"
            ),
            max_batched_tokens=Unknown(reason="llama-server does not report its batch size (-b, -ub)"),
            layout=Unknown(reason="llama-server does not report how layers lie on devices"),
            chat_template_sha256=_template(props) if self.dialect.chat else Unknown(reason=_NO_TEMPLATE),
            other=_other(meta, props),
        )

    async def _is_base(self, template: str | None) -> bool:
        """Whether the model has no chat template: the server shows its stand-in, and the stand-in's marker is no token
        of the model's."""
        if template is None or "".join(template.split()) != "".join(_CHATML.split()):
            return False
        return len(await self._ids(_CHATML_MARKER, add_special=False)) > 1

    async def sample(self, *, wanted: frozenset[str] | None = None) -> EngineSample:
        """/metrics where it is switched on, and /slots. Raises EngineProtocolError when the server offers neither.

        llama.cpp has no gauge for KV use. Slots appear as ``slots:n_prompt_tokens{id="0"}`` and the like: their numbers
        in /slots.
        """
        at_ns = self._link.clock.now_ns()
        values: dict[str, float] = {}
        with suppress(Refused):  # started without --metrics: 501; the slots may still be there
            values.update(await self.metrics(wanted))
        busy = 0
        slots = await self._slots()
        for slot in slots or []:
            number = as_int(slot.get("id"))
            processing = as_bool(slot.get("is_processing")) or False
            busy += processing
            values[f'slots:is_processing{{id="{number}"}}'] = float(processing)
            for name in ("n_ctx", "n_prompt_tokens", "n_prompt_tokens_processed", "n_prompt_tokens_cache"):
                tokens = as_int(slot.get(name))
                if tokens is not None:
                    values[f'slots:{name}{{id="{number}"}}'] = float(tokens)
        if not values:
            raise EngineProtocolError("neither /metrics nor /slots is switched on (--metrics, --slots)", url=self.url)
        running = total(values, "llamacpp:requests_processing")
        waiting = total(values, "llamacpp:requests_deferred")
        return EngineSample(
            at_ns=at_ns,
            running=int(running) if running is not None else (busy if slots is not None else None),
            waiting=None if waiting is None else int(waiting),
            values=values,
        )

    async def _slots(self) -> list[JsonObject] | None:
        try:
            found = as_list(self._link.value_of(await self._link.get("/slots")))
        except Refused:
            return None
        return None if found is None else [slot for item in found if (slot := as_object(item)) is not None]

    # -- tokens -------------------------------------------------------------------------------------------------------

    async def count(self, prompt: Prompt) -> TokenCount:
        """Tokens as the server will count them, by the server itself.

        Chat: its input_tokens route (older builds: /apply-template, then /tokenize as the server does it, special
        tokens parsed and added). Text: /tokenize with special tokens added. `template` is the total less what the
        contents make alone, so a merge across a border between the two is booked there.
        """
        if isinstance(prompt, IdsPrompt):
            return count_of_ids(prompt)
        if not self._native:
            return await super().count(prompt)
        if isinstance(prompt, ChatPrompt):
            return await self._count_chat(prompt.messages)
        whole, content = await told_apart([prompt.text], whole=self._text_tokens, alone=self._content_tokens)
        return TokenCount(
            total=whole,
            content=content,
            template=whole - content,
            special=whole - content,
            source=CountSource.SERVER,
            how="POST /tokenize, add_special",
        )

    async def _count_chat(self, messages: Sequence[ChatMessage]) -> TokenCount:
        how = ""

        async def count_whole(texts: Sequence[str]) -> int:
            nonlocal how
            filled = [
                ChatMessage(role=message.role, content=text) for message, text in zip(messages, texts, strict=True)
            ]
            tokens, how = await self._count_messages(filled)
            return tokens

        texts = [message.content for message in messages]
        whole, content = await told_apart(texts, whole=count_whole, alone=self._content_tokens)
        return TokenCount(
            total=whole,
            content=content,
            template=whole - content,
            special=await self._special_in_template(messages),
            source=CountSource.SERVER,
            how=how,
        )

    async def _text_tokens(self, texts: Sequence[str]) -> int:
        return len(await self._ids(texts[0], add_special=True))

    async def _content_tokens(self, text: str) -> int:
        return len(await self._ids(text, add_special=False))

    async def _count_messages(self, messages: Sequence[ChatMessage]) -> tuple[int, str]:
        path = f"{self.chat_path}/input_tokens"
        body = {"model": self._model, "messages": message_fields(messages)}
        try:
            found = as_int((await self._link.post_json(path, body, timeout_s=_COUNT_TIMEOUT_S)).get("input_tokens"))
        except Refused as problem:
            if not problem.absent:
                raise
            ids = await self._ids(await self.render(messages), add_special=True)
            return len(ids), "POST /apply-template, then /tokenize with add_special"
        if found is None:
            raise EngineProtocolError(f"{path} answered without input_tokens", url=self.url)
        return found, f"POST {path}"

    async def tokenize(self, text: str) -> list[int]:
        """Token ids as the server reads the text within a prompt: markers such as ``<|im_start|>`` become special
        tokens."""
        if not self._native:
            return await super().tokenize(text)
        return await self._ids(text, add_special=False)

    async def detokenize(self, ids: Sequence[int]) -> str:
        """Text of ids, special tokens written out."""
        if not self._native:
            return await super().detokenize(ids)
        answer = await self._link.post_json("/detokenize", {"tokens": list(ids)}, timeout_s=_COUNT_TIMEOUT_S)
        text = as_text(answer.get("content"))
        if text is None:
            raise EngineProtocolError("/detokenize answered without content", url=self.url)
        return text

    async def render(self, messages: Sequence[ChatMessage]) -> str:
        """What the template makes of messages, generation prompt included; a BOS that the tokenizer adds is not in
        it."""
        if not self._native:
            return await super().render(messages)
        body = {"messages": message_fields(messages)}
        text = as_text((await self._link.post_json("/apply-template", body, timeout_s=_COUNT_TIMEOUT_S)).get("prompt"))
        if text is None:
            raise EngineProtocolError("/apply-template answered without prompt", url=self.url)
        return text

    async def _ids(self, text: str, *, add_special: bool, parse_special: bool = True) -> list[int]:
        body = {"content": text, "add_special": add_special, "parse_special": parse_special}
        found = as_list((await self._link.post_json("/tokenize", body, timeout_s=_COUNT_TIMEOUT_S)).get("tokens"))
        ids = [number for item in found or [] if (number := as_int(item)) is not None]
        if found is None or len(ids) != len(found):
            raise EngineProtocolError("/tokenize answered without a list of token ids", url=self.url)
        return ids

    async def _special_in_template(self, messages: Sequence[ChatMessage]) -> int:
        """Special tokens that the template adds around these messages, found with a placeholder for every content.

        llama-server does not say which tokens are special. One that is reads its own text as one token when markers are
        parsed, and as ordinary text when they are not.
        """
        blank = [ChatMessage(role=message.role, content=_PLACEHOLDER) for message in messages]
        body = {"content": await self.render(blank), "add_special": True, "parse_special": True, "with_pieces": True}
        tokens = as_list((await self._link.post_json("/tokenize", body)).get("tokens")) or []
        pieces = [as_text((as_object(token) or {}).get("piece")) for token in tokens]
        special = 0
        for piece in pieces:
            if piece:  # half a character is a list of bytes, not text, and never a marker
                special += await self._is_special(piece)
        return special

    @cached_property
    def _special_pieces(self) -> dict[str, bool]:
        return {}

    async def _is_special(self, piece: str) -> bool:
        known = self._special_pieces.get(piece)
        if known is None:
            parsed = await self._ids(piece, add_special=False)
            known = len(parsed) == 1 and parsed != await self._ids(piece, add_special=False, parse_special=False)
            self._special_pieces[piece] = known
        return known


def _without_props(model: str, meta: JsonObject) -> Deployment:
    """Behind something that passes only /v1."""
    silent = Unknown(reason="GET /props is not reachable")
    return Deployment(
        engine=EngineKind.LLAMACPP,
        engine_version=silent,
        engine_build=silent,
        model=reported(model, "GET /v1/models id"),
        weight_dtype=answered(as_text(meta.get("ftype")), "GET /v1/models meta.ftype"),
        configured_limit_tokens=answered(as_int(meta.get("n_ctx")), "GET /v1/models meta.n_ctx"),
        trained_limit_tokens=answered(as_int(meta.get("n_ctx_train")), "GET /v1/models meta.n_ctx_train"),
        slots=silent,
        kv_capacity_tokens=silent,
        prefix_caching=silent,
        other=_other(meta, {}),
    )


def _version(build: str | None) -> Reading[str]:
    """``b8123-1a2b3c4`` → ``b8123``; builds made outside llama.cpp's own repository say ``b0-unknown``."""
    if build is None or build == _NO_OTHER_BUILD or not build.startswith("b"):
        return Unknown(reason=f"GET /props build_info says {build or 'nothing'}, which is no version")
    return derived(build.partition("-")[0], "GET /props build_info")


def _capacity(slot_tokens: Reading[int], slots: Reading[int]) -> Reading[int]:
    if not isinstance(slot_tokens, Measured) or not isinstance(slots, Measured):
        return Unknown(reason="GET /props lacks n_ctx or total_slots")
    if slots.value == 1:
        return derived(slot_tokens.value, "GET /props n_ctx × total_slots (1)")
    one, all_ = slot_tokens.value, slot_tokens.value * slots.value
    return Unknown(
        reason=f"{slots.value} slots of {one} tokens hold {one} together if they share one pool (-kvu), {all_} if not; "
        "llama-server does not report which"
    )


def _cells(capacity: Reading[int]) -> Reading[int]:
    if isinstance(capacity, Unknown):
        return Unknown(reason=capacity.reason)
    return derived(capacity.value, "one cell per token of capacity")


def _file_name(props: JsonObject) -> Reading[str]:
    path = as_text(props.get("model_path"))
    if not path:
        return Unknown(reason="GET /props model_path is missing")
    return derived(PurePosixPath(path.replace("\\", "/")).name, "GET /props model_path, its last part")


def _template(props: JsonObject) -> Reading[str]:
    template = as_text(props.get("chat_template"))
    if template is None:
        return Unknown(reason="GET /props chat_template is missing")
    return derived(hashlib.sha256(template.encode()).hexdigest(), "sha256 of GET /props chat_template")


def _other(meta: JsonObject, props: JsonObject) -> dict[str, Reading[str]]:
    found: dict[str, Reading[str]] = {}
    for name, shown in (("n_params", "parameters"), ("size", "model_bytes"), ("n_vocab", "vocabulary_tokens")):
        number = as_int(meta.get(name))
        if number is not None:
            found[shown] = reported(str(number), f"GET /v1/models meta.{name}")
    for name in ("endpoint_slots", "endpoint_metrics"):
        switched_on = as_bool(props.get(name))
        if switched_on is not None:
            found[name] = reported(str(switched_on).lower(), f"GET /props {name}")
    return found
