"""Names for blocks of tokens: what is equal has one name, whatever engine holds it.

    name(block i) = xxh3_64(token ids of block i, seed = name(block i - 1))          name(block -1) = root(salt)

A name therefore stands for the whole prefix up to its block. Only whole blocks have names. The names are ours: engines
seed, truncate and salt theirs as they like, and `gateway` computes ours from the token ids their events carry.

A collision costs a wrong guess about where a prefix lies (one look-up in 2⁶⁴ by chance); the engine compares its own
hashes before it reuses anything, so it never costs a wrong answer.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable

from xxhash import xxh3_64_intdigest

BYTES_PER_TOKEN = 4
"""Token ids are hashed as unsigned 32-bit integers of this machine's byte order."""

ROOT = 0x6C6F6E6770726F66
"""The seed of an unsalted chain: the same in every gateway, so that several can share an index."""


def root(salt: str = "") -> int:
    """Where a chain starts. Chains of two salts share no name: a salted prefix is never credited to another tenant."""
    return xxh3_64_intdigest(salt.encode(), seed=ROOT) if salt else ROOT


def pack(token_ids: Iterable[int]) -> bytes:
    """Token ids as the bytes that are hashed. Raises OverflowError for an id that is negative or above 2³² - 1."""
    return array("I", token_ids).tobytes()


def chain(packed: bytes, *, block_tokens: int, parent: int = ROOT) -> tuple[int, ...]:
    """The names of the whole blocks of `packed` (see `pack`), following the block named `parent`; the first block of
    a prompt follows `root(salt)`.

    0.25 µs per block of 16 tokens: 16 ms for a million tokens. Raises ValueError for a block of less than one token.
    """
    if block_tokens < 1:
        raise ValueError(f"a block of {block_tokens} tokens")
    step = BYTES_PER_TOKEN * block_tokens
    names: list[int] = []
    for start in range(0, len(packed) - step + 1, step):
        parent = xxh3_64_intdigest(packed[start : start + step], seed=parent)
        names.append(parent)
    return tuple(names)


def block_names(token_ids: Iterable[int], *, block_tokens: int, salt: str = "") -> tuple[int, ...]:
    """The names of a prompt's whole blocks."""
    return chain(pack(token_ids), block_tokens=block_tokens, parent=root(salt))
