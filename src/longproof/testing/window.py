"""The window: how much room a prompt leaves for its answer, and each dialect's words when it leaves none."""

from __future__ import annotations

from longproof.testing.ask import Ask, Refusal
from longproof.testing.behaviour import Behaviour
from longproof.testing.dialects import LLAMACPP, VLLM, Json
from longproof.testing.fake_pool import PoolRefusal

AS_IT_LIKES_TOKENS = 32
"""Length of an answer when the request sets no limit."""


def output_allowance(ask: Ask, read_tokens: int, behaviour: Behaviour) -> int:
    """How many tokens the answer may have. Raises Refusal when the window has no room, in the dialect's words."""
    dialect, window = behaviour.dialect, behaviour.window_tokens
    wanted = AS_IT_LIKES_TOKENS if ask.max_tokens is None else ask.max_tokens
    room = window - read_tokens
    if dialect is LLAMACPP:
        if room <= 0:
            raise Refusal(400, _llamacpp_too_long(read_tokens, window))
        return min(wanted, room)
    if dialect is VLLM:
        return _vllm_allowance(ask, wanted, read_tokens, behaviour)
    if wanted > room:
        message = (
            f"This model's maximum context length is {window} tokens. "
            f"However, you requested {read_tokens + wanted} tokens ({read_tokens} in the messages, {wanted} in the "
            "completion). Please reduce the length of the messages."
        )
        code = "context_length_exceeded"
        raise Refusal(400, dialect.error(400, message, type_="invalid_request_error", code=code, param="messages"))
    return wanted


def _llamacpp_too_long(read_tokens: int, window: int) -> Json:
    """llama.cpp's own words and numbers (xllamacpp 2026.10)."""
    actual, limit = f"request ({read_tokens} tokens)", f"the available context size ({window} tokens)"
    return LLAMACPP.error(
        400,
        f"{actual} exceeds {limit}, try increasing it",
        type_="exceed_context_size_error",
        n_prompt_tokens=read_tokens,
        n_ctx=window,
    )


def _vllm_allowance(ask: Ask, wanted: int, read_tokens: int, behaviour: Behaviour) -> int:
    """vLLM 0.32: renderers/params.py refuses prompts above the window, sampling_params.py what is left of
    max_tokens."""
    window = behaviour.window_tokens
    problem, param = "", "max_tokens"
    allowed = min(wanted, window - read_tokens)
    if read_tokens > window:
        param = "input_tokens"
        problem = (
            f"This model's maximum context length is {window} tokens. However, your prompt contains {read_tokens} "
            "input tokens, which exceeds this limit even without any output tokens. "
            "Please reduce the length of the input prompt."
        )
    elif allowed < 1:
        problem = f"max_tokens must be at least 1, got {allowed}."
    elif ask.min_tokens > allowed:
        problem = f"min_tokens must be less than or equal to max_tokens={allowed}, got {ask.min_tokens}."
        param = "min_tokens"
    if problem:
        raise Refusal(400, behaviour.dialect.error(400, problem, type_="BadRequestError", param=param))
    return allowed


def no_room(refusal: PoolRefusal, behaviour: Behaviour) -> Refusal:
    """The answer to a request for which the KV pool has no room: 400 if it never has, 503 if it has none now."""
    if refusal.ever:
        message = f"no KV cache left: {refusal.need_tokens} tokens needed, {refusal.free_tokens} free, try again later"
        return Refusal(503, behaviour.dialect.error(503, message, type_="unavailable_error"))
    message = (
        f"request needs {refusal.need_tokens} tokens of KV cache, which exceeds the {refusal.capacity_tokens} tokens "
        "this server has in all"
    )
    return Refusal(400, behaviour.dialect.error(400, message, type_="exceed_context_size_error"))
