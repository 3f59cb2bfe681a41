"""Where the nonce goes: as early in the server's token sequence as the route and the template allow.

A template that puts a default system message in front of every chat puts it in front of the nonce too, and that
shared beginning can be cached. Our own system message replaces it, so there the nonce goes into one:

    user message      <system> default text … <user> NONCE rest
    system message    <system> NONCE <user> rest
"""

from __future__ import annotations

from enum import StrEnum

from longproof.asking.tally import Tally
from longproof.domain.request import ChatMessage, ChatPrompt, Prompt, Route, TextPrompt
from longproof.engines.base import Engine
from longproof.errors import EngineDied, EngineMisbehaved, EngineUnreachable, UsageError

_MARK = "amber willow lantern"
_REST = "harbor"


class Frame(StrEnum):
    """How a nonce and the rest of a prompt become one prompt."""

    TEXT = "text"
    USER = "user message"
    SYSTEM = "system message"

    def prompt(self, front: str, rest: str) -> Prompt:
        """`front` begins with the nonce; `rest` may be empty."""
        together = f"{front}\n\n{rest}" if rest else front
        if self is Frame.TEXT:
            return TextPrompt(text=together)
        if self is Frame.USER:
            return ChatPrompt(messages=(ChatMessage(role="user", content=together),))
        return ChatPrompt(messages=(ChatMessage(role="system", content=front), ChatMessage(role="user", content=rest)))


async def choose_frame(engine: Engine, route: Route, tally: Tally) -> Frame:
    """The frame with the shortest shared beginning; a user message where it makes no difference or cannot be seen.

    Looks at the rendered template. Where the server does not render, it compares costs: a system message that makes
    the whole prompt cheaper has replaced a default one.
    """
    if route is Route.COMPLETIONS:
        return Frame.TEXT
    places = {frame: await _place(engine, frame) for frame in (Frame.USER, Frame.SYSTEM)}
    user, system = places[Frame.USER], places[Frame.SYSTEM]
    if user is not None:
        return Frame.SYSTEM if system is not None and system < user else Frame.USER
    costs = {frame: await _cost(tally, frame) for frame in (Frame.USER, Frame.SYSTEM)}
    user, system = costs[Frame.USER], costs[Frame.SYSTEM]
    return Frame.SYSTEM if user is not None and system is not None and system < user else Frame.USER


async def _place(engine: Engine, frame: Frame) -> int | None:
    prompt = frame.prompt(_MARK, _REST)
    assert isinstance(prompt, ChatPrompt)
    try:
        rendered = await engine.render(prompt.messages)
    except (EngineUnreachable, EngineDied):
        raise
    except (EngineMisbehaved, UsageError):
        return None  # no such endpoint, or a template that refuses system messages
    place = rendered.find(_MARK)
    return place if place >= 0 else None


async def _cost(tally: Tally, frame: Frame) -> int | None:
    try:
        return (await tally.prompt(frame.prompt(_MARK, _REST))).total
    except (EngineUnreachable, EngineDied):
        raise
    except EngineMisbehaved:
        return None
