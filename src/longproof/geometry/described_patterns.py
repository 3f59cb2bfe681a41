"""Layer patterns as people write them down: "every 6th full", "3 sliding : 1 full", "6 full_attention, 10 conv".

Model facts collected by hand carry such sentences instead of a list. Where a sentence gives only counts, the full
layers are spread evenly; that decides nothing but which pipeline stage has them, and is noted.
"""

from __future__ import annotations

import re

from longproof.errors import GeometryError
from longproof.geometry.config_fields import ConfigFields
from longproof.geometry.slots import WORDS, Role, Slot

_EVERY = re.compile(r"every (\d+)(?:st|nd|rd|th) (?:layer )?(?:is )?(\w+)")
_RATIO = re.compile(r"(\d+) ([a-z_]+) ?(?::|to|then) ?(\d+) ([a-z_]+)")
_COUNTS = re.compile(r"(\d+) (?:x )?([a-z_]+)(?: layers)?(?:,| and| \+|;) (\d+) (?:x )?([a-z_]+)")
_AT = re.compile(r"(\w+)(?: \w+)? at layers ([\d, ]*\d) \((0|1)-based\)[;,]? the other (?:\d+ )?(\w+)")
_ALL = re.compile(r"^all (?:layers )?(\w+)")
_ALTERNATING = re.compile(r"alternating|(even|odd) (?:layers )?(\w+)")


def described(text: str, layers: int, fields: ConfigFields) -> tuple[Slot, ...]:
    """The slots a sentence describes. Raises GeometryError: not understood, or its counts do not add up."""
    words = text.lower()
    roles = _every(words, layers, fields) or _at(words, layers) or _ratio(words, layers) or _counts(words, layers)
    roles = roles or _all(words, layers)
    if roles is None:
        raise GeometryError(
            f"{fields.name}: the layer pattern '{text}' is not understood",
            advice='list the layers in layer_types, or write "every 6th full" or "3 sliding : 1 full"',
            missing=("layer_types",),
        )
    fields.note(f"the layer pattern was read from the description '{text}'")
    return tuple(Slot(role) for role in roles)


def _every(words: str, layers: int, fields: ConfigFields) -> list[Role] | None:
    found = _EVERY.search(words)
    if found is None and _ALTERNATING.search(words):
        return _alternating(words, layers)
    if found is None or found.group(2) not in WORDS:
        return None
    every, role = int(found.group(1)), WORDS[found.group(2)]
    counts = _COUNTS.search(words)
    other = Role.SLIDE if counts is None else WORDS.get(counts.group(4), Role.SLIDE)
    roles = [other if (i + 1) % every else role for i in range(layers)]
    if counts is not None and roles.count(role) != int(counts.group(1)):
        raise GeometryError(
            f"{fields.name}: every {every}th of {layers} layers makes {roles.count(role)}, not {counts.group(1)}",
            advice="correct the layer pattern or num_hidden_layers",
            missing=("layer_types",),
        )
    return roles


def _at(words: str, layers: int) -> list[Role] | None:
    found = _AT.search(words)
    if found is None or found.group(1) not in WORDS or found.group(4) not in WORDS:
        return None
    base = int(found.group(3))
    chosen = {int(number) - base for number in found.group(2).split(",")}
    return [WORDS[found.group(1)] if i in chosen else WORDS[found.group(4)] for i in range(layers)]


def _all(words: str, layers: int) -> list[Role] | None:
    found = _ALL.search(words)
    return None if found is None or found.group(1) not in WORDS else [WORDS[found.group(1)]] * layers


def _alternating(words: str, layers: int) -> list[Role]:
    """Even layers slide and odd ones are full (Gemma 2), unless the sentence says which is which."""
    even = Role.SLIDE
    for parity, word in re.findall(r"(even|odd) (?:layers )?(\w+)", words):
        if word in WORDS:
            full = WORDS[word] is Role.ATTEND
            even = Role.ATTEND if full == (parity == "even") else Role.SLIDE
    odd = Role.SLIDE if even is Role.ATTEND else Role.ATTEND
    return [odd if i % 2 else even for i in range(layers)]


def _ratio(words: str, layers: int) -> list[Role] | None:
    found = _RATIO.search(words)
    if found is None or found.group(2) not in WORDS or found.group(4) not in WORDS:
        return None
    period = [WORDS[found.group(2)]] * int(found.group(1)) + [WORDS[found.group(4)]] * int(found.group(3))
    return [period[i % len(period)] for i in range(layers)]


def _counts(words: str, layers: int) -> list[Role] | None:
    found = _COUNTS.search(words)
    if found is None or found.group(2) not in WORDS or found.group(4) not in WORDS:
        return None
    first, second = int(found.group(1)), int(found.group(3))
    if first + second != layers:
        return None
    one, other = WORDS[found.group(2)], WORDS[found.group(4)]
    if first > second:  # the rarer kind is the one that is spread
        first, one, other = second, other, one
    chosen = {(number + 1) * layers // first - 1 for number in range(first)}
    return [one if i in chosen else other for i in range(layers)]
