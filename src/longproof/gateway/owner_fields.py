"""What of a body is not the client's to say: fields that steer the engine itself, and addresses it would fetch from.

An engine trusts whoever reaches it. Behind a gateway that is everybody with a key, so what would let one client choose
where an engine connects to, whose slot it takes or how its own queue is ordered is refused, by name. The owner allows
single fields (``allow_fields``) and media hosts (``media_hosts``) in the configuration.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast
from urllib.parse import urlsplit

from longproof.gateway.ask import Json
from longproof.gateway.errors import ApiError, bad_request

OWNER_FIELDS = frozenset(
    {
        "kv_transfer_params",  # vLLM 0.32: a host and port to fetch KV blocks from
        "ec_transfer_params",  # vLLM: the same for encoder outputs
        "prompt_embeds",  # vLLM: a serialised tensor, which is loaded
        "logits_processors",  # vLLM, earlier: names of Python objects
        "priority",  # vLLM, SGLang: the place in the engine's own queue; here priorities belong to keys
        "bootstrap_host",  # SGLang 0.5: where a decode side fetches KV from
        "bootstrap_port",
        "bootstrap_room",
        "custom_logit_processor",  # SGLang: a pickled program
        "rid",  # SGLang: a request's id; two with the same mix up their answers
        "data_parallel_rank",  # SGLang, vLLM: a replica inside the replica, past its own balancing
        "routed_dp_rank",
        "disagg_prefill_dp_rank",
        "id_slot",  # llama.cpp: whose cache is used
    }
)
_MEDIA = frozenset({"image", "video", "audio", "url"})
_DEEPEST = 4
ANY_HOST = "*"


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldRule:
    """`allowed`: owner's fields that clients may use. `media_hosts`: hosts that engines may fetch images, video and
    audio from, "*" = any; without one, media come inside the body as ``data:`` URLs."""

    allowed: frozenset[str] = frozenset()
    media_hosts: frozenset[str] = frozenset()

    def require(self, fields: Json) -> None:
        """ApiError 400 for what is not the client's to say."""
        if not OWNER_FIELDS.isdisjoint(fields):
            for name in sorted(OWNER_FIELDS.intersection(fields) - self.allowed):
                if fields[name]:  # null, 0 and "" say nothing
                    message = f"'{name}' is for the owner of the engines; [gateway] allow_fields can allow it"
                    raise bad_request(message, param=name, code="field_not_allowed")
        messages = fields.get("messages")
        if isinstance(messages, list) and ANY_HOST not in self.media_hosts:
            for message in cast("list[object]", messages):
                content = cast(Json, message).get("content") if isinstance(message, dict) else None
                if isinstance(content, list | dict):
                    for url in _urls(cast(object, content)):
                        self._require_address(url)

    def _require_address(self, url: str) -> None:
        if url[:5].lower() == "data:" or self._is_allowed(url):
            return
        where = "no host is allowed" if not self.media_hosts else "its host is not allowed"
        message = f"media must be sent as data: URLs; '{url[:80]}' would be fetched by the engine, and {where}"
        raise bad_request(f"{message} ([gateway] media_hosts)", param="messages", code="media_not_allowed")

    def _is_allowed(self, url: str) -> bool:
        # what two readers of an address could understand in two ways is none
        if not self.media_hosts or not url.isascii() or not url.isprintable() or any(odd in url for odd in "\\@ "):
            return False
        try:
            parts = urlsplit(url)
        except ValueError:
            return False
        return parts.scheme in ("http", "https") and (parts.hostname or "") in self.media_hosts


def _urls(found: object, depth: int = 0) -> Iterator[str]:
    """Everything in a message's content that an engine could take for an address."""
    if depth > _DEEPEST:
        raise _too_deep()
    if isinstance(found, list):
        for item in cast("list[object]", found):
            if isinstance(item, list | dict):
                yield from _urls(cast(object, item), depth + 1)
    elif isinstance(found, dict):
        for name, value in cast(Json, found).items():
            if isinstance(value, str) and (name in _MEDIA or name.endswith("_url")):
                yield value
            elif isinstance(value, list | dict) and name not in ("input", "arguments"):
                yield from _urls(cast(object, value), depth + 1)


def _too_deep() -> ApiError:
    return bad_request(f"the parts of a message nest deeper than {_DEEPEST}", param="messages")
