"""What gateways tell each other, as bytes, and back. Whoever can write to the store is trusted; what cannot be read is
left out all the same.

    bookings    msgpack of `Booked`
    message     "B", a gateway's id, its bookings             its bookings have changed
                "S", a gateway's id, a replica, 64-bit names   these blocks are cached there, by its own traffic
                "L", a gateway's id                            it leaves, and has nothing booked any more
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from longproof.policy.peers import FleetUse

_BLOCK_BYTES = 8
_BLOCKS_AT_ONCE = 65_536
_LONGEST_NAME = 255


@dataclass(frozen=True, slots=True, kw_only=True)
class Booked:
    """One gateway's bookings. `number` rises with each that it tells: an older one that comes late is dropped."""

    number: int
    use: FleetUse
    version: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """One message: `booked`, or the `blocks` cached at a `replica`, or that it has `left`."""

    gateway: str
    left: bool = False
    booked: Booked | None = None
    replica: str = ""
    blocks: tuple[int, ...] = ()


_DECODER = msgspec.msgpack.Decoder(Booked)


def encode_booked(booked: Booked) -> bytes:
    """Bookings as they stand in the store."""
    return msgspec.msgpack.encode(booked)


def decode_booked(data: bytes) -> Booked | None:
    """None for what is none, or of another version."""
    try:
        booked = _DECODER.decode(data)
    except msgspec.MsgspecError:
        return None
    return booked if booked.version == 1 and _is_sane(booked.use) else None


def stored_messages(gateway: str, replica: str, blocks: Sequence[int]) -> Iterator[bytes]:
    """Blocks that are cached at a replica, as messages of at most half a megabyte."""
    head = b"S" + _named(gateway) + _named(replica)
    for start in range(0, len(blocks), _BLOCKS_AT_ONCE):
        yield head + array("Q", blocks[start : start + _BLOCKS_AT_ONCE]).tobytes()


def leaving_message(gateway: str) -> bytes:
    """The last one."""
    return b"L" + _named(gateway)


def decode_message(data: bytes) -> Heard | None:
    """None for what is none."""
    kind, rest = data[:1], data[1:]
    gateway, rest = _split(rest)
    if kind == b"B":
        booked = decode_booked(rest)
        return None if booked is None else Heard(gateway=gateway, booked=booked)
    if kind == b"L":
        return Heard(gateway=gateway, left=True)
    replica, rest = _split(rest)
    if kind != b"S" or len(rest) % _BLOCK_BYTES:
        return None
    return Heard(gateway=gateway, replica=replica, blocks=tuple(array("Q", rest)))


def _named(name: str) -> bytes:
    written = name.encode()[:_LONGEST_NAME]
    return bytes([len(written)]) + written


def _split(data: bytes) -> tuple[str, bytes]:
    size = data[0] if data else 0
    return data[1 : 1 + size].decode("utf-8", "replace"), data[1 + size :]


def _is_sane(use: FleetUse) -> bool:
    for one in use.replicas.values():
        counts = one.pending_prefill_tokens, one.pending_prefill_ns, one.prefilling, one.decoding, one.recent_tokens
        if min(counts) < 0 or any(min(stage.blocks, stage.requests) < 0 for stage in one.stages.values()):
            return False
    if any(min(one.spent_token_ms, one.expected_token_ms) < 0 for one in use.tenants.values()):
        return False
    return use.short_age_ns is None or use.short_age_ns >= 0
