"""How long a prompt is, for every model of a fleet.

                         bound, at once                              count, in worker threads
    our tokenizer,       an upper bound from the body's bytes        exactly; blocks are named by their tokens
    trusted for the      (`count_bound`); ids are simply counted
    prompt's shape
    else                 an estimate from the text's bytes           the names of long ones; and where only the exact
                         (`token_rate`), once it is learned;         length will do (`exact`), the engine's own count
                         blocks of short prompts are named by        (`engine_count`)
                         their text (`prompt_text`)

Every count and estimate of ours is held against the engine's usage (`told`). One disagreement with a count, and that
shape is estimated from then on, until our counts, compared with the engine's on a sample, agree again.
"""

from __future__ import annotations

import asyncio
import math
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
from longproof.gateway.count_shape import CountedHere, Estimated, Shape, Trust, shape_of
from longproof.gateway.local_count import LocalCount
from longproof.gateway.long_text import Unstretchable
from longproof.gateway.ports import Counted
from longproof.gateway.prompt_text import TextSize, text_names, text_size
from longproof.gateway.token_rate import TokenRate
from longproof.gateway.turns import Turns
from longproof.policy.hashing import BYTES_PER_TOKEN, block_names, chain, root

_IDS_AT_ONCE = 4_096
SHORT_BYTES = 64 << 10
"""A body up to this is counted in 30 ms and does not wait behind longer ones; its text is named in 0.2 ms."""
_DECIDED_TOGETHER = 2
"""Of long prompts, so many are decided per turn of the loop."""
_COMPARE_EVERY = 16
_NAMES_AT_ONCE = 2_048
_TEXT_BLOCK_TOKENS = 128
_USUAL_BYTES_PER_TOKEN = 4.5
"""Of English, with a vocabulary of today."""
Alarm = Callable[[str], None]


class Counter(Protocol):
    """Who counts on the engines' side: one (`engine_count`) or several (`engine_counts`)."""

    @property
    def can_count(self) -> bool: ...
    async def ids(self, route: Route, fields: Json) -> list[array[int]]: ...


@dataclass(slots=True, kw_only=True)
class ModelCounting:
    """Counts the prompts of one model. `local`, `engine`: either may be missing. `block_tokens`: of the block index.
    `block_bytes`: of a block that is named by its text; see `size_blocks`.

    The numbers say what happened: `here` counts by our tokenizer, `by_engine`, `by_bound`, `estimated`.
    """

    model: str
    block_tokens: int
    local: LocalCount | None = None
    engine: Counter | None = None
    alarm: Alarm = field(default=lambda _: None)
    trust: dict[Shape, Trust] = field(default_factory=lambda: {shape: Trust() for shape in Shape})
    rate: TokenRate = field(default_factory=TokenRate)
    block_bytes: int = 0
    here: int = 0
    by_engine: int = 0
    by_bound: int = 0
    estimated: int = 0

    def __post_init__(self) -> None:
        self.size_blocks(_USUAL_BYTES_PER_TOKEN)

    @property
    def text_blocks(self) -> int:
        """Blocks of the index that a block of text is as long as, about: short ones would only cost time."""
        return max(1, round(_TEXT_BLOCK_TOKENS / self.block_tokens))

    def size_blocks(self, bytes_per_token: float) -> None:
        """Make blocks of text so large that they hardly ever hold fewer tokens than `text_blocks` says: the ledger
        takes what two prompts share for so many. Only before the first prompt, since it changes all names."""
        least = self.text_blocks * self.block_tokens * bytes_per_token
        self.block_bytes = BYTES_PER_TOKEN * math.ceil(least / BYTES_PER_TOKEN)

    def bound(self, ask: Ask) -> Counted:
        """At once."""
        ids = _ids(ask)
        if ids is not None and len(ids) <= _IDS_AT_ONCE:
            blocks = self._blocks(ids, ask.salt)
            return Counted(input_tokens=len(ids), exact=blocks is not None, blocks=blocks or ())
        estimated = self._estimate(ask) if ids is None and ask.countable else None
        return estimated or self._bound(ask)

    def _bound(self, ask: Ask) -> Counted:
        local = self.local
        around = (
            Around()
            if local is None
            else Around(expansion=local.expansion(ask.body), template_tokens=local.template_tokens)
        )
        return Counted(input_tokens=bound_tokens(ask, around), exact=False)

    def _estimate(self, ask: Ask) -> Estimated | None:
        """From its bytes, with names where that costs little; None where our tokenizer counts, or nothing is known."""
        if self.local is not None and self.trust[shape_of(ask.route, ask.fields)].trusted:
            return None
        size = text_size(ask.route, ask.fields)
        tokens = None if size is None else self.rate.estimate(size)
        if size is None or tokens is None:
            return None
        self.estimated += 1
        blocks: tuple[int, ...] = ()
        if len(ask.body) <= SHORT_BYTES and not self._compares():
            blocks = text_names(ask.route, ask.fields, block_bytes=self.block_bytes, salt=ask.salt)
        return Estimated(input_tokens=tokens, exact=False, blocks=blocks, by_text=self.text_blocks, size=size)

    def _compares(self) -> bool:
        """Whether this prompt is counted to see if our tokenizer agrees again: some are, where we have one."""
        return self.local is not None and self.estimated % _COMPARE_EVERY == 1

    @property
    def doubt(self) -> str:
        """Why the tokenizer that we have is not used for plain prompts; "" where it is, or there is none."""
        if self.local is None:
            return ""
        shapes = (Shape.TEXT, Shape.CHAT) if self.local.has_template else (Shape.TEXT,)
        reason = next((self.trust[shape].reason for shape in shapes if not self.trust[shape].trusted), "")
        return f"{self.local.name} is not the engine's tokenizer: {reason}; lengths are estimated" if reason else ""

    @property
    def inferred(self) -> str:
        """Why blocks are named by their text, which no event speaks of; "" = they are not."""
        if self.local is None:
            return "no tokenizer of the model is here, so blocks are named by their text (set tokenizer)"
        return self.doubt

    async def count(self, ask: Ask, pool: ThreadPoolExecutor, *, exact: bool = True) -> Counted:
        """Exactly, as far as somebody can; with `exact` False a close estimate and the names of its blocks will do."""
        loop = asyncio.get_running_loop()
        ids = _ids(ask)
        if ids is not None:
            blocks = await loop.run_in_executor(pool, self._blocks, ids, ask.salt)
            return Counted(input_tokens=len(ids), exact=blocks is not None, blocks=blocks or ())
        fields = dict(ask.fields)  # the prompt stays ours when the ask forgets it
        try:
            here = await self._here(ask, fields, pool) if ask.countable else None
        except Unstretchable:
            return self._only_bounded(ask)  # the engine's tokenizer is no better at it
        if here is not None:
            # how an engine makes a chat of a response's input is its own: its usage is no judge of our tokenizer
            shape = None if ask.responses else here[1]
            return await loop.run_in_executor(pool, self._counted, here[0], ask.salt, shape)
        return await self._by_text(ask, fields, pool, exact=exact)

    async def by_tokens(self, ask: Ask, pool: ThreadPoolExecutor) -> Counted:
        """Exactly, with blocks that are named by their tokens, whatever it costs; the bound where nobody can count."""
        loop = asyncio.get_running_loop()
        try:
            here = await self._here(ask, ask.fields, pool)
            if here is not None:
                return await loop.run_in_executor(pool, self._counted, here[0], ask.salt, here[1])
            parts = await self._engine_ids(ask.route, ask.fields)
        except Uncountable:
            parts = None
        return self._only_bounded(ask) if parts is None else self._counted(parts, ask.salt, None)

    async def _here(self, ask: Ask, fields: Json, pool: ThreadPoolExecutor) -> tuple[list[array[int]], Shape] | None:
        """By our tokenizer, where it is trusted with this shape. Raises Unstretchable."""
        loop = asyncio.get_running_loop()
        if self.local is None:
            return None
        shape = await loop.run_in_executor(pool, shape_of, ask.route, fields)
        if not self.trust[shape].trusted:
            return None
        try:
            parts = await loop.run_in_executor(pool, self.local.ids, ask.route, fields)
        except Unstretchable:
            raise
        except Uncountable:
            return None
        self.here += 1
        return parts, shape

    async def _by_text(self, ask: Ask, fields: Json, pool: ThreadPoolExecutor, *, exact: bool) -> Counted:
        """Names of the text; the length by the engine, where it has to be exact, else by the bytes."""
        loop = asyncio.get_running_loop()
        name = _Naming(ask.route, fields, self.block_bytes, ask.salt)
        blocks, size = await loop.run_in_executor(pool, name)
        if not ask.countable:
            return replace(self._only_bounded(ask), blocks=blocks, by_text=self.text_blocks)
        tokens = None if size is None else self.rate.estimate(size)
        if exact or tokens is None or self._compares():
            parts = await self._engine_ids(ask.route, fields)
            if parts is not None:
                if self.local is not None:
                    await self._compare(self.local, parts, ask.route, fields, pool)
                total = sum(map(len, parts))
                if size is not None:
                    self.rate.learn(size, total)
                return Counted(input_tokens=total, exact=True, blocks=blocks, by_text=self.text_blocks)
        if tokens is None or size is None:
            return replace(self._only_bounded(ask), blocks=blocks, by_text=self.text_blocks)
        return Estimated(input_tokens=tokens, exact=False, blocks=blocks, by_text=self.text_blocks, size=size)

    async def _engine_ids(self, route: Route, fields: Json) -> list[array[int]] | None:
        """By the engine; None where it does not, or will not: it will say itself what is wrong with this request."""
        if self.engine is None or not self.engine.can_count:
            return None
        try:
            parts = await self.engine.ids(route, fields)
        except (EngineMisbehaved, Uncountable):
            return None
        self.by_engine += 1
        return parts

    def _only_bounded(self, ask: Ask) -> Counted:
        self.by_bound += 1
        return self._bound(ask)

    async def _compare(
        self, local: LocalCount, theirs: list[array[int]], route: Route, fields: Json, pool: ThreadPoolExecutor
    ) -> None:
        try:
            ours = await asyncio.get_running_loop().run_in_executor(pool, local.ids, route, fields)
        except Uncountable:
            return
        self.trust[shape_of(route, fields)].compare(sum(map(len, ours)), sum(map(len, theirs)))

    def told(self, counted: Counted, prompt_tokens: int | None) -> None:
        """The engine's usage for a prompt that was counted or estimated."""
        if prompt_tokens is None:
            return
        if isinstance(counted, Estimated):
            self.rate.learn(counted.size, prompt_tokens)
        elif isinstance(counted, CountedHere) and self.trust[counted.shape].compare(
            counted.input_tokens, prompt_tokens
        ):
            self.alarm(
                f"{self.model}: our tokenizer is not the engine's for prompts of the kind '{counted.shape.value}':"
                f" {self.trust[counted.shape].reason}; their lengths are estimated from now on"
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
        self._turns = Turns(_DECIDED_TOGETHER)

    def bound(self, ask: Ask) -> Counted:
        """An upper bound, a close estimate (`by_text`), or the exact length where that costs microseconds."""
        return self.models.get(ask.model, self._unknown).bound(ask)

    async def count(self, ask: Ask, *, exact: bool = True) -> Counted:
        """The exact length, off the event loop; the bound where nobody can count. `exact` False: names will do."""
        model = self.models.get(ask.model, self._unknown)
        if len(ask.body) <= SHORT_BYTES:
            return await model.count(ask, self._short, exact=exact)
        counted = await model.count(ask, self._long, exact=exact)
        await self._turns.mine()  # where its blocks are looked for and booked, on the loop
        return counted

    async def by_tokens(self, ask: Ask) -> Counted:
        """Exactly, with blocks named by their tokens, as events have them: for probes of the index."""
        return await self.models.get(ask.model, self._unknown).by_tokens(ask, self._short)

    def told(self, model: str, counted: Counted, prompt_tokens: int | None) -> None:
        """The engine's usage for a prompt: confirms our tokenizer, ends the trust in it, or corrects estimates."""
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


@dataclass(frozen=True, slots=True)
class _Naming:
    """What a thread does with a text: its names and its size."""

    route: Route
    fields: Json
    block_bytes: int
    salt: str

    def __call__(self) -> tuple[tuple[int, ...], TextSize | None]:
        names = text_names(self.route, self.fields, block_bytes=self.block_bytes, salt=self.salt)
        return names, text_size(self.route, self.fields)


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
