"""How long a prompt is, for every model of a fleet.

    bound   at once, on the event loop       from the body's bytes (`count_bound`); ids are simply counted
    count   in a worker thread               our tokenizer, where its count of this shape of prompt is trusted
                │ not trusted, not there     the engine's own count (`engine_count`)
                └─ nobody counts             the bound, with names for blocks of text instead of tokens

Every count of ours can be held against the engine's usage (`told`): one disagreement, and the engine counts that shape
from then on, until our counts, compared on a sample of its own, agree again.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Protocol, cast

from longproof.domain.request import Route
from longproof.errors import EngineMisbehaved
from longproof.gateway.ask import Ask, Json
from longproof.gateway.chat_template import Uncountable
from longproof.gateway.count_bound import Around, bound_tokens
from longproof.gateway.count_shape import CountedHere, Shape, Trust, shape_of
from longproof.gateway.local_count import LocalCount
from longproof.gateway.long_text import Unstretchable
from longproof.gateway.ports import Counted
from longproof.policy.hashing import BYTES_PER_TOKEN, block_names, chain, root

_IDS_AT_ONCE = 4_096
SHORT_BYTES = 64 << 10
"""A body up to this is counted in 30 ms and does not wait behind longer ones."""
_COMPARE_EVERY = 16
_NAMES_AT_ONCE = 2_048
Alarm = Callable[[str], None]


class Counter(Protocol):
    """Who counts on the engines' side: one (`engine_count`) or several (`engine_counts`)."""

    @property
    def can_count(self) -> bool: ...
    async def ids(self, route: Route, fields: Json) -> list[array[int]]: ...


@dataclass(slots=True, kw_only=True)
class ModelCounting:
    """Counts the prompts of one model. `local`, `engine`: either may be missing. `block_tokens`: of the block index.
    `events`: engines tell what they cache, so blocks must be named by their tokens; else an engine is not asked only
    for names, since each time it pays its tokenizer for the whole prompt.

    The numbers say what happened: `here` counts by our tokenizer, `by_engine`, `by_bound`.
    """

    model: str
    block_tokens: int
    local: LocalCount | None = None
    engine: Counter | None = None
    events: bool = True
    alarm: Alarm = field(default=lambda _: None)
    trust: dict[Shape, Trust] = field(default_factory=lambda: {shape: Trust() for shape in Shape})
    here: int = 0
    by_engine: int = 0
    by_bound: int = 0

    def bound(self, ask: Ask) -> Counted:
        """At once."""
        ids = _ids(ask)
        if ids is not None and len(ids) <= _IDS_AT_ONCE:
            blocks = self._blocks(ids, ask.salt)
            return Counted(input_tokens=len(ids), exact=blocks is not None, blocks=blocks or ())
        local = self.local
        around = (
            Around()
            if local is None
            else Around(expansion=local.expansion(ask.body), template_tokens=local.template_tokens)
        )
        return Counted(input_tokens=bound_tokens(ask, around), exact=False)

    @property
    def doubt(self) -> str:
        """Why the tokenizer that we have is not used for plain prompts; "" where it is, or there is none."""
        if self.local is None:
            return ""
        shapes = (Shape.TEXT, Shape.CHAT) if self.local.has_template else (Shape.TEXT,)
        reason = next((self.trust[shape].reason for shape in shapes if not self.trust[shape].trusted), "")
        return f"{self.local.name} is not the engine's tokenizer: {reason}; the engine counts" if reason else ""

    async def count(self, ask: Ask, pool: ThreadPoolExecutor, *, exact: bool = True) -> Counted:
        """Exactly, as far as somebody can; with `exact` False the names of its blocks will do."""
        loop = asyncio.get_running_loop()
        ids = _ids(ask)
        if ids is not None:
            blocks = await loop.run_in_executor(pool, self._blocks, ids, ask.salt)
            return Counted(input_tokens=len(ids), exact=blocks is not None, blocks=blocks or ())
        fields = dict(ask.fields)  # the prompt stays ours when the ask forgets it
        if not ask.countable:
            return await self._by_bound(ask, fields, pool)
        shape = await loop.run_in_executor(pool, shape_of, ask.route, fields)
        if self.local is not None and self.trust[shape].trusted:
            try:
                parts = await loop.run_in_executor(pool, self.local.ids, ask.route, fields)
                self.here += 1
                # how an engine makes a chat of a response's input is its own: its usage is no judge of our tokenizer
                judged = None if ask.responses else shape
                return await loop.run_in_executor(pool, self._counted, parts, ask.salt, judged)
            except Unstretchable:
                return self._only_bounded(ask)  # the engine's tokenizer is no better at it
            except Uncountable:
                pass
        return await self._without_us(ask, fields, pool, exact)

    async def _without_us(self, ask: Ask, fields: Json, pool: ThreadPoolExecutor, exact: bool) -> Counted:
        loop = asyncio.get_running_loop()
        wanted = exact or self.events
        if wanted and self.engine is not None and self.engine.can_count:
            try:
                parts = await self.engine.ids(ask.route, fields)
            except (EngineMisbehaved, Uncountable):
                pass  # it will say itself what is wrong with this request
            else:
                self.by_engine += 1
                if self.local is not None and self.by_engine % _COMPARE_EVERY == 1:
                    await self._compare(self.local, parts, ask.route, fields, pool)
                counted = await loop.run_in_executor(pool, self._counted, parts, ask.salt, None)
                if self.events:
                    return counted
                # without events names only have to agree with each other, and most prompts are not sent to be counted
                blocks = await loop.run_in_executor(pool, text_blocks, ask.route, fields, self.block_tokens, ask.salt)
                return replace(counted, blocks=blocks)
        return await self._by_bound(ask, fields, pool)

    async def _by_bound(self, ask: Ask, fields: Json, pool: ThreadPoolExecutor) -> Counted:
        """Its bound, with names for its text: which prompts begin alike."""
        bound, loop = self._only_bounded(ask), asyncio.get_running_loop()
        blocks = await loop.run_in_executor(pool, text_blocks, ask.route, fields, self.block_tokens, ask.salt)
        return Counted(input_tokens=bound.input_tokens, exact=False, blocks=blocks)

    def _only_bounded(self, ask: Ask) -> Counted:
        self.by_bound += 1
        return self.bound(ask)

    async def _compare(
        self, local: LocalCount, theirs: list[array[int]], route: Route, fields: Json, pool: ThreadPoolExecutor
    ) -> None:
        try:
            ours = await asyncio.get_running_loop().run_in_executor(pool, local.ids, route, fields)
        except Uncountable:
            return
        self.trust[shape_of(route, fields)].compare(sum(map(len, ours)), sum(map(len, theirs)))

    def told(self, counted: Counted, prompt_tokens: int | None) -> None:
        """The engine's usage for a prompt that was counted."""
        if prompt_tokens is None or not isinstance(counted, CountedHere):
            return
        if self.trust[counted.shape].compare(counted.input_tokens, prompt_tokens):
            self.alarm(
                f"{self.model}: our tokenizer is not the engine's for prompts of the kind '{counted.shape.value}':"
                f" {self.trust[counted.shape].reason}; the engine counts them from now on"
            )

    def _counted(self, parts: list[array[int]], salt: str, shape: Shape | None) -> Counted:
        total = sum(map(len, parts))
        # several prompts are several requests to the engine; only one prompt has one prefix
        blocks: tuple[int, ...] = ()
        if len(parts) == 1:
            blocks = _names(parts[0], self.block_tokens, root(salt))
        if shape is None:
            return Counted(input_tokens=total, exact=True, blocks=blocks)
        return CountedHere(input_tokens=total, exact=True, blocks=blocks, shape=shape)

    def _blocks(self, ids: list[int], salt: str) -> tuple[int, ...] | None:
        """None: they are no token ids, whatever they are."""
        try:
            return block_names(ids, block_tokens=self.block_tokens, salt=salt)
        except (TypeError, OverflowError):
            return None


class FleetCounting:
    """`ports.Counting` for all models. Takes `workers` threads for short prompts and as many for long ones: a million
    tokens are two seconds of a thread, and nobody with a few thousand should stand behind them. `close` ends them."""

    def __init__(self, models: Mapping[str, ModelCounting], *, workers: int = 2) -> None:
        self.models = dict(models)
        self._short = ThreadPoolExecutor(max_workers=workers, thread_name_prefix="count-short")
        self._long = ThreadPoolExecutor(max_workers=workers, thread_name_prefix="count-long")
        self._unknown = ModelCounting(model="", block_tokens=16)

    def bound(self, ask: Ask) -> Counted:
        """An upper bound, or the exact length where that costs microseconds."""
        return self.models.get(ask.model, self._unknown).bound(ask)

    async def count(self, ask: Ask, *, exact: bool = True) -> Counted:
        """The exact length, off the event loop; the bound where nobody can count. `exact` False: names will do."""
        pool = self._short if len(ask.body) <= SHORT_BYTES else self._long
        return await self.models.get(ask.model, self._unknown).count(ask, pool, exact=exact)

    def told(self, model: str, counted: Counted, prompt_tokens: int | None) -> None:
        """The engine's usage for a prompt that was counted: confirms our tokenizer, or ends the trust in it."""
        if model in self.models:
            self.models[model].told(counted, prompt_tokens)

    def close(self) -> None:
        """Ends the threads; waiting counts are dropped."""
        for pool in (self._short, self._long):
            pool.shutdown(wait=False, cancel_futures=True)


def _names(ids: array[int], block_tokens: int, parent: int) -> tuple[int, ...]:
    """The names of a prompt's whole blocks. Between parts the interpreter is offered to the event loop, which would
    wait 5 ms for it each time it wakes; a million tokens are 16 ms of this."""
    packed, names = ids.tobytes(), list[int]()
    step = _NAMES_AT_ONCE * block_tokens * BYTES_PER_TOKEN
    for start in range(0, len(packed), step):
        names += chain(packed[start : start + step], block_tokens=block_tokens, parent=names[-1] if names else parent)
        time.sleep(0)
    return tuple(names)


def text_blocks(route: Route, fields: Json, block_tokens: int, salt: str) -> tuple[int, ...]:
    """Names for blocks of text, four bytes taken for a token: where nobody can count they still say which prompts begin
    alike, among prompts that were named the same way. An engine's events never speak of them."""
    parts: list[str] = []
    if route is Route.CHAT:
        for message in cast("list[Json]", fields.get("messages") or []):
            parts += ["\x00", str(message.get("role")), "\x01"]
            content = message.get("content")
            parts.append(content if isinstance(content, str) else repr(content))
    else:
        prompt = fields.get("prompt")
        parts.append(prompt if isinstance(prompt, str) else repr(prompt))
    packed = "".join(parts).encode("utf-8", "surrogatepass")
    return chain(packed, block_tokens=block_tokens, parent=root(f"text\x00{salt}"))


def _ids(ask: Ask) -> list[int] | None:
    """A prompt that is one list of token ids."""
    if ask.route is Route.CHAT:
        return None
    prompt = ask.fields.get("prompt")
    if not isinstance(prompt, list) or not prompt:
        return None
    items = cast("list[object]", prompt)
    if isinstance(items[0], list) and len(items) == 1:
        items = cast("list[object]", items[0])
    return cast("list[int]", items) if items and isinstance(items[0], int) else None
