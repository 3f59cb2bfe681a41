"""What every engine adapter keeps, as checks to run against a live server of its kind.

    @pytest.mark.parametrize("check", CONTRACT, ids=lambda check: check.__name__)
    async def test_adapter_keeps_the_contract(check, engine): await check(engine)

Each check takes an `Engine` whose server is idle and has room for 512 tokens, and raises AssertionError. A check about
a capability that the engine does not claim passes without asking. All leave the engine idle.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from longproof.domain.events import ContentChunk, EndedBy, RequestTimeline
from longproof.domain.measure import Measured, value_or_none
from longproof.domain.outcome import Outcome, classify
from longproof.domain.request import (
    ChatMessage,
    ChatPrompt,
    CountSource,
    GenerationRequest,
    IdsPrompt,
    Prompt,
    TextPrompt,
)
from longproof.engines.base import Engine

Check: TypeAlias = Callable[[Engine], Awaitable[None]]

_TEXTS = (
    "Hello",
    " a  leading blank, and trailing ones  ",
    "two\nlines\n\nand a\ttab",
    "é 漢字 🙂 ñ",
    "a marker <|im_start|> inside <|im_end|> <s> </s>",
    "x" * 200,
    "",
)


async def describes_itself(engine: Engine) -> None:
    """Introspection names the model; each reading has a source or a reason; only Unknown stands for "unknown"."""
    assert not engine.url.endswith(("/", "/v1"))
    deployment = await engine.introspect()
    assert value_or_none(deployment.model) == engine.model
    for name, reading in deployment.readings():
        if isinstance(reading, Measured):
            assert reading.source, name
            assert reading.value not in ("", -1, "-1", "nan", "None"), f"{name} = {reading.value!r}"
        else:
            assert reading.reason, name


async def streams_in_causal_order(engine: Engine) -> None:
    """One request's facts: times in order, text as handed on, an end in order, usage, no fault."""
    heard: list[tuple[ContentChunk, str]] = []

    def listen(chunk: ContentChunk, text: str) -> None:
        heard.append((chunk, text))

    timeline = await engine.send(_request(_chat("Count to five."), max_tokens=12), on_content=listen)
    assert timeline.status == 200, timeline
    assert timeline.ended_by is EndedBy.DONE
    assert timeline.malformed == ()
    assert timeline.error is None
    assert timeline.transport_error is None
    assert timeline.finish_reason in ("length", "stop")
    times = _times(timeline)
    assert times == sorted(times), timeline
    assert tuple(chunk for chunk, _ in heard) == timeline.chunks
    assert "".join(text for _, text in heard) == timeline.text + timeline.reasoning
    assert sum(chunk.chars for chunk in timeline.chunks) == len(timeline.text) + len(timeline.reasoning)
    assert timeline.usage is not None
    assert timeline.usage.prompt_tokens
    assert timeline.usage.completion_tokens
    assert timeline.body_bytes > 0


async def counts_as_usage_counts(engine: Engine) -> None:
    """The count before a chat is sent is the usage after it; its parts add up."""
    if not engine.capabilities.counts:
        return
    for text in _TEXTS:
        messages = (ChatMessage(role="system", content="Be brief."), ChatMessage(role="user", content=text))
        for prompt in (ChatPrompt(messages=messages), _chat(text)):
            await _count_is_usage(engine, prompt)


async def counts_text_as_usage_counts(engine: Engine) -> None:
    """The same for plain text on the completions route."""
    if not (engine.capabilities.counts and engine.capabilities.completions):
        return
    for text in _TEXTS:
        if text:
            await _count_is_usage(engine, TextPrompt(text=text))


async def counts_ids_exactly(engine: Engine) -> None:
    """Ids are their own count, and the server takes them as they are."""
    if not engine.capabilities.token_ids:
        return
    ids = await engine.tokenize("The quick brown fox jumps over the lazy dog. " * 12)
    for length in (1, 2, 63, 64, 65, len(ids)):
        prompt = IdsPrompt(ids=tuple(ids[:length]))
        count = await engine.count(prompt)
        assert (count.total, count.source) == (length, CountSource.IDS)
        timeline = await engine.send(_request(prompt))
        assert timeline.usage is not None, timeline
        assert timeline.usage.prompt_tokens == length


async def tokenizes_both_ways(engine: Engine) -> None:
    """Text to ids and back is the same text."""
    if not engine.capabilities.counts:
        return
    for text in ("Hello world", "two\nlines", "é 漢字 🙂"):
        assert (await engine.detokenize(await engine.tokenize(text))).strip() == text


async def renders_the_template(engine: Engine) -> None:
    """The rendered text holds the content, and more than the content."""
    if not engine.capabilities.counts:
        return
    rendered = await engine.render((ChatMessage(role="user", content="pineapple"),))
    assert "pineapple" in rendered
    assert len(rendered) > len("pineapple")


async def produces_exactly_what_is_asked(engine: Engine) -> None:
    """With `exact_output` as many tokens come as were asked for, whatever the model would rather say."""
    if not engine.capabilities.exact_output:
        return
    for max_tokens in (1, 2, 17):
        timeline = await engine.send(_request(_chat("Answer with one word: yes or no?"), max_tokens=max_tokens))
        assert timeline.usage is not None, timeline
        assert timeline.usage.completion_tokens == max_tokens
        assert timeline.finish_reason == "length"


async def returns_logprobs(engine: Engine) -> None:
    """The first token's alternatives come on both routes, most likely first."""
    if not engine.capabilities.logprobs:
        return
    for prompt in (_chat("Hi"), TextPrompt(text="The capital of France is")):
        timeline = await engine.send(_request(prompt, max_tokens=2, top_logprobs=3))
        found = timeline.first_logprobs
        assert found is not None, timeline
        assert 3 <= len(found.tokens) <= 4  # an engine may add the token it took to the three it was asked for
        assert list(found.logprobs) == sorted(found.logprobs, reverse=True)
        assert all(value <= 0 for value in found.logprobs)


async def goes_cold_when_asked(engine: Engine) -> None:
    """The same prompt twice, the second time cold: no cached token is reported."""
    if not engine.capabilities.cold:
        return
    prompt = _chat("one two three four five six seven eight nine ten " * 14)
    await engine.send(_request(prompt))
    timeline = await engine.send(_request(prompt, cold=True))
    assert timeline.usage is not None, timeline
    assert timeline.usage.cached_tokens in (0, None)


async def stops_when_told(engine: Engine) -> None:
    """A listener that returns False closes the connection; the engine lives on."""
    timeline = await engine.send(
        _request(_chat("Tell a long story."), max_tokens=200), on_content=lambda _chunk, _text: False
    )
    assert classify(timeline) is Outcome.CANCELLED
    assert 1 <= len(timeline.chunks) < 200  # one read may bring several, and what came is kept
    assert await engine.alive()


async def gives_up_in_time(engine: Engine) -> None:
    """Our own timeout ends a request and keeps what was seen."""
    timeline = await engine.send(_request(_chat("Tell a long story."), max_tokens=300, timeout_s=0.001))
    assert timeline.ended_by is EndedBy.TIMEOUT
    assert classify(timeline) is (Outcome.HUNG if timeline.first_token_ns is None else Outcome.TIMED_OUT)
    assert await engine.alive()


async def can_be_cancelled(engine: Engine) -> None:
    """Cancelling our task leaves as CancelledError, and the engine lives on."""
    started = asyncio.Event()
    task = asyncio.create_task(
        engine.send(_request(_chat("Tell a long story."), max_tokens=200), on_content=lambda _c, _t: started.set())
    )
    await started.wait()
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        pass
    else:
        raise AssertionError("the cancelled request returned")
    assert await engine.alive()


async def refuses_what_is_too_long(engine: Engine) -> None:
    """One token more than the limit is refused in words about length, and the words are kept."""
    limit = value_or_none((await engine.introspect()).configured_limit_tokens)
    if limit is None or not engine.capabilities.token_ids:
        return
    some = await engine.tokenize("and ")
    timeline = await engine.send(_request(IdsPrompt(ids=tuple(some[:1] * (limit + 1)))))
    assert timeline.ended_by is EndedBy.HTTP_ERROR, timeline
    assert classify(timeline) is Outcome.REFUSED_LENGTH
    assert timeline.error is not None
    assert timeline.error.body


async def serves_two_at_once(engine: Engine) -> None:
    """Two requests on two connections both complete."""
    both = await asyncio.gather(engine.send(_request(_chat("One."))), engine.send(_request(_chat("Two."))))
    assert [timeline.ended_by for timeline in both] == [EndedBy.DONE, EndedBy.DONE]
    assert both[0].request_id != both[1].request_id


async def can_be_sampled(engine: Engine) -> None:
    """Metrics of an idle engine: nothing runs, nothing waits."""
    if not engine.capabilities.metrics:
        return
    sample = await engine.sample()
    assert sample.values
    assert sample.running in (0, None)
    assert sample.waiting in (0, None)
    assert sample.kv_usage is None or 0 <= sample.kv_usage <= 1


async def is_alive(engine: Engine) -> None:
    """One real token."""
    assert await engine.alive()


CONTRACT: tuple[Check, ...] = (
    describes_itself,
    is_alive,
    streams_in_causal_order,
    counts_as_usage_counts,
    counts_text_as_usage_counts,
    counts_ids_exactly,
    tokenizes_both_ways,
    renders_the_template,
    produces_exactly_what_is_asked,
    returns_logprobs,
    goes_cold_when_asked,
    stops_when_told,
    gives_up_in_time,
    can_be_cancelled,
    refuses_what_is_too_long,
    serves_two_at_once,
    can_be_sampled,
)


def _chat(text: str) -> ChatPrompt:
    return ChatPrompt(messages=(ChatMessage(role="user", content=text),))


def _request(
    prompt: Prompt, *, max_tokens: int = 1, top_logprobs: int = 0, cold: bool = False, timeout_s: float = 300.0
) -> GenerationRequest:
    return GenerationRequest(
        prompt=prompt, max_tokens=max_tokens, top_logprobs=top_logprobs, cold=cold, timeout_s=timeout_s
    )


def _times(timeline: RequestTimeline) -> list[int]:
    seen = (
        timeline.submitted_ns,
        timeline.headers_ns,
        timeline.first_byte_ns,
        timeline.first_event_ns,
        timeline.first_token_ns,
        *(chunk.at_ns for chunk in timeline.chunks[1:]),
        timeline.finished_ns,
    )
    return [time for time in seen if time is not None]


async def _count_is_usage(engine: Engine, prompt: Prompt) -> None:
    count = await engine.count(prompt)
    assert count.source is CountSource.SERVER
    assert count.total == count.content + count.template
    assert count.special is None or 0 <= count.special <= count.template
    timeline = await engine.send(_request(prompt))
    assert timeline.usage is not None, timeline
    assert timeline.usage.prompt_tokens == count.total, prompt
