"""At start: does our tokenizer do what the engine's does?

Prompts of every shape are encoded by both, and the ids are compared one by one: the right number of wrong tokens would
pass a count and make every name of a block wrong. Where the engine has no route that counts, it is asked for one token
of output, and its usage is compared with our number.
"""

from __future__ import annotations

import asyncio
from array import array
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import orjson

from longproof.domain.request import Route
from longproof.engines.json_fields import as_int, as_object
from longproof.engines.link import Link
from longproof.errors import EngineMisbehaved
from longproof.gateway.ask import Json
from longproof.gateway.chat_template import Uncountable
from longproof.gateway.count_shape import Shape
from longproof.gateway.counting import Counter, ModelCounting
from longproof.gateway.local_count import LocalCount
from longproof.gateway.prompt_text import text_size

_TEXT = "The keeper wrote 4,096 lines: don't count on it!\n\n\tdef f(x):  return x + 1  # 12345678\n"
_MORE = "Größe, 東京, 12 °C, naïve café 😀\r\n   and  so  on ..."
_TOOL = {
    "type": "function",
    "function": {
        "name": "depth",
        "description": "Depth of a lake.",
        "parameters": {"type": "object", "properties": {"lake": {"type": "string"}}, "required": ["lake"]},
    },
}
_TURNS: list[Json] = [
    {"role": "system", "content": "Answer briefly."},
    {"role": "user", "content": _TEXT},
    {"role": "assistant", "content": "No."},
    {"role": "user", "content": _MORE},
]
SAMPLES: dict[Shape, tuple[tuple[Route, Json], ...]] = {
    Shape.TEXT: ((Route.COMPLETIONS, {"prompt": _TEXT}), (Route.COMPLETIONS, {"prompt": _MORE})),
    Shape.CHAT: (
        (Route.CHAT, {"messages": [{"role": "user", "content": _TEXT}]}),
        (Route.CHAT, {"messages": _TURNS}),
    ),
    Shape.PARTS: (
        (
            Route.CHAT,
            {
                "messages": [
                    {"role": "user", "content": [{"type": "text", "text": _TEXT}, {"type": "text", "text": "b"}]}
                ]
            },
        ),
    ),
    Shape.TOOLS: ((Route.CHAT, {"messages": [{"role": "user", "content": "How deep?"}], "tools": [_TOOL]}),),
}


_PROSE = (
    "The harbour was quiet that morning, and the keeper wrote down what little there was to see. Two boats had gone"
    " out before sunrise; a third lay at the pier with her sails still wet from the rain of the night. He noted the"
    " wind, the height of the water and the names of those who came to ask for the post, as his father had done before"
    " him, and put the book away. There would be time enough in the evening to copy it all into the larger one, which"
    " nobody read.\n\n"
)
_CODE = (
    "def depth(lake: str, *, metres: bool = True) -> float:\n    rows = [row for row in TABLE if row.name == lake]\n"
    '    if not rows:\n        raise KeyError(f"no lake is called {lake!r}")\n'
    "    found = max(row.depth for row in rows)\n    return found if metres else found * 3.28084\n\n"
)
_DATA = '{"id": 48213, "at": "2026-03-14T09:26:53Z", "lake": "north", "depth_m": 31.75, "ok": true, "tags": ["a1"]}\n'
RATE_SAMPLES = (_PROSE * 2, _CODE * 4, _DATA * 8)
"""Texts by which the rate of bytes per token is known before the first prompt; the first says how large blocks are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CountCheck:
    """What came of it. `trusted` shapes are counted here; `reasons` say why the others are not."""

    trusted: tuple[Shape, ...]
    reasons: dict[Shape, str]


async def check_counting(counting: ModelCounting, pool: ThreadPoolExecutor, *, link: Link | None = None) -> CountCheck:
    """Compares all shapes and sets `counting.trust`. `link`: where to ask for usage when the engine does not count.

    Never raises: a shape that could not be compared is not trusted.
    """
    for shape, samples in SAMPLES.items():
        trust = counting.trust[shape]
        if counting.local is None:
            trust.distrust("there is no tokenizer of ours")
            continue
        for route, fields in samples:
            try:
                await _compare(counting, counting.local, pool, link, route, fields)
            except Uncountable as problem:
                trust.distrust(str(problem))
            except EngineMisbehaved as problem:
                trust.distrust(f"the engine would not say: {problem.what[:200]}")
            if not trust.trusted:
                break
    reasons = {shape: trust.reason for shape, trust in counting.trust.items() if not trust.trusted}
    return CountCheck(trusted=tuple(shape for shape in Shape if shape not in reasons), reasons=reasons)


async def learn_rate(counting: ModelCounting) -> bool:
    """Asks the engine how many tokens some texts are, so that lengths can be estimated from the first prompt on. False:
    it does not say, and usage has to teach it. Before anything is named: it sets the size of blocks of text."""
    if counting.engine is None or not counting.engine.can_count:
        return False
    try:
        for text in RATE_SAMPLES:
            fields: Json = {"prompt": text}
            tokens = len(await engine_ids(counting.engine, Route.COMPLETIONS, fields))
            size = text_size(Route.COMPLETIONS, fields)
            if tokens and size is not None:
                counting.rate.learn(size, tokens)
                if text is RATE_SAMPLES[0]:
                    counting.size_blocks(len(text) / tokens)
    except (EngineMisbehaved, Uncountable):
        return False
    return True


async def _compare(
    counting: ModelCounting, local: LocalCount, pool: ThreadPoolExecutor, link: Link | None, route: Route, fields: Json
) -> None:
    loop = asyncio.get_running_loop()
    ours = (await loop.run_in_executor(pool, local.ids, route, fields))[0]
    trust = counting.trust[next(shape for shape, found in SAMPLES.items() if (route, fields) in found)]
    if counting.engine is not None and counting.engine.can_count:
        theirs = await engine_ids(counting.engine, route, fields)
        if len(ours) == len(theirs) and ours != theirs:
            trust.distrust(f"as many tokens as the engine, but others: {first_difference(ours, theirs)}")
            return
        trust.compare(len(ours), len(theirs))
        return
    if link is None:
        raise Uncountable("the engine has no route that counts")
    used = await _usage(link, counting.model, route, fields)
    if used is None:
        raise Uncountable("the engine reports no usage")
    trust.compare(len(ours), used)


async def engine_ids(engine: Counter, route: Route, fields: Json) -> array[int]:
    """The engine's ids of the one prompt of a body."""
    return (await engine.ids(route, fields))[0]


def first_difference(ours: array[int], theirs: array[int]) -> str:
    """Where two lists of ids part."""
    for place, (left, right) in enumerate(zip(ours, theirs, strict=False)):
        if left != right:
            return f"token {place} is {left} here and {right} there"
    return f"{len(ours):,} tokens here and {len(theirs):,} there"


async def _usage(link: Link, model: str, route: Route, fields: Json) -> int | None:
    path = "/v1/chat/completions" if route is Route.CHAT else "/v1/completions"
    answer = orjson.loads((await link.post(path, {"model": model, "max_tokens": 1, **fields})).content)
    usage = as_object((as_object(answer) or {}).get("usage")) or {}
    return as_int(usage.get("prompt_tokens"))
