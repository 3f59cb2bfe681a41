"""What the engine will do with a request, decided before it does it: pure functions of the request, the behaviour and
the lies."""

from __future__ import annotations

import codecs
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, replace

from longproof.testing.ask import Ask
from longproof.testing.behaviour import Behaviour
from longproof.testing.dialects import Json
from longproof.testing.fake_model import Speech, speak
from longproof.testing.fake_tokenizer import tokenizer
from longproof.testing.lie import Lie, find
from longproof.testing.lies import (
    BigChunks,
    ClampOutput,
    Crash,
    CutStream,
    EmptyAnswer,
    ErrorInStream,
    FalseCached,
    FinishWith,
    HideCached,
    NoUsage,
    ReasoningFirst,
    SplitUtf8,
    TruncateInput,
    WrongUsage,
)
from longproof.testing.window import AS_IT_LIKES_TOKENS
from longproof.testing.wire_shapes import Piece, usage_object


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerPlan:
    """`tokens` will be sent, then comes the `fault`, or the end with `finish`."""

    speech: Speech
    tokens: tuple[int, ...]
    finish: str
    fault: ErrorInStream | CutStream | Crash | None


def read_part(ids: array[int], lies: tuple[Lie, ...]) -> array[int]:
    """The part of a prompt that the model gets to read."""
    lie = find(lies, TruncateInput)
    if lie is None or len(ids) <= lie.keep_tokens:
        return ids
    spared = len(ids) - lie.spare_tail_tokens
    room = max(lie.keep_tokens - lie.spare_tail_tokens, 0)
    body, tail = ids[:spared], ids[spared:]
    if lie.lose == "head":
        kept = body[spared - room :]
    elif lie.lose == "tail":
        kept = body[:room]
    else:
        front = (room + 1) // 2
        kept = body[:front] + body[spared - (room - front) :]
    return kept + tail


def plan_answer(
    ask: Ask, read: array[int], allowance: int, lies: tuple[Lie, ...], *, words: str | None = None
) -> AnswerPlan:
    """What will be said, and how it will end. `words`: the answer, where somebody else decides it."""
    multibyte = find(lies, SplitUtf8) is not None or any(
        isinstance(x, CutStream) and x.where == "in_utf8" for x in lies
    )
    goes_on = ask.ignore_end or ask.min_tokens >= allowance
    speech = speak(read, max_tokens=allowance, ignore_end=goes_on, multibyte=multibyte, words=words)
    tokens = speech.tokens
    had_enough = ask.max_tokens is None and len(tokens) == AS_IT_LIKES_TOKENS
    finish = "stop" if speech.ended or had_enough else "length"
    clamp, reason, empty = find(lies, ClampOutput), find(lies, FinishWith), find(lies, EmptyAnswer)
    if clamp is not None and len(tokens) > clamp.tokens:
        tokens, finish = tokens[: clamp.tokens], clamp.finish
    if reason is not None:
        tokens, finish = tokens[: reason.after_tokens], reason.reason
    if empty is not None:
        tokens, finish = (), empty.finish
    faults = (find(lies, ErrorInStream), find(lies, CutStream), find(lies, Crash))
    fault = next((lie for lie in faults if lie is not None), None)
    if fault is not None:
        tokens = tokens[: fault.after_tokens or 0]
    return AnswerPlan(speech=speech, tokens=tokens, finish=finish, fault=fault)


def told_of(plan: AnswerPlan, read: array[int], *, after_tokens: int = 0) -> AnswerPlan:
    """The plan with what the model would say of another prompt in place of its own words from a token on; its length
    and its end stay."""
    count = len(plan.tokens)
    other = speak(read, max_tokens=count, ignore_end=True)
    tokens = plan.tokens[:after_tokens] + other.tokens[after_tokens:]
    return replace(plan, speech=Speech(tokens=tokens, ended=plan.speech.ended, digest=other.digest), tokens=tokens)


def damaged(read: array[int]) -> array[int]:
    """A prompt as a damaged cache has it: its first token comes twice, and every digit in it is another one."""
    text = tokenizer().decode(read).translate(str.maketrans("0123456789", "5678901234"))
    return read[:1] + array("I", tokenizer().encode(text))


def pieces(plan: AnswerPlan, ask: Ask, lies: tuple[Lie, ...]) -> Iterator[tuple[Piece, int]]:
    """What the chunks carry, each with the number of tokens that are out once it is sent.

    A character of several tokens is held back until it is whole, as the engines do; so a chunk may carry several
    tokens.
    """
    big, thought = find(lies, BigChunks), find(lies, ReasoningFirst)
    thinking = thought.tokens if thought is not None and ask.chat else 0
    per_chunk = big.tokens if big is not None else 1
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    text, start = "", 0
    for index, token in enumerate(plan.tokens):
        text += decoder.decode(tokenizer().token_bytes(token))
        out = index + 1
        whole = not decoder.getstate()[0] and (out - start >= per_chunk or out == thinking)
        if not text or not (whole or out == len(plan.tokens)):
            continue
        choices = None
        if ask.top_logprobs is not None:
            choices = tuple(plan.speech.choices(i, max(ask.top_logprobs, 1)) for i in range(start, out))
        field = thought.field if thought is not None and out <= thinking else "content"
        yield Piece(text=text, field=field, choices=choices), out
        text, start = "", out


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """The counts that the answer reports, lies included."""

    prompt: int
    completion: int
    cached: int


def claimed_counts(ask: Ask, *, read: int, cached: int, produced: int, lies: tuple[Lie, ...]) -> Claimed:
    """What is said of a request that read `read` tokens, `cached` of them from the cache, and produced `produced`."""
    cut = find(lies, TruncateInput)
    prompt = len(ask.ids) if cut is not None and cut.usage == "sent" else read
    completion = produced
    wrong = find(lies, WrongUsage)
    if wrong is not None:
        prompt = max(round(prompt * wrong.prompt_scale) + wrong.prompt_offset, 0)
        completion = max(round(completion * wrong.completion_scale) + wrong.completion_offset, 0)
    false = find(lies, FalseCached)
    if false is not None:
        cached = int(prompt * false.fraction)
    if find(lies, HideCached) is not None:
        cached = 0
    return Claimed(prompt=prompt, completion=completion, cached=cached)


def usage_of(claimed: Claimed, ask: Ask, behaviour: Behaviour, lies: tuple[Lie, ...]) -> Json | None:
    """The usage object, or None where the server gives none."""
    if find(lies, NoUsage) is not None:
        return None
    thought = find(lies, ReasoningFirst)
    reasoning = min(thought.tokens, claimed.completion) if thought is not None and ask.chat else 0
    cached = claimed.cached if behaviour.reports_cached else None
    return usage_object(
        behaviour.dialect, prompt=claimed.prompt, completion=claimed.completion, cached=cached, reasoning=reasoning
    )
