"""The engines of one model as one counter: the first that answers counts, and nothing is asked twice.

One engine is asked, never all of them. One that does not answer is left for the next, and stays last until it is its
turn again; a prompt that was counted lately is remembered by its digest.
"""

from __future__ import annotations

import asyncio
import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Iterable

import orjson

from longproof.domain.request import Route
from longproof.engines.link import Refused
from longproof.errors import EngineMisbehaved
from longproof.gateway.ask import Json
from longproof.gateway.chat_template import Uncountable
from longproof.gateway.engine_count import TEMPLATE_FIELDS, EngineCount

_KEPT_BYTES = 64 << 20
_ENTRY_BYTES = 300
_FIELDS = ("messages", "prompt", "add_generation_prompt", *TEMPLATE_FIELDS)


class EngineCounts:
    """Any number of engines that count alike."""

    def __init__(self, engines: Iterable[EngineCount] = (), *, kept_bytes: int = _KEPT_BYTES) -> None:
        self._engines = list(engines)
        self._kept: OrderedDict[bytes, list[array[int]]] = OrderedDict()
        self._kept_bytes, self._most_bytes = 0, kept_bytes

    def add(self, engine: EngineCount) -> None:
        """One more."""
        self._engines.append(engine)

    @property
    def can_count(self) -> bool:
        """Whether any of them has a route for it."""
        return any(engine.can_count for engine in self._engines)

    async def ids(self, route: Route, fields: Json) -> list[array[int]]:
        """The ids of each prompt of a body. Raises EngineMisbehaved when none of them answers, or one refuses this
        prompt; Uncountable where the dialect cannot say it."""
        name = await asyncio.to_thread(_digest, route, fields)
        known = self._kept.get(name)
        if known is not None:
            self._kept.move_to_end(name)
            return known
        found = await self._ask(route, fields)
        self._keep(name, found)
        return found

    async def _ask(self, route: Route, fields: Json) -> list[array[int]]:
        problem: EngineMisbehaved | None = None
        for engine in [engine for engine in self._engines if engine.can_count]:
            try:
                return await engine.ids(route, fields)
            except Refused as refused:
                if refused.status < 500:
                    raise
                problem = refused
            except EngineMisbehaved as silent:
                problem = silent
            if engine in self._engines:  # two prompts may have found the same one silent
                self._engines.remove(engine)
                self._engines.append(engine)
        raise problem or Uncountable("no engine of this model counts")

    def _keep(self, name: bytes, found: list[array[int]]) -> None:
        size = _ENTRY_BYTES + sum(len(ids) * ids.itemsize for ids in found)
        if size > self._most_bytes // 4 or name in self._kept:
            return
        self._kept[name] = found
        self._kept_bytes += size
        while self._kept_bytes > self._most_bytes:
            _, gone = self._kept.popitem(last=False)
            self._kept_bytes -= _ENTRY_BYTES + sum(len(ids) * ids.itemsize for ids in gone)


def _digest(route: Route, fields: Json) -> bytes:
    what = [route.value, {name: fields[name] for name in _FIELDS if name in fields}]
    return hashlib.blake2b(orjson.dumps(what), digest_size=16).digest()
