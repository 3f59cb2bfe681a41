"""Pinned prefixes with their contents: what was put, by whom, and where it is kept across restarts.

    state/prefixes/NAME.json      one file per prefix, readable by its owner alone; written before a PUT is answered

`policy.pinned` decides where each lives and when it is warmed; here is what it needs a content for.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import orjson
from pydantic import TypeAdapter, ValidationError

from longproof.domain.request import Route
from longproof.gateway.ask import Ask, Json
from longproof.gateway.dashboard_view import PinnedView
from longproof.gateway.ports import Counted, Counting
from longproof.policy.arrivals import Arrival
from longproof.policy.pinned import PinnedPrefixes, PinnedSnapshot, PinRefused, PinRule
from longproof.policy.routing import PrefixRouter

_NOT_KEPT = ("stream", "stream_options", "n", "best_of", "max_tokens", "max_completion_tokens", "copies", "cache_salt")
_log = logging.getLogger("longproof.gateway")


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """What a prefix is, as it is stored. `fields`: the body of a request that has it as its prompt. `salt` separates it
    from other tenants' prefixes, "" = shared with everybody."""

    name: str
    route: Route
    model: str
    fields: Json
    copies: int = 1
    tenant: str = ""
    key: str = ""
    salt: str = ""

    def body(self) -> bytes:
        """What is sent to an engine to have it cached: one token of output."""
        fields = {**self.fields, "max_tokens": 1, "stream": False}
        if self.salt:
            fields["cache_salt"] = self.salt
        return orjson.dumps(fields)

    def ask(self, request_id: str, *, longer: bool = False) -> Ask:
        """It as a request. `longer`: with something behind it, which a request that begins with it would have."""
        fields = dict(self.fields)
        if longer and self.route is Route.CHAT:
            fields["messages"] = [*fields["messages"], {"role": "user", "content": "and so on"}]
        elif longer and isinstance(fields["prompt"], str):
            fields["prompt"] += "\n\nand so on"
        return Ask(
            id=request_id,
            route=self.route,
            model=self.model,
            body=self.body(),
            fields=fields,
            output_tokens=1,
            salt=self.salt,
            tenant=self.tenant,
            key=self.key,
        )


_CONTENT = TypeAdapter(Content)


@dataclass(slots=True)
class Kept:
    """One pinned prefix. `counted` is its whole prompt; `problem`: why it is not warm, in words."""

    content: Content
    counted: Counted
    problem: str | None = None


@dataclass(slots=True)
class KeptPrefixes:
    """All of them. `directory` None keeps them in memory alone."""

    counting: Counting
    router: PrefixRouter
    directory: Path | None
    rule: PinRule = field(default_factory=PinRule)
    kept: dict[str, Kept] = field(default_factory=dict[str, Kept])
    _pins: dict[str, PinnedPrefixes] = field(default_factory=dict[str, PinnedPrefixes])

    def __post_init__(self) -> None:
        self.router.watchers.append(self._dispatched)

    async def put(self, content: Content, caches: Mapping[str, int | None]) -> PinRefused | None:
        """Pin a content, or replace the one of its name. `caches`: the replicas that serve its model, with the blocks
        each can cache."""
        ask = content.ask(f"pin-{content.name}")
        counted = await self.counting.count(ask)
        # its names up to where a continuation differs: the template ends a prompt with what no continuation has there
        longer = await self.counting.count(content.ask(f"pin-{content.name}", longer=True))
        sizes = [size for size in caches.values() if size is not None]
        pins = self._pins.setdefault(content.model, PinnedPrefixes(self.rule))
        refused = pins.put(
            content.name,
            blocks=_common(counted.blocks, longer.blocks),
            input_tokens=counted.input_tokens,
            copies=content.copies,
            cache_blocks=min(sizes, default=None),
            by_text=counted.by_text,
        )
        if refused is not None:
            return refused
        before = self.kept.get(content.name)
        if before is not None and before.content.model != content.model:
            self._pins[before.content.model].drop(content.name)
        self.kept[content.name] = Kept(content, counted)
        return None

    def drop(self, name: str) -> bool:
        """Pin it no longer; False when it was not."""
        gone = self.kept.pop(name, None)
        return gone is not None and self._pins[gone.content.model].drop(name)

    def pins(self) -> Iterator[tuple[str, PinnedPrefixes]]:
        """By model."""
        return iter(self._pins.items())

    def snapshots(self) -> list[tuple[Kept, PinnedSnapshot]]:
        """All of them as they stand, in the order of their names."""
        shown = [one for pins in self._pins.values() for one in pins.snapshot(self.router.index.match)]
        return [(self.kept[one.name], one) for one in sorted(shown, key=lambda one: one.name)]

    def views(self) -> list[PinnedView]:
        """As dashboard and metrics show them."""
        return [
            PinnedView(
                name=one.name,
                model=kept.content.model,
                tokens=one.input_tokens,
                replicas=tuple(home for home, tokens in one.held.items() if tokens),
                requests=one.requests,
                hits=one.hits,
                problem=one.homeless or kept.problem,
            )
            for kept, one in self.snapshots()
        ]

    def save(self, content: Content) -> None:
        """Write it to its file. Blocks; OSError where that fails."""
        if self.directory is None:
            return
        self.directory.mkdir(parents=True, exist_ok=True)
        final = self.directory / f"{content.name}.json"
        draft = final.with_suffix(".tmp")
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(orjson.dumps(content))
            file.flush()
            os.fsync(file.fileno())
        draft.replace(final)

    def erase(self, name: str) -> None:
        """Remove its file. Blocks."""
        if self.directory is not None:
            (self.directory / f"{name}.json").unlink(missing_ok=True)

    def stored(self) -> list[Content]:
        """What earlier runs left; a file that cannot be read is told of and left alone. Blocks."""
        found: list[Content] = []
        if self.directory is None or not self.directory.is_dir():
            return found
        for path in sorted(self.directory.glob("*.json")):
            try:
                found.append(_CONTENT.validate_json(path.read_bytes()))
            except (OSError, ValidationError) as problem:
                _log.warning("the pinned prefix in %s cannot be read: %s", path, problem)
        return found

    def _dispatched(self, arrival: Arrival, replica: str, cached_blocks: int, now_ns: int) -> None:
        pins = self._pins.get(arrival.model)
        if pins is not None and arrival.only is None:
            pins.on_dispatch(arrival.blocks, replica, cached_blocks, now_ns)


def kept_fields(fields: Json) -> Json:
    """Of a request's body what makes its prompt, and what an engine needs to make the same of it again."""
    return {name: value for name, value in fields.items() if name not in _NOT_KEPT}


def _common(first: tuple[int, ...], second: tuple[int, ...]) -> tuple[int, ...]:
    for place, (one, other) in enumerate(zip(first, second, strict=False)):
        if one != other:
            return first[:place]
    return first[: len(second)]
