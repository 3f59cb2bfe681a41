"""What is counted over stretches of JSON, against the plainest way to count it."""

from __future__ import annotations

import asyncio
import json

from hypothesis import given, settings
from hypothesis import strategies as st

from longproof.gateway.body_weight import (
    ENTRY_BYTES,
    OBJECT_BYTES,
    bytes_outside_texts,
    most_parsed_bytes,
    parsed_bytes,
)
from longproof.gateway.byte_scan import count, escapes, outside_texts, quotes
from longproof.testing.loop_turns import loop_turns

stretches = st.lists(st.sampled_from([b'"', b"\\", b'\\"', b"\\\\", b"u", b"ud8", b"a", b"[", b",", b"\xf0"])).map(
    b"".join
)


def plain_quotes(stretch: bytes) -> list[int]:
    """Character by character, as a reader of JSON would."""
    found, escaped = list[int](), False
    for place, byte in enumerate(stretch):
        if not escaped and byte == 0x22:
            found.append(place)
        escaped = not escaped and byte == 0x5C
    return found


@settings(max_examples=300)
@given(stretches)
def test_quotation_marks_are_those_that_nothing_escapes(stretch: bytes) -> None:
    assert quotes(stretch).nonzero()[0].tolist() == plain_quotes(stretch)


@settings(max_examples=100)
@given(stretches)
def test_bytes_and_escapes_are_counted_as_bytes_does(stretch: bytes) -> None:
    assert [count(stretch, byte) for byte in b'"[,'] == [stretch.count(byte) for byte in (b'"', b"[", b",")]
    assert escapes(stretch) == (b"\\u" in stretch, b"\\ud" in stretch or b"\\uD" in stretch)


@settings(max_examples=150)
@given(stretches.filter(bool), st.booleans())
def test_texts_are_left_out_when_their_marks_are_found(stretch: bytes, inside: bool) -> None:
    marks, within, left = set(plain_quotes(stretch)), inside, bytearray()
    for place, byte in enumerate(stretch):
        within ^= place in marks
        if not within:
            left.append(byte)
    found, ends_inside = outside_texts(stretch, inside=inside)
    assert (found, ends_inside) == (bytes(left), within)


values = st.recursive(
    st.integers(0, 9) | st.text(st.sampled_from('a"\\,[ä'), max_size=12),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(st.sampled_from('k\\"'), max_size=3), inner),
    max_leaves=15,
)


@settings(max_examples=150)
@given(values, st.integers(1, 40))
def test_the_weight_outside_texts_is_the_same_when_a_body_is_cut_anywhere(value: object, slice_bytes: int) -> None:
    body = json.dumps(value).encode()
    whole, _ = outside_texts(body, inside=False)
    assert asyncio.run(bytes_outside_texts(body, slice_bytes)) == most_parsed_bytes(whole)


async def test_texts_weigh_nothing_when_a_long_body_is_looked_at_in_slices() -> None:
    entry = b'{"role":"user","content":"some words, and more"},'
    async with loop_turns() as turns:
        weighed = await parsed_bytes(entry * 200_000)  # 9.8 MB
    # one turn after every four of ten slices, and one after each of ten where texts are left out
    assert turns.count >= 10
    # of an entry: an object, two colons, and two of its three commas, since one is in a text
    assert weighed == 200_000 * (OBJECT_BYTES + 4 * ENTRY_BYTES)


async def test_backslashes_without_end_cost_no_more_than_other_text_when_texts_are_left_out() -> None:
    body = b'{"a":"' + b"," * 300_000 + b"\\" * 4_000_000 + b'"}'
    async with loop_turns() as turns:
        weighed = await parsed_bytes(body)
    assert weighed <= 1_000  # an object and a colon
    assert turns.count >= 4  # five slices; a search for their end, byte by byte, would have none
