"""The edge: an HTTP body becomes an Ask, or a refusal in the dialect's own words."""

from __future__ import annotations

import json
from array import array
from dataclasses import dataclass
from typing import Any, cast

from longproof.testing.behaviour import Behaviour
from longproof.testing.dialects import LLAMACPP, VLLM, Json
from longproof.testing.fake_model import MAX_TOP_LOGPROBS
from longproof.testing.fake_tokenizer import BOS, render_chat, tokenizer


class Refusal(Exception):  # noqa: N818 - not an error of ours: it becomes the HTTP answer
    """The engine refuses a request: status, body, and when to come again where it says so."""

    def __init__(self, status: int, body: Json, *, retry_after_s: int | None = None) -> None:
        super().__init__(f"{status} {body}")
        self.status = status
        self.body = body
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A generation request that can be served. `ids` are the whole prompt, template included. `max_tokens` None: as
    the model likes. `top_logprobs` None: no logprobs. `cold`: the request forbids the prompt cache. `options`: the
    body without its prompt."""

    chat: bool
    ids: array[int]
    model: str
    max_tokens: int | None
    min_tokens: int
    ignore_end: bool
    stream: bool
    include_usage: bool
    cold: bool
    salt: str
    top_logprobs: int | None
    options: Json


def read_json(raw: bytes, behaviour: Behaviour) -> Json:
    """The body as an object. Raises Refusal 400."""
    try:
        body: Any = json.loads(raw)
    except ValueError as problem:
        raise bad_request(behaviour, f"cannot parse the request body: {problem}") from None
    if not isinstance(body, dict):
        raise bad_request(behaviour, "the request body must be a JSON object")
    return cast("Json", body)


def read_ask(body: Json, behaviour: Behaviour, *, chat: bool) -> Ask:
    """A body of /v1/chat/completions or /v1/completions. Raises Refusal where it makes no sense or the model is
    unknown."""
    dialect = behaviour.dialect
    model = str(body.get("model") or behaviour.model)
    checks = dialect.checks_model if behaviour.checks_model is None else behaviour.checks_model
    if checks and model != behaviour.model:
        raise unknown_model(behaviour, model)
    obeys = dialect.obeys_ignore_eos
    max_tokens = _whole(body.get("max_completion_tokens", body.get("max_tokens", body.get("n_predict"))))
    if dialect is LLAMACPP and max_tokens is not None:
        max_tokens = None if max_tokens < 0 else max(max_tokens, 1)  # 0 gives one token, -1 no limit (seen on the wire)
    options = cast("Json", body.get("stream_options") or {})
    return Ask(
        chat=chat,
        ids=array("I", chat_ids(body, behaviour) if chat else _prompt_ids(body, behaviour)),
        model=model,
        max_tokens=max_tokens,
        min_tokens=(_whole(body.get("min_tokens")) or 0) if obeys else 0,
        ignore_end=bool(body.get("ignore_eos")) and obeys,
        stream=bool(body.get("stream")),
        include_usage=bool(options.get("include_usage")),
        cold=dialect is LLAMACPP and body.get("cache_prompt") is False,
        salt=str(body.get("cache_salt") or "") if dialect is VLLM else "",
        top_logprobs=_top_logprobs(body, chat=chat),
        options={key: value for key, value in body.items() if key not in ("messages", "prompt")},
    )


def token_ids(body: Json, name: str, behaviour: Behaviour) -> list[int]:
    """A body's field of token ids. Raises Refusal where it is none or an id does not exist."""
    ids: Any = body.get(name)
    if isinstance(ids, list):
        listed = cast("list[Any]", ids)
        if all(type(token) is int for token in listed) and tokenizer().valid(listed):
            return listed
    raise bad_request(behaviour, "Prompt contains invalid tokens")


def chat_ids(body: Json, behaviour: Behaviour) -> list[int]:
    """Token ids of a body's messages, template included."""
    ids = tokenizer().encode(chat_text(body, behaviour))
    return [BOS, *ids] if behaviour.adds_bos else ids


def chat_text(body: Json, behaviour: Behaviour) -> str:
    """What the template makes of a body's messages."""
    messages: Any = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise bad_request(behaviour, "'messages' is required")
    pairs: list[tuple[str, str]] = []
    for message in cast("list[Any]", messages):
        if not isinstance(message, dict) or "role" not in message:
            raise bad_request(behaviour, "a message must be an object with a role")
        fields = cast("Json", message)
        pairs.append((str(fields["role"]), _content(fields.get("content"))))
    return render_chat(pairs, add_generation_prompt=body.get("add_generation_prompt") is not False)


def bad_request(behaviour: Behaviour, message: str) -> Refusal:
    """A 400 for what cannot be understood."""
    type_ = "BadRequestError" if behaviour.dialect is VLLM else "invalid_request_error"
    return Refusal(400, behaviour.dialect.error(400, message, type_=type_))


def unknown_model(behaviour: Behaviour, model: str) -> Refusal:
    """A 404 for a model that is not served."""
    type_ = "NotFoundError" if behaviour.dialect is VLLM else "invalid_request_error"
    message = f"The model `{model}` does not exist."
    return Refusal(404, behaviour.dialect.error(404, message, type_=type_, code="model_not_found", param="model"))


def _prompt_ids(body: Json, behaviour: Behaviour) -> list[int]:
    prompt: Any = body.get("prompt")
    if isinstance(prompt, str):
        ids = tokenizer().encode(prompt)
        ids = [BOS, *ids] if behaviour.adds_bos else ids
    elif isinstance(prompt, list) and behaviour.dialect.takes_ids:
        ids = token_ids(body, "prompt", behaviour)
    else:
        raise bad_request(behaviour, "'prompt' must be a string" if prompt is not None else "'prompt' is required")
    if not ids:
        raise bad_request(behaviour, "the prompt is empty")
    return ids


def _content(content: Any) -> str:
    if isinstance(content, list):
        parts = cast("list[Json]", content)
        return "".join(str(part.get("text", "")) for part in parts)
    return "" if content is None else str(content)


def _top_logprobs(body: Json, *, chat: bool) -> int | None:
    wanted: Any = body.get("logprobs")
    if chat:
        count = int(body.get("top_logprobs") or 0) if wanted else None
    else:
        count = None if wanted is None or wanted is False else int(wanted)
    return None if count is None else min(count, MAX_TOP_LOGPROBS)


def _whole(value: Any) -> int | None:
    return int(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
