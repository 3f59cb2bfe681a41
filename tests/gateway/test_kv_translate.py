"""The engine's blocks in our names: whatever happens to keys, what is held is what the engine holds."""

from __future__ import annotations

from array import array

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longproof.domain.kv_event import KvCleared, KvEvent, KvRemoved, KvStored, Tier
from longproof.gateway.kv_sequence import Place, Sequence
from longproof.gateway.kv_stream import FeedState, KvSource, take
from longproof.gateway.kv_translate import Translator
from longproof.gateway.kv_wire import Batch, WireCleared, WireEvent, WireRemoved, WireStored, read_batch
from longproof.policy.hashing import block_names


def stored(
    ids: list[int],
    *,
    size: int,
    first_key: int = 1,
    parent: int | None = None,
    tier: Tier = Tier.DEVICE,
    salt: str = "",
) -> WireStored:
    keys = tuple(range(first_key, first_key + len(ids) // size))
    return WireStored(hashes=keys, parent=parent, token_ids=array("I", ids), block_tokens=size, tier=tier, salt=salt)


def removed(*keys: int, tier: Tier = Tier.DEVICE) -> WireRemoved:
    return WireRemoved(hashes=keys, tier=tier)


def held(events: list[KvEvent], tier: Tier = Tier.DEVICE) -> set[int]:
    found: set[int] = set()
    for event in events:
        if isinstance(event, KvStored) and event.tier is tier:
            found |= set(event.blocks)
        elif isinstance(event, KvRemoved) and event.tier is tier:
            found -= set(event.blocks)
        elif isinstance(event, KvCleared):
            found.clear()
    return found


def run(translator: Translator, *events: WireEvent) -> list[KvEvent]:
    return [found for event in events for found in translator.translate(event)]


IDS = list(range(100, 148))


def test_blocks_are_told_at_once_when_the_engine_tells_them_one_by_one() -> None:
    pages = [stored(IDS[at : at + 8], size=8, first_key=at, parent=at - 8 if at else None) for at in range(0, 48, 8)]
    other = stored(IDS[:8], size=8, first_key=100, salt="of another tenant")
    far = stored(IDS[40:48], size=8, first_key=40, parent=32, tier=Tier.HOST)
    state = FeedState(source=KvSource(replica="a", endpoint="tcp://h:1"), translator=Translator(block_tokens=8))
    events = take(state, 0, Batch(at_s=1.0, events=(*pages[:4], removed(24), *pages[3:], other, far)))
    names = block_names(IDS, block_tokens=8)
    assert (
        events
        == [
            KvStored(blocks=names[:4]),
            KvRemoved(blocks=names[3:4]),
            KvStored(blocks=names[3:]),  # in order again, and whatever comes between keeps its place
            KvStored(blocks=block_names(IDS[:8], block_tokens=8, salt="of another tenant")),
            KvStored(blocks=names[5:], tier=Tier.HOST),
        ]
    )


@pytest.mark.parametrize("size", [1, 2, 4, 8, 16, 48])
def test_names_are_those_of_the_tokens_when_blocks_are_of_any_fitting_size(size: int) -> None:
    translator = Translator(block_tokens=8)
    if size == 48:
        translator = Translator(block_tokens=16)
    ours = translator.block_tokens
    half = len(IDS) // 2 // size * size
    events = run(
        translator,
        stored(IDS[:half], size=size) if half else stored(IDS, size=size),
        *([stored(IDS[half:], size=size, first_key=half // size + 1, parent=half // size)] if half else []),
    )
    assert held(events) == set(block_names(IDS, block_tokens=ours))
    assert translator.figures.orphans == 0


def test_a_block_of_ours_goes_with_its_last_page_when_pages_are_smaller() -> None:
    translator = Translator(block_tokens=4)
    events = run(translator, stored(IDS[:8], size=1), removed(8))
    assert held(events) == set(block_names(IDS[:4], block_tokens=4))
    events += run(translator, removed(7, 6, 5, 4))
    assert held(events) == set()
    assert len(translator) == 3  # three pages that end no block of ours


def test_all_its_blocks_go_when_one_of_the_engine_is_larger() -> None:
    translator = Translator(block_tokens=4)
    events = run(translator, stored(IDS[:16], size=8), removed(2))
    assert held(events) == set(block_names(IDS[:8], block_tokens=4))


def test_blocks_are_refused_when_sizes_do_not_fit() -> None:
    translator = Translator(block_tokens=16)
    assert run(translator, stored(IDS, size=24)) == []
    assert translator.figures.unfit == 2
    assert translator.engine_block_tokens == {24: 2}


def test_few_sizes_are_remembered_when_a_publisher_tells_of_any() -> None:
    translator = Translator(block_tokens=4)
    for size in range(1, 200):
        run(translator, stored(IDS[:4], size=size))
    assert len(translator.engine_block_tokens) == 64


def test_a_block_stays_when_another_tier_holds_it_still() -> None:
    translator = Translator(block_tokens=4)
    events = run(translator, stored(IDS[:4], size=4), stored(IDS[:4], size=4, tier=Tier.HOST), removed(1))
    assert held(events) == set()
    assert held(events, Tier.HOST) == set(block_names(IDS[:4], block_tokens=4))
    # its key still leads to the next block
    events += run(translator, stored(IDS[4:8], size=4, first_key=2, parent=1, tier=Tier.HOST))
    assert held(events, Tier.HOST) == set(block_names(IDS[:8], block_tokens=4))
    run(translator, removed(1, tier=Tier.HOST))
    run(translator, stored(IDS[4:8], size=4, first_key=3, parent=1))
    assert translator.figures.orphans == 1


def test_blocks_after_an_unknown_one_are_counted_and_left_out() -> None:
    translator = Translator(block_tokens=4)
    assert run(translator, stored(IDS[:8], size=4, parent=77)) == []
    assert translator.figures.orphans == 2


def test_a_salt_and_an_image_make_other_names_when_tokens_are_the_same() -> None:
    plain, salted, image = (Translator(block_tokens=4) for _ in range(3))
    a = held(run(plain, stored(IDS[:8], size=4)))
    b = held(run(salted, stored(IDS[:8], size=4, salt="tenant")))
    with_image = WireStored(
        hashes=(1, 2),
        parent=None,
        token_ids=array("I", IDS[:8]),
        block_tokens=4,
        tier=Tier.DEVICE,
        aside="('image', 0)",
    )
    c = held(run(image, with_image))
    assert b == set(block_names(IDS[:8], block_tokens=4, salt="tenant"))
    assert not a & (b | c)
    assert not b & c


def test_only_one_group_counts_when_a_hybrid_model_has_several() -> None:
    translator = Translator(block_tokens=4)
    full = WireStored(
        hashes=(1,), parent=None, token_ids=array("I", IDS[:4]), block_tokens=4, tier=Tier.DEVICE, group=1
    )
    window = WireStored(
        hashes=(1,),
        parent=None,
        token_ids=array("I", IDS[:4]),
        block_tokens=4,
        tier=Tier.DEVICE,
        group=0,
        whole_prefix=False,
    )
    events = run(translator, window, full, WireRemoved(hashes=(1,), tier=Tier.DEVICE, group=0))
    assert held(events) == set(block_names(IDS[:4], block_tokens=4))
    events += run(translator, WireRemoved(hashes=(1,), tier=Tier.DEVICE, group=1))
    assert held(events) == set()


def test_the_oldest_are_forgotten_and_told_when_there_are_too_many() -> None:
    translator = Translator(block_tokens=4, most_blocks=3)
    events = run(translator, stored(IDS[:20], size=4))
    assert len(translator) == 3
    assert held(events) == set(block_names(IDS[:20], block_tokens=4)[2:])
    assert translator.figures.dropped == 2


def test_a_conflict_is_counted_when_a_key_stands_for_other_tokens() -> None:
    translator = Translator(block_tokens=4)
    run(translator, stored(IDS[:4], size=4), stored(IDS[4:8], size=4))
    assert translator.figures.conflicts == 1


@settings(max_examples=80, deadline=None)
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["store", "remove", "clear"]), st.integers(0, 5), st.integers(1, 4)), max_size=40
    )
)
def test_contents_are_the_engines_own_when_blocks_come_and_go(steps: list[tuple[str, int, int]]) -> None:
    """A model of an engine: chains of blocks, stored from the front and removed from the end."""
    translator = Translator(block_tokens=4)
    events: list[KvEvent] = []
    chains: dict[int, int] = {}
    for what, number, count in steps:
        ids = [1000 * number + i for i in range(64)]
        length = chains.get(number, 0)
        if what == "store" and length + count <= 16:
            parent = None if length == 0 else 100 * number + length
            part = ids[4 * length : 4 * (length + count)]
            events += run(translator, stored(part, size=4, first_key=100 * number + length + 1, parent=parent))
            chains[number] = length + count
        elif what == "remove" and length:
            gone = min(count, length)
            events += run(translator, removed(*(100 * number + length - i for i in range(gone))))
            chains[number] = length - gone
        elif what == "clear":
            events += run(translator, WireCleared())
            chains.clear()
    wanted = {
        name
        for number, length in chains.items()
        for name in block_names([1000 * number + i for i in range(4 * length)], block_tokens=4)
    }
    assert held(events) == wanted
    assert len(translator) == sum(chains.values())


def test_both_wire_forms_are_read_when_they_say_the_same() -> None:
    as_map = {
        "type": "BlockStored",
        "block_hashes": [b"\x00" * 24 + (7).to_bytes(8, "big"), 8],
        "parent_block_hash": -1,
        "token_ids": [1, 2, 3, 4],
        "block_size": 2,
        "lora_id": None,
        "medium": "CPU",
        "lora_name": None,
    }
    as_list = ["BlockStored", [7, 8], (1 << 64) - 1, [1, 2, 3, 4], 2, None, "CPU_PINNED"]
    first, second = (read_batch(msgspec.msgpack.encode([1.5, [event], 0])) for event in (as_map, as_list))
    assert first is not None
    assert second is not None
    assert first.events == second.events
    assert first.events == (
        WireStored(
            hashes=(7, 8), parent=(1 << 64) - 1, token_ids=array("I", [1, 2, 3, 4]), block_tokens=2, tier=Tier.HOST
        ),
    )


def test_extra_keys_are_told_apart_when_there_are_a_salt_an_adapter_and_an_image() -> None:
    event = {
        "type": "BlockStored",
        "block_hashes": [7],
        "parent_block_hash": None,
        "token_ids": [1, 2],
        "block_size": 2,
        "lora_id": 1,
        "medium": "GPU",
        "lora_name": "french",
        "extra_keys": [["french", ["cat.png", 3], "tenant"]],
        "group_idx": 0,
        "kv_cache_spec_kind": "sliding_window",
    }
    batch = read_batch(msgspec.msgpack.encode([1.5, [event], 0]))
    assert batch is not None
    (found,) = batch.events
    assert isinstance(found, WireStored)
    assert (found.salt, found.group, found.whole_prefix) == ("tenant", 0, False)
    assert "cat.png" in found.aside
    assert "lora:french" in found.aside


@settings(max_examples=150, deadline=None)
@given(payload=st.binary(max_size=200))
def test_no_bytes_make_the_reader_fail(payload: bytes) -> None:
    read_batch(payload)


_JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=5) | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=5),
    max_leaves=12,
)


@settings(max_examples=150, deadline=None)
@given(
    kind=st.sampled_from(["BlockStored", "BlockRemoved", "AllBlocksCleared", "Other"]),
    fields=st.lists(_JUNK, max_size=7),
    as_map=st.booleans(),
)
def test_no_event_makes_the_translation_fail(kind: str, fields: list[object], as_map: bool) -> None:
    names = ("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "extra_keys")
    event = {"type": kind, **dict(zip(names, fields, strict=False))} if as_map else [kind, *fields]
    batch = read_batch(msgspec.msgpack.encode([1.0, [event]]))
    assert batch is not None
    assert len(batch.events) + batch.unread == 1
    run(Translator(block_tokens=4), *batch.events)


@pytest.mark.parametrize("ids", [["a"], [-1], [2**32], [None], [1.5], [[1, 2]]])
def test_an_event_is_unread_when_its_tokens_are_none(ids: list[object]) -> None:
    batch = read_batch(msgspec.msgpack.encode([1.0, [["BlockStored", [7], None, ids, 1, None]]]))
    assert batch is not None
    assert (batch.events, batch.unread) == ((), 1)


def test_sequence_places_when_messages_come_in_every_way() -> None:
    sequence = Sequence()
    assert sequence.take(0, 1.0) is Place.FIRST
    assert sequence.take(1, 2.0) is Place.NEXT
    assert sequence.take(4, 3.0) is Place.AFTER_GAP
    assert sequence.missed == 2
    assert sequence.take(3, 2.5) is Place.OLD
    assert sequence.take(4, 3.0) is Place.OLD
    assert sequence.take(5, 3.5) is Place.NEXT
    assert sequence.take(0, 4.0) is Place.NEW_LIFE
    assert sequence.take(1, 4.1) is Place.NEXT


def test_a_new_life_is_seen_when_its_clock_was_set_back() -> None:
    sequence = Sequence()
    for number in range(10):
        sequence.take(number, 1000.0 + number)
    places = [sequence.take(number, 5.0 + number) for number in range(4)]
    # the third old number in a row settles it; what the first two said is lost, and the new life holds the rest
    assert places == [Place.OLD, Place.OLD, Place.NEW_LIFE, Place.NEXT]
    assert sequence.missed == 2


@settings(max_examples=100, deadline=None)
@given(lost=st.sets(st.integers(1, 29), max_size=10))
def test_what_is_missed_is_what_was_lost_when_order_is_kept(lost: set[int]) -> None:
    sequence = Sequence()
    sent = [number for number in range(31) if number not in lost]
    for number in sent:
        sequence.take(number, float(number))
    assert sequence.missed == len(lost)


class Publisher:
    """A model of an engine that publishes: what it holds, and its messages."""

    def __init__(self) -> None:
        self.chains: dict[int, int] = {}
        self.life = 0
        self.clock = 0.0
        self.messages: list[tuple[int, Batch]] = []
        self._number = 0

    def step(self, what: str, chain: int, count: int) -> None:
        length = self.chains.get(chain, 0)
        base = 10_000 * self.life + 100 * chain
        if what == "restart":
            self.chains.clear()
            self.life, self._number = self.life + 1, 0
        elif what == "store" and length + count <= 16:
            ids = array("I", [1000 * chain + i for i in range(4 * length, 4 * (length + count))])
            keys = tuple(base + length + i + 1 for i in range(count))
            parent = base + length if length else None
            self._send(WireStored(hashes=keys, parent=parent, token_ids=ids, block_tokens=4, tier=Tier.DEVICE))
            self.chains[chain] = length + count
        elif what == "remove" and length:
            gone = min(count, length)
            self._send(removed(*(base + length - i for i in range(gone))))
            self.chains[chain] = length - gone

    def _send(self, event: WireEvent) -> None:
        self.clock += 1.0
        self.messages.append((self._number, Batch(at_s=self.clock, events=(event,))))
        self._number += 1

    def holds(self) -> set[int]:
        return {
            name
            for chain, length in self.chains.items()
            for name in block_names([1000 * chain + i for i in range(4 * length)], block_tokens=4)
        }


@settings(max_examples=200, deadline=None)
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["store", "store", "remove", "remove", "restart"]), st.integers(0, 4), st.integers(1, 4)
        ),
        max_size=40,
    ),
    faults=st.lists(st.sampled_from(["", "", "", "lost", "twice", "late"]), max_size=60),
)
def test_what_is_believed_is_a_part_of_what_is_held_when_messages_are_lost_doubled_or_late(
    steps: list[tuple[str, int, int]], faults: list[str]
) -> None:
    publisher = Publisher()
    for step in steps:
        publisher.step(*step)
    state = FeedState(source=KvSource(replica="a", endpoint="", block_tokens=4), translator=Translator(block_tokens=4))
    arriving: list[tuple[int, Batch]] = []
    late: list[tuple[int, Batch]] = []
    for place, message in enumerate(publisher.messages):
        # the first message of a life comes through: a life whose beginning is lost, and whose numbers go on by chance
        # where the old one's ended, is told by the engine's counters (`replica_health`), not by its events
        fault = faults[place] if place < len(faults) and message[0] > 0 else ""
        if fault == "late":
            late.append(message)
            continue
        arriving += [message] * {"lost": 0, "twice": 2}.get(fault, 1)
        arriving += late
        late = []
    believed: set[int] = set()
    for number, batch in arriving:
        for event in take(state, number, batch):
            if isinstance(event, KvStored):
                believed |= set(event.blocks)
            elif isinstance(event, KvRemoved):
                believed -= set(event.blocks)
            else:
                believed.clear()
    # the last message has to arrive: what follows a message that is lost at the very end is known to nobody yet
    ended = not publisher.messages or (bool(arriving) and arriving[-1] is publisher.messages[-1])
    restarted_unheard = publisher.life > 0 and steps and publisher._number == 0
    if ended and not restarted_unheard:
        assert believed <= publisher.holds()
        if arriving == publisher.messages:
            assert believed == publisher.holds()
