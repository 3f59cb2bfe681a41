"""Who counts the tokens of a prompt: the server beforehand, or, where it cannot, its `usage` afterwards."""

from __future__ import annotations

from typing import Protocol

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
from longproof.probe.words import SHORTEST_WORDS, WORDS

_CALIBRATION_TIMEOUT_S = 120.0


class Tally(Protocol):
    """Counts texts and whole prompts."""

    @property
    def counts_unsent(self) -> bool:
        """Whether a prompt can be counted without being sent. Where not, a prompt that was counted is no longer
        cold.
        """
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


def usage_count(total_tokens: int, *, how: str) -> TokenCount:
    """A count whose parts nobody told apart: all of it stands as content."""
    return TokenCount(
        total=total_tokens, content=total_tokens, template=0, special=None, source=CountSource.USAGE, how=how
    )


def tally_for(engine: Engine, route: Route) -> Tally:
    """The best there is: the server's count, else usage."""
    return ServerTally(engine, route) if engine.capabilities.counts else UsageTally(engine, route)


def _as_prompt(text: str, route: Route) -> Prompt:
    if route is Route.CHAT:
        return ChatPrompt(messages=(ChatMessage(role="user", content=text),))
    return TextPrompt(text=text)
