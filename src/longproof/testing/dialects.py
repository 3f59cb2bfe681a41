"""What differs between the servers that the engine imitates, as data. The routes around generation are in the surface
files.

Facts: llama.cpp as in xllamacpp 2026.10 and vLLM 0.32.0, seen on the wire or read in their source.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

Json: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """One server's habits.

    `finish_apart`: finish_reason comes in a chunk of its own after the last token (else with it).
    `usage_with_finish`: completions carry usage in the finishing chunk whether asked or not. `clamps`: prompt +
    max_tokens beyond the window is cut to what fits (else refused). `takes_ids`: /v1/completions takes token ids.
    `obeys_ignore_eos`: ignore_eos and min_tokens work. `legacy_logprobs`: completions report logprobs in OpenAI's old
    four-list form. `cache_block_tokens`: granularity of the cache and of the KV pool. `grows`: a request's blocks grow
    with it, and it is preempted when there are none (else it takes prompt + allowance at once).
    """

    name: str
    headers: tuple[tuple[str, str], ...]
    json_type: str
    stream_type: str
    role_content: str | None
    finish_apart: bool
    usage_with_finish: bool
    timings: bool
    clamps: bool
    takes_ids: bool
    obeys_ignore_eos: bool
    legacy_logprobs: bool
    checks_model: bool
    cache_block_tokens: int
    grows: bool
    id_prefix: tuple[str, str]

    def __reduce__(self) -> tuple[Callable[[str], Dialect], tuple[str]]:
        """There is one of each: in another process too a dialect is known by which it is."""
        return _named, (self.name,)

    def error(
        self, status: int, message: str, *, type_: str, code: str | None = None, param: str | None = None, **fields: int
    ) -> Json:
        """An error body in the server's own form; `fields` are numbers that llama.cpp adds."""
        if self is LLAMACPP:
            return {"error": {"code": status, "message": message, "type": type_, **fields}}
        if self is VLLM:
            return {"error": {"message": message, "type": type_, "param": param, "code": status}}
        return {"error": {"message": message, "type": type_, "param": param, "code": code}}


LLAMACPP = Dialect(
    name="llama.cpp",
    headers=(("server", "llama.cpp"), ("access-control-allow-origin", "")),
    json_type="application/json; charset=utf-8",
    stream_type="text/event-stream",
    role_content=None,
    finish_apart=True,
    usage_with_finish=True,
    timings=True,
    clamps=True,
    takes_ids=True,
    obeys_ignore_eos=True,
    legacy_logprobs=False,
    checks_model=False,
    cache_block_tokens=1,
    grows=False,
    id_prefix=("chatcmpl-", "chatcmpl-"),
)
VLLM = Dialect(
    name="vllm",
    headers=(("server", "uvicorn"),),
    json_type="application/json",
    stream_type="text/event-stream; charset=utf-8",
    role_content="",
    finish_apart=False,
    usage_with_finish=False,
    timings=False,
    clamps=True,
    takes_ids=True,
    obeys_ignore_eos=True,
    legacy_logprobs=True,
    checks_model=True,
    cache_block_tokens=16,
    grows=True,
    id_prefix=("chatcmpl-", "cmpl-"),
)
OPENAI = Dialect(
    name="openai",
    headers=(("server", "fake"),),
    json_type="application/json",
    stream_type="text/event-stream; charset=utf-8",
    role_content="",
    finish_apart=True,
    usage_with_finish=False,
    timings=False,
    clamps=False,
    takes_ids=False,
    obeys_ignore_eos=False,
    legacy_logprobs=True,
    checks_model=True,
    cache_block_tokens=1,
    grows=False,
    id_prefix=("chatcmpl-", "cmpl-"),
)
DIALECTS = {dialect.name: dialect for dialect in (LLAMACPP, VLLM, OPENAI)}


def _named(name: str) -> Dialect:
    return DIALECTS[name]
