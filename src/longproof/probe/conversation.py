"""Conversation: the first turn pays for everything; do later turns pay only for what is new?

    turn 1   NONCE filler …                                 first_tokens
    turn 2   NONCE filler … │ answer │ next question        only what is behind the first bar should be computed
    turn 3   NONCE filler … │ answer │ next question │ answer │ next question

Several conversations go on at once, turn by turn: all ask their first question together, then all their second, and so
on. What one of them had cached must survive the others. Answers are those the server gave, as a chat client sends them
back; on the completions route the answer's text stands in the prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from longproof.asking.context import ProbeContext
from longproof.asking.prompts import LengthUnproven
from longproof.asking.recovery import check_alive
from longproof.asking.window import Load, LoadRequest, run_window
from longproof.domain.measure import value_or_none
from longproof.domain.outcome import Outcome, classify, completed_as_asked
from longproof.domain.request import (
    ChatMessage,
    ChatPrompt,
    GenerationRequest,
    IdsPrompt,
    Prompt,
    TextPrompt,
    TokenCount,
)
from longproof.evidence.records import RequestBody, SessionBody, WindowBody
from longproof.evidence.windows import Window
from longproof.probe.speed import note_shared_prefix

PROBE = "conversation"
_NO_ANSWER = "I see."
_FINE = {Outcome.COMPLETED, Outcome.SHORT, Outcome.REFUSED_BUSY, Outcome.REFUSED_LENGTH, Outcome.REFUSED_OTHER}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationPlan:
    """`repeats` times, for each of `concurrencies`: that many conversations of `turns` turns. The first prompt has
    `first_tokens`, every later one about `delta_tokens` more than answer and prompt before it."""

    first_tokens: int
    delta_tokens: int
    turns: int
    concurrencies: tuple[int, ...]
    repeats: int

    def longest_tokens(self, output_tokens: int) -> int:
        """Prompt and answer of the last turn, about."""
        return self.first_tokens + output_tokens + (self.turns - 1) * (self.delta_tokens + output_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Talk:
    """A conversation so far. `index` is its place among those that go on at once."""

    index: int
    nonce: str
    prompt: Prompt
    count: TokenCount | None


def cost(plan: ConversationPlan, output_tokens: int) -> tuple[int, int]:
    """(requests, tokens), every turn at its full length: what a server without a cache has to compute."""
    lengths = [plan.first_tokens + turn * (plan.delta_tokens + output_tokens) for turn in range(plan.turns)]
    talks = plan.repeats * sum(plan.concurrencies)
    return talks * plan.turns, talks * sum(length + output_tokens for length in lengths)


async def run(ctx: ProbeContext, plan: ConversationPlan) -> None:
    """Holds all conversations. Raises BudgetSpent between two turns, and EngineGone."""
    await note_shared_prefix(ctx, PROBE)
    for repeat in range(plan.repeats):
        for concurrency in sorted(set(plan.concurrencies)):
            if _held(ctx, plan, concurrency, repeat):
                continue
            try:
                await _hold(ctx, plan, concurrency, repeat)
            except LengthUnproven as reason:
                key = f"{PROBE}/c{concurrency}/{repeat}/unproven"
                ctx.note(key, probe=PROBE, what="length_unproven", reason=str(reason), length=reason.wanted_tokens)


def _held(ctx: ProbeContext, plan: ConversationPlan, concurrency: int, repeat: int) -> bool:
    """Whether an earlier session held these conversations to their last turn. One torn by a crash begins anew: the
    engine's cache may be gone."""
    return any(
        isinstance(ctx.journal.get(_key(concurrency, repeat, attempt, plan.turns)), WindowBody)
        for attempt in range(1, _sessions(ctx) + 1)
    )


async def _hold(ctx: ProbeContext, plan: ConversationPlan, concurrency: int, repeat: int) -> None:
    attempt = _sessions(ctx)
    begun = f"{PROBE}/c{concurrency}/{repeat}/{attempt}"
    talks = [await _begin(ctx, plan, f"{begun}/{index}", index) for index in range(concurrency)]
    for turn in range(1, plan.turns + 1):
        key = _key(concurrency, repeat, attempt, turn)
        done = await run_window(
            ctx,
            key,
            probe=PROBE,
            cell={"concurrency": concurrency, "repeat": repeat, "attempt": attempt, "turn": turn},
            load=_all_at_once(ctx, talks),
            expected_tokens=sum(_length(talk, plan) + ctx.protocol.output_tokens for talk in talks),
            expected_ns=0,
        )
        await _check(ctx, key, done)
        if turn < plan.turns:
            talks = await _next_turn(ctx, plan, done, talks, key)


async def _begin(ctx: ProbeContext, plan: ConversationPlan, key: str, index: int) -> _Talk:
    nonce = ctx.prompts.nonce(key)
    built = await ctx.prompts.exact(plan.first_tokens, nonce=nonce)
    return _Talk(index=index, nonce=nonce, prompt=built.prompt, count=built.count)


def _all_at_once(ctx: ProbeContext, talks: Sequence[_Talk]) -> Load:
    return Load(
        for_ns=0,
        scheduled=tuple(
            LoadRequest(
                name=str(talk.index),
                cell={"conversation": talk.index},
                request=GenerationRequest(
                    prompt=talk.prompt,
                    max_tokens=ctx.protocol.output_tokens,
                    prompt_tokens=None if talk.count is None else talk.count.total,
                    count_source=None if talk.count is None else talk.count.source,
                    seed=ctx.protocol.seed,
                    timeout_s=ctx.protocol.request_timeout_s,
                ),
                nonce=talk.nonce,
                at_ns=0,
            )
            for talk in talks
        ),
        describe={"conversations": len(talks)},
    )


async def _next_turn(
    ctx: ProbeContext, plan: ConversationPlan, done: Window, talks: Sequence[_Talk], key: str
) -> list[_Talk]:
    """The conversations whose turn was answered, with the answer and the next question behind it."""
    answers = {int(body.cell["conversation"]): body for _, body in done.requests}
    longer: list[_Talk] = []
    for talk in talks:
        body = answers.get(talk.index)
        if body is None or not completed_as_asked(body.timeline):
            continue
        nonce = ctx.prompts.nonce(f"{key}/{talk.index}/question")
        question = await ctx.prompts.exact(plan.delta_tokens, nonce=nonce)
        prompt = await _extended(ctx, talk.prompt, body, question.prompt)
        count = await _count(ctx, prompt)
        if _has_room(ctx, count):
            longer.append(_Talk(index=talk.index, nonce=talk.nonce, prompt=prompt, count=count))
    return longer


async def _extended(ctx: ProbeContext, prompt: Prompt, body: RequestBody, question: Prompt) -> Prompt:
    answer = body.timeline.text or _NO_ANSWER
    if isinstance(prompt, ChatPrompt) and isinstance(question, ChatPrompt):
        asked = "\n\n".join(message.content for message in question.messages)
        added = (ChatMessage(role="assistant", content=answer), ChatMessage(role="user", content=asked))
        return ChatPrompt(messages=(*prompt.messages, *added))
    if isinstance(prompt, IdsPrompt) and isinstance(question, IdsPrompt):
        answered = await ctx.engine.tokenize(answer)
        return IdsPrompt(ids=(*prompt.ids, *answered, *question.ids))
    if isinstance(prompt, TextPrompt) and isinstance(question, TextPrompt):
        return TextPrompt(text=f"{prompt.text}{answer}\n\n{question.text}")
    raise TypeError(f"{type(prompt).__name__} cannot go on with {type(question).__name__}")


async def _count(ctx: ProbeContext, prompt: Prompt) -> TokenCount | None:
    able = ctx.engine.capabilities
    if isinstance(prompt, IdsPrompt) or able.counts or able.local_tokenizer:
        return await ctx.engine.count(prompt)
    return None


def _has_room(ctx: ProbeContext, count: TokenCount | None) -> bool:
    slot = value_or_none(ctx.deployment.slot_limit_tokens)
    limit = slot if slot is not None else value_or_none(ctx.deployment.configured_limit_tokens)
    return count is None or limit is None or count.total + ctx.protocol.output_tokens <= limit


async def _check(ctx: ProbeContext, key: str, done: Window) -> None:
    broken = [body.timeline for _, body in done.requests if classify(body.timeline) not in _FINE]
    if broken:
        await check_alive(ctx, key, probe=PROBE, after=broken[-1])


def _length(talk: _Talk, plan: ConversationPlan) -> int:
    return plan.first_tokens if talk.count is None else talk.count.total


def _sessions(ctx: ProbeContext) -> int:
    return sum(isinstance(record.body, SessionBody) for record in ctx.journal.records)


def _key(concurrency: int, repeat: int, attempt: int, turn: int) -> str:
    return f"{PROBE}/c{concurrency}/{repeat}/{attempt}/turn{turn}"
