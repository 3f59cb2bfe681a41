"""Names of blocks: equal prefixes have equal names, everything else differs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longproof.policy.hashing import ROOT, block_names, chain, pack, root

TOKENS = st.lists(st.integers(0, 2**32 - 1), max_size=80)


@given(TOKENS, TOKENS, st.integers(1, 9))
def test_names_agree_exactly_as_far_as_the_prompts_do_when_two_share_a_prefix(
    first: list[int], second: list[int], block_tokens: int
) -> None:
    ours, theirs = (block_names(ids, block_tokens=block_tokens) for ids in (first, second))
    same_tokens = 0
    while same_tokens < min(len(first), len(second)) and first[same_tokens] == second[same_tokens]:
        same_tokens += 1
    same_blocks = same_tokens // block_tokens
    assert ours[:same_blocks] == theirs[:same_blocks]
    assert not set(ours[same_blocks:]) & set(theirs[same_blocks:])


@given(TOKENS, st.integers(1, 9), st.integers(0, 8))
def test_a_chain_goes_on_from_its_parent_when_it_is_told_in_pieces(
    ids: list[int], block_tokens: int, cut_blocks: int
) -> None:
    whole = block_names(ids, block_tokens=block_tokens)
    cut = min(cut_blocks, len(whole))
    head = block_names(ids[: cut * block_tokens], block_tokens=block_tokens)
    parent = head[-1] if head else ROOT
    assert head + chain(pack(ids[cut * block_tokens :]), block_tokens=block_tokens, parent=parent) == whole


@given(TOKENS.filter(bool), st.text(min_size=1), st.text())
def test_no_name_is_shared_when_salts_differ(ids: list[int], salt: str, other: str) -> None:
    if salt == other:
        other = ""
    assert not set(block_names(ids, block_tokens=1, salt=salt)) & set(block_names(ids, block_tokens=1, salt=other))


def test_only_whole_blocks_have_names_when_the_prompt_ends_within_one() -> None:
    assert len(block_names(range(35), block_tokens=16)) == 2  # 35 = 2 · 16 + 3
    assert block_names([], block_tokens=16) == ()


def test_the_root_is_the_same_everywhere_when_nothing_is_salted() -> None:
    assert root() == root("") == ROOT
    assert root("tenant a") != root("tenant b")


def test_what_is_no_token_id_is_refused_when_packed() -> None:
    with pytest.raises(OverflowError):
        pack([-1])
    with pytest.raises(OverflowError):
        pack([2**32])
    with pytest.raises(ValueError, match="0 tokens"):
        chain(b"", block_tokens=0)
