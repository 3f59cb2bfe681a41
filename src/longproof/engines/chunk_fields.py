"""What the fields of one OpenAI stream chunk say, in the shapes that engines send. Pure; anything odd reads as
absent."""

from __future__ import annotations

from longproof.domain.events import TopLogprobs, Usage
from longproof.engines.json_fields import JsonObject, as_float, as_int, as_list, as_object, as_text


def content_of(delta: JsonObject) -> str:
    """Answer text: `content` as text or as typed parts, or a refusal."""
    content = delta.get("content")
    if type(content) is str and content.isascii():
        return content or as_text(delta.get("refusal")) or ""
    text = as_text(content) or as_text(delta.get("refusal"))
    if text is not None:
        return text
    parts = (as_object(part) or {} for part in as_list(content) or [])
    return "".join(as_text(part.get("text")) or "" for part in parts)


def reasoning_of(delta: JsonObject) -> str:
    """One of the two names; a server that sends both for compatibility sends the same text twice."""
    return as_text(delta.get("reasoning_content")) or as_text(delta.get("reasoning")) or ""


def tool_text_of(delta: JsonObject) -> str:
    """Names and arguments of tool calls: tokens like any others."""
    if not delta.get("tool_calls") and not delta.get("function_call"):
        return ""
    calls = [as_object(call) or {} for call in as_list(delta.get("tool_calls")) or []]
    functions = [as_object(call.get("function")) or {} for call in calls]
    functions.append(as_object(delta.get("function_call")) or {})
    return "".join((as_text(f.get("name")) or "") + (as_text(f.get("arguments")) or "") for f in functions)


def usage_of(usage: JsonObject) -> Usage:
    """A usage object; what it lacks is None."""
    prompt = as_object(usage.get("prompt_tokens_details")) or {}
    completion = as_object(usage.get("completion_tokens_details")) or {}
    reasoning = as_int(completion.get("reasoning_tokens"))
    return Usage(
        prompt_tokens=as_int(usage.get("prompt_tokens")),
        completion_tokens=as_int(usage.get("completion_tokens")),
        cached_tokens=as_int(prompt.get("cached_tokens")),
        # SGLang puts it beside completion_tokens
        reasoning_tokens=as_int(usage.get("reasoning_tokens")) if reasoning is None else reasoning,
    )


def merged(old: Usage | None, new: Usage) -> Usage:
    """Later numbers replace earlier ones; a field that a later chunk leaves out keeps its last value."""
    if old is None:
        return new

    def last(earlier: int | None, later: int | None) -> int | None:
        return earlier if later is None else later

    return Usage(
        prompt_tokens=last(old.prompt_tokens, new.prompt_tokens),
        completion_tokens=last(old.completion_tokens, new.completion_tokens),
        cached_tokens=last(old.cached_tokens, new.cached_tokens),
        reasoning_tokens=last(old.reasoning_tokens, new.reasoning_tokens),
    )


def first_logprobs_of(value: object) -> TopLogprobs | None:
    """The first token's alternatives. Chat shape ``{"content": [{"top_logprobs": [{"token", "logprob"}]}]}`` (llama.cpp
    uses it for completions too); completions shape ``{"top_logprobs": [{token: logprob}]}``. Logprobs that are no
    finite number are left out."""
    logprobs = as_object(value) or {}
    content = as_list(logprobs.get("content"))
    pairs: list[tuple[str | None, float | None]] = []
    if content:
        first = as_object(content[0]) or {}
        entries = [as_object(entry) or {} for entry in as_list(first.get("top_logprobs")) or [first]]
        pairs = [(as_text(entry.get("token")), as_float(entry.get("logprob"))) for entry in entries]
    elif top := as_list(logprobs.get("top_logprobs")):
        named = as_object(top[0]) or {}
        pairs = [(as_text(token), as_float(logprob)) for token, logprob in named.items()]
    known = [(token, logprob) for token, logprob in pairs if token is not None and logprob is not None]
    if not known:
        return None
    known.sort(key=lambda pair: -pair[1])
    return TopLogprobs(tokens=tuple(t for t, _ in known), logprobs=tuple(p for _, p in known))
