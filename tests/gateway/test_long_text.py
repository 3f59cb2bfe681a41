"""Stretches of text: whatever is remembered, the ids are those of the whole text."""

from __future__ import annotations

import random
from array import array
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

from longproof.gateway.long_text import LONGEST_PIECE_CHARS, LongText, Unstretchable
from longproof.gateway.text_memory import Stretch, TextMemory, digest

_WORDS = ("the", "lake", "is", "deep", "and", "cold,", "don't", "swim", "1984", "naïve", "café", "Größe", "東京", "😀")
_WORDS = (*_WORDS, "\n\n\t", "", "x=1;", "<|end|>")


def _sample(seed: int, words: int) -> str:
    rng = random.Random(seed)
    return "".join(rng.choice([" ", "", "\n", "  "]) + rng.choice(_WORDS) for _ in range(words))


def _trained(kind: str) -> Tokenizer:
    tokenizer: Any
    trainer: Any
    if kind == "byte-level":
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        trainer = trainers.BpeTrainer(
            vocab_size=600, special_tokens=["<|end|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
        )
    else:  # as SentencePiece does it: one piece for the whole text, a mark in front, normalised
        tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
        tokenizer.normalizer = normalizers.NFC()
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
        trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=["<unk>", "<|end|>"])
    tokenizer.train_from_iterator([_sample(seed, 400) for seed in range(8)], trainer)
    return tokenizer


@pytest.fixture(scope="module", params=["byte-level", "sentencepiece"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return _trained(request.param)


def _whole(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False).ids


def test_ids_are_those_of_the_whole_text_when_it_is_cut_into_strides(tokenizer: Tokenizer) -> None:
    long = LongText(tokenizer, TextMemory(), stride_chars=512)
    for seed in range(20, 40):
        text = _sample(seed, 900)
        assert long.encode(text).tolist() == _whole(tokenizer, text), f"seed {seed}"


def test_next_turn_encodes_only_what_is_new_when_the_conversation_is_known(tokenizer: Tokenizer) -> None:
    memory = TextMemory()
    long = LongText(tokenizer, memory, stride_chars=512)
    text = _sample(1, 3000)
    long.encode(text)
    known = len(memory)
    misses = memory.misses
    assert known >= (len(text) - 1) // 512 > 10
    again = text + _sample(2, 40)
    assert long.encode(again).tolist() == _whole(tokenizer, again)
    # every full stride of the old text was found; at most the one that the new text completes was not
    assert memory.misses - misses <= 1
    assert long.in_one_piece == 0


@settings(max_examples=60, deadline=None)
@given(
    parts=st.lists(
        st.text(max_size=120) | st.sampled_from([" " * 700, "a" * 900, "<|end|>" * 40, "\n" * 300]), max_size=12
    ),
    cut=st.integers(0, 2000),
)
def test_ids_agree_when_texts_are_odd_and_share_a_beginning(parts: list[str], cut: int) -> None:
    text = "".join(parts)
    for tokenizer in _both():
        long = LongText(tokenizer, TextMemory(), stride_chars=256)
        assert long.encode(text[:cut]).tolist() == _whole(tokenizer, text[:cut])
        assert long.encode(text).tolist() == _whole(tokenizer, text)


_made: list[Tokenizer] = []


def _both() -> list[Tokenizer]:
    if not _made:
        _made.extend(_trained(kind) for kind in ("byte-level", "sentencepiece"))
    return _made


def test_text_is_encoded_in_one_piece_when_a_word_is_longer_than_a_stride() -> None:
    tokenizer = _both()[0]
    long = LongText(tokenizer, TextMemory(), stride_chars=256)
    text = "\u0001" * 2000  # one pretoken; each byte a token that is the same as its neighbours
    assert long.encode(text).tolist() == _whole(tokenizer, text)


def test_memory_lets_the_oldest_go_when_its_bytes_are_used_up() -> None:
    memory = TextMemory(capacity_bytes=3 * (400 + 4 * 100))  # room for three stretches of 100 ids
    names = [digest(b"", str(number)) for number in range(4)]
    for name in names[:3]:
        memory.put(name, Stretch(ids=array("I", [7] * 100), restart_char=0, settled_char=0, overlap_tokens=0))
    assert memory.get(names[0]) is not None  # used: the second is now the oldest
    memory.put(names[3], Stretch(ids=array("I", [7] * 100), restart_char=0, settled_char=0, overlap_tokens=0))
    assert memory.get(names[1]) is None
    assert memory.get(names[0]) is not None
    assert memory.held_bytes == 3 * 800


def test_digests_differ_when_what_stands_before_differs() -> None:
    assert digest(digest(b"", "a"), "b") != digest(digest(b"", "b"), "b")
    assert digest(digest(b"", "a"), "b") == digest(digest(b"", "a"), "b")


def test_a_text_is_refused_when_it_is_too_long_for_one_piece_and_nothing_settles() -> None:
    tokenizer = Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))  # one token for a word, however long
    long = LongText(tokenizer, TextMemory(), stride_chars=256)
    short, endless = "x" * 2_000, "x" * (LONGEST_PIECE_CHARS + 1)
    assert long.encode(short).tolist() == [0]
    assert long.in_one_piece == 1
    with pytest.raises(Unstretchable):
        long.encode(endless)
