"""KV events as engines put them on the wire → values. Pure.

    frames of a message     topic | sequence number, 8 bytes, big-endian | payload (msgpack)
    payload                 [time, [event, …], rank?]
    event, vLLM 0.32        {"type": "BlockStored", "block_hashes": […], "parent_block_hash": …, "token_ids": […], …}
    event, SGLang 0.5.23    ["BlockStored", [hash, …], parent, [id, …], block_size, lora_id, medium?]   (older vLLM too)

(`vllm/distributed/kv_events.py`, `sglang/srt/disaggregation/kv_events.py`.) A hash is an integer or 32 bytes; the low
64 bits of either are kept, which is what vLLM itself keeps when it is asked for integers.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import TypeAlias, cast

import msgspec

from longproof.domain.kv_event import Tier

_LOW_64 = (1 << 64) - 1
_WHOLE_PREFIX = frozenset({None, "full_attention", "mla_attention", "sink_full_attention", "unknown"})
"""Kinds of layers (vLLM's `kv_cache_spec_kind`) that keep every token: what they hold decides how long a prefix is.
Groups of other kinds (sliding window, Mamba …) repeat the same hashes for what they keep of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WireStored:
    """Blocks that were stored, in order, after the block `parent` (None: at the beginning of a prompt).

    `token_ids` are unsigned 32-bit. `salt` is the cache salt of the first block where there is one, `aside` what else
    went into the hashes (adapter, images): such blocks are never those of a plain text. `group` numbers the groups of
    layers of a hybrid model.
    """

    hashes: tuple[int, ...]
    parent: int | None
    token_ids: array[int]
    block_tokens: int
    tier: Tier
    group: int | None = None
    whole_prefix: bool = True
    salt: str = ""
    aside: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WireRemoved:
    """Blocks that are no longer in a tier."""

    hashes: tuple[int, ...]
    tier: Tier
    group: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WireCleared:
    """The cache was emptied."""


WireEvent: TypeAlias = WireStored | WireRemoved | WireCleared


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One message: the publisher's own time in seconds since 1970, its events in order, and how many of them could not
    be read; `lost` when one of those may have been a removal."""

    at_s: float
    events: tuple[WireEvent, ...]
    unread: int = 0
    lost: bool = False


def read_batch(payload: bytes) -> Batch | None:
    """A payload; None when it is no batch of events at all."""
    try:
        found: object = msgspec.msgpack.decode(payload)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
    if not isinstance(found, list) or len(cast("list[object]", found)) < 2:
        return None
    at_s, events = cast("list[object]", found)[:2]
    if not isinstance(at_s, int | float) or not isinstance(events, list):
        return None
    read: list[WireEvent] = []
    unread, lost = 0, False
    for event in cast("list[object]", events):
        try:
            read.append(_event(event))
        except (KeyError, IndexError, TypeError, ValueError, OverflowError):
            unread += 1
            lost = lost or not _stores(event)
    return Batch(at_s=float(at_s), events=tuple(read), unread=unread, lost=lost)


def _stores(event: object) -> bool:
    kind = cast("dict[str, object]", event).get("type") if isinstance(event, dict) else None
    if isinstance(event, list) and event:
        kind = cast("list[object]", event)[0]
    return kind == "BlockStored"


def _event(event: object) -> WireEvent:
    if isinstance(event, dict):
        return _from_map(cast("dict[str, object]", event))
    if isinstance(event, list):
        return _from_list(cast("list[object]", event))
    raise TypeError(event)


def _from_map(event: dict[str, object]) -> WireEvent:
    match event["type"]:
        case "BlockStored":
            lora = event.get("lora_name") or event.get("lora_id")
            salt, aside = _extra(event.get("extra_keys"), event.get("lora_name"))
            return _stored(
                hashes=event["block_hashes"],
                parent=event.get("parent_block_hash"),
                token_ids=event["token_ids"],
                block_tokens=event["block_size"],
                medium=event.get("medium"),
                group=event.get("group_idx"),
                kind=event.get("kv_cache_spec_kind"),
                salt=salt,
                aside=aside if lora is None else f"{aside}\x00lora:{lora}",
            )
        case "BlockRemoved":
            return WireRemoved(
                hashes=_hashes(event["block_hashes"]),
                tier=_tier(event.get("medium")),
                group=_group(event.get("group_idx")),
            )
        case "AllBlocksCleared":
            return WireCleared()
        case other:
            raise ValueError(other)


def _from_list(event: list[object]) -> WireEvent:
    match event[0]:
        case "BlockStored":
            lora = event[5] if len(event) > 5 else None
            return _stored(
                hashes=event[1],
                parent=event[2],
                token_ids=event[3],
                block_tokens=event[4],
                medium=event[6] if len(event) > 6 else None,
                aside="" if lora is None else f"\x00lora:{lora}",
            )
        case "BlockRemoved":
            return WireRemoved(hashes=_hashes(event[1]), tier=_tier(event[2] if len(event) > 2 else None))
        case "AllBlocksCleared":
            return WireCleared()
        case other:
            raise ValueError(other)


def _stored(
    *,
    hashes: object,
    parent: object,
    token_ids: object,
    block_tokens: object,
    medium: object,
    group: object = None,
    kind: object = None,
    salt: str = "",
    aside: str = "",
) -> WireStored:
    if not isinstance(token_ids, list) or not isinstance(block_tokens, int) or block_tokens < 1:
        raise TypeError("no tokens")
    found = _hashes(hashes)
    ids = cast("list[object]", token_ids)
    if ids and isinstance(ids[0], list):  # SGLang's bigram keys (EAGLE) are pairs, no prompt's own tokens
        raise TypeError("pairs of tokens")
    if len(ids) != len(found) * block_tokens:
        raise ValueError(f"{len(ids)} tokens for {len(found)} blocks of {block_tokens}")
    return WireStored(
        hashes=found,
        parent=None if parent is None else _key(parent),
        token_ids=array("I", cast("list[int]", ids)),
        block_tokens=block_tokens,
        tier=_tier(medium),
        group=_group(group),
        whole_prefix=kind in _WHOLE_PREFIX,
        salt=salt,
        aside=aside,
    )


def _extra(keys: object, lora: object) -> tuple[str, str]:
    """(salt, all else) of the first block that has extra keys: adapter name, (image, offset) pairs, salt, digests."""
    if not isinstance(keys, list) or not keys:
        return "", ""
    first = cast("list[object]", keys)[0]
    if not isinstance(first, list):
        return "", ""
    rest = list(cast("list[object]", first))
    if lora is not None and rest and rest[0] == lora:
        rest = rest[1:]
    texts = [item for item in rest if isinstance(item, str)]
    others = [item for item in rest if not isinstance(item, str)]
    return (texts[0] if texts else ""), repr(others) if others else ""


def _hashes(found: object) -> tuple[int, ...]:
    if not isinstance(found, list):
        raise TypeError("no hashes")
    return tuple(map(_key, cast("list[object]", found)))


def _key(found: object) -> int:
    if isinstance(found, int):
        return found & _LOW_64
    if isinstance(found, bytes) and found:
        return int.from_bytes(found[-8:], "big")
    raise TypeError(found)


def _group(found: object) -> int | None:
    return found if isinstance(found, int) else None


def _tier(medium: object) -> Tier:
    """vLLM: GPU, CPU, STORAGE. SGLang: GPU, CPU…, DISK, EXTERNAL. Nothing said: the device."""
    if not isinstance(medium, str):
        return Tier.DEVICE
    name = medium.upper()
    if name.startswith("GPU"):
        return Tier.DEVICE
    return Tier.HOST if name.startswith("CPU") else Tier.DISK
