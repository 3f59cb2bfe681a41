"""Who counts the tokens of a prompt: the server beforehand, else a tokenizer of ours, else `usage` afterwards."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from longproof.asking.words import SHORTEST_WORDS, WORDS
from longproof.domain.events import EndedBy
from longproof.domain.request import (
    ChatMessage,
    ChatPrompt,
    CountSource,
    GenerationRequest,
    Prompt,
    Route,
    TextPrompt,
    TokenCount,
)
from longproof.engines.base import Engine
from longproof.errors import EngineMisbehaved, EngineProtocolError, EngineUnreachable, UsageError

_CALIBRATION_TIMEOUT_S = 120.0
_SMALL = "Hello there"


class Tally(Protocol):
    """Counts texts and whole prompts."""

    @property
    def counts_unsent(self) -> bool:
        """Whether a prompt can be counted without being sent. Where not, one that was counted is no longer cold."""
        ...

    @property
    def words(self) -> int:
        """How many words it is reasonable to ask about."""
        ...

    async def text(self, text: str) -> int:
        """Tokens of a text, up to a constant. Raises EngineMisbehaved."""
        ...

    async def prompt(self, prompt: Prompt) -> TokenCount:
        """Tokens of a whole prompt. Raises EngineMisbehaved."""
        ...


class ServerTally:
    """The server's own tokenizer and template, asked beforehand."""

    counts_unsent = True
    words = len(WORDS)

    def __init__(self, engine: Engine, route: Route) -> None:
        self._engine = engine
        self._route = route
        self._tokenizes = True

    async def text(self, text: str) -> int:
        if self._tokenizes:
            try:
                return len(await self._engine.tokenize(text))
            except (EngineProtocolError, UsageError):
                self._tokenizes = (
                    False  # it counts prompts, but gives no ids: whole prompts then, the template being constant
                )
        return (await self.prompt(_as_prompt(text, self._route))).total

    async def prompt(self, prompt: Prompt) -> TokenCount:
        return await self._engine.count(prompt)


class UsageTally:
    """Small requests for one token each, whose `usage` tells what their prompts cost. Never used on a prompt to be
    measured.
    """

    counts_unsent = False
    words = SHORTEST_WORDS

    def __init__(self, engine: Engine, route: Route) -> None:
        self._engine = engine
        self._route = route

    async def text(self, text: str) -> int:
        return (await self.prompt(_as_prompt(text, self._route))).total

    async def prompt(self, prompt: Prompt) -> TokenCount:
        request = GenerationRequest(prompt=prompt, max_tokens=1, timeout_s=_CALIBRATION_TIMEOUT_S)
        timeline = await self._engine.send(request)
        if timeline.ended_by is EndedBy.UNREACHABLE:
            raise EngineUnreachable(timeline.transport_error or "no answer", url=self._engine.url)
        if timeline.error is not None:
            raise EngineMisbehaved(timeline.error.message, url=self._engine.url)
        if timeline.usage is None or timeline.usage.prompt_tokens is None:
            raise EngineMisbehaved("it neither counts tokens nor reports usage", url=self._engine.url)
        return usage_count(timeline.usage.prompt_tokens, how="usage of a request for one token")


class LocalTally:
    """A tokenizer on our side, which may not be the server's. What the template adds is learned from the `usage` of one
    small request per shape of message list; where there is none, it is not counted, and the count says so.
    """

    counts_unsent = True
    words = len(WORDS)

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._usage = UsageTally(engine, Route.CHAT)
        self._added: dict[tuple[str, ...], int | None] = {}

    async def text(self, text: str) -> int:
        return len(await self._engine.tokenize(text))

    async def prompt(self, prompt: Prompt) -> TokenCount:
        count = await self._engine.count(prompt)
        shape = tuple(message.role for message in prompt.messages) if isinstance(prompt, ChatPrompt) else ()
        if shape not in self._added:
            self._added[shape] = await self._learn(shape)
        added = self._added[shape]
        if added is None:
            return count
        how = f"{count.how.partition(':')[0]} for the contents, usage of a small request for what the template adds"
        return replace(count, total=count.content + added, template=added, how=how)

    async def _learn(self, shape: tuple[str, ...]) -> int | None:
        small: Prompt = TextPrompt(text=_SMALL)
        if shape:
            small = ChatPrompt(messages=tuple(ChatMessage(role=role, content=_SMALL) for role in shape))
        contents = (await self._engine.count(small)).content
        try:
            return max(0, (await self._usage.prompt(small)).total - contents)
        except EngineUnreachable:
            raise
        except EngineMisbehaved:
            return None


def usage_count(total_tokens: int, *, how: str) -> TokenCount:
    """A count whose parts nobody told apart: all of it stands as content."""
    return TokenCount(
        total=total_tokens, content=total_tokens, template=0, special=None, source=CountSource.USAGE, how=how
    )


def tally_for(engine: Engine, route: Route) -> Tally:
    """The best there is: the server's count, else a tokenizer of our own, else usage."""
    if engine.capabilities.counts:
        return ServerTally(engine, route)
    return LocalTally(engine) if engine.capabilities.local_tokenizer else UsageTally(engine, route)


def _as_prompt(text: str, route: Route) -> Prompt:
    if route is Route.CHAT:
        return ChatPrompt(messages=(ChatMessage(role="user", content=text),))
    return TextPrompt(text=text)
