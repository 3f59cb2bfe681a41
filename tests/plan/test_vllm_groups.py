"""vLLM groups: which layers share a block table, and what a block costs on each stage."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longproof.errors import UsageError
from longproof.plan.vllm_groups import bytes_per_block, group_layers, padding_layers
from longproof.plan.vllm_specs import CacheKind, CacheSpec, LayerCache

KINDS = {"f": CacheKind.FULL, "s": CacheKind.SLIDING, "m": CacheKind.STATE, "l": CacheKind.MLA}


def spec(letter: str, page: int = 1024, block: int = 16) -> CacheSpec:
    return CacheSpec(
        kind=KINDS[letter],
        shape=(letter,),
        block_tokens=block,
        content_bytes=page,
        page_bytes=page,
        window_tokens=128 if letter == "s" else 0,
        state_blocks=1 if letter == "m" else 0,
    )


def caches(pattern: str, **pages: int) -> list[LayerCache]:
    """One cache per letter; `pages` gives a letter's page size."""
    return [LayerCache(layer=i, spec=spec(letter, pages.get(letter, 1024))) for i, letter in enumerate(pattern)]


def layers(pattern: str, **pages: int) -> list[tuple[str, tuple[int, ...]]]:
    return [
        (group.spec.kind.value, tuple(m.layer for m in group.members))
        for group in group_layers(caches(pattern, **pages))
    ]


def test_all_layers_are_one_group_when_they_need_the_same_blocks() -> None:
    assert layers("ffff") == [("full", (0, 1, 2, 3))]


def test_a_latent_and_its_indexer_are_one_group_when_only_their_rows_differ() -> None:
    # 656 + 132 bytes per token: one block table, a block costs the sum of the pages
    groups = group_layers(
        [LayerCache(layer=i // 2, spec=spec("l", page)) for i, page in enumerate((10_496, 2112, 10_496, 2112))]
    )

    assert len(groups) == 1
    assert bytes_per_block(groups, 0, 2) == 2 * (10_496 + 2112)
    assert bytes_per_block(groups, 0, 1) == 10_496 + 2112


def test_the_larger_kind_is_split_when_it_has_many_more_layers() -> None:
    # 2 full, 4 sliding: groups of 2; every second sliding layer, so that a pipeline stage has its share of both
    assert layers("fssfss") == [("full", (0, 3)), ("sliding", (1, 4)), ("sliding", (2, 5))]


def test_the_smaller_kind_is_padded_when_both_are_nearly_equal() -> None:
    # 13 full and 12 sliding (a drafted layer more): 13 < 12 x 1.5, so two groups of 13, one page of them padding
    groups = group_layers(caches("fs" * 12 + "f"))

    assert [len(group.members) for group in groups] == [13, 12]
    assert padding_layers(groups) == 1
    assert bytes_per_block(groups, 0, 25) == 13 * 1024


def test_the_last_group_is_padded_when_the_layers_do_not_divide() -> None:
    # 17 attention layers (16 and a draft), 48 states: 3 groups of at most 17, padded from 16 to 17 three times
    groups = group_layers(caches("mmmf" * 16 + "f"))

    assert sorted(len(group.members) for group in groups) == [16, 16, 16, 17]
    assert padding_layers(groups) == 3


def test_a_smaller_page_takes_more_tokens_when_it_divides_the_largest() -> None:
    groups = group_layers(caches("fssfss", f=1024, s=2048))

    full = next(group for group in groups if group.spec.kind is CacheKind.FULL)
    assert full.spec.block_tokens == 32
    assert full.spec.page_bytes == 2048


def test_a_smaller_page_is_padded_when_it_does_not_divide_the_largest() -> None:
    groups = group_layers(caches("fssfss", f=1024, s=1536))

    full = next(group for group in groups if group.spec.kind is CacheKind.FULL)
    assert full.spec.block_tokens == 16
    assert full.spec.page_bytes == 1536


def test_a_state_is_padded_when_attention_pages_are_larger() -> None:
    groups = group_layers(caches("mf", m=100, f=1024))

    assert {group.spec.page_bytes for group in groups} == {1024}


def test_grouping_is_refused_when_an_mla_page_does_not_divide() -> None:
    with pytest.raises(UsageError, match="MLA pages of 1000"):
        group_layers(caches("lss", l=1000, s=1536))


def test_there_is_no_group_when_nothing_is_cached() -> None:
    assert group_layers([]) == ()
    assert bytes_per_block((), 0, 10) == 0


def test_a_stage_pays_its_own_layers_when_the_model_is_split() -> None:
    # full 0, 3 | sliding 1, 4 | sliding 2, 5: the first three layers hold one page of each group
    groups = group_layers(caches("fssfss"))

    assert bytes_per_block(groups, 0, 3) == 1024
    assert bytes_per_block(groups, 3, 6) == 1024
    assert bytes_per_block(groups, 0, 6) == 2048


@given(st.text(alphabet="fsm", min_size=1, max_size=40))
def test_every_layer_is_in_exactly_one_group_whatever_the_pattern(pattern: str) -> None:
    groups = group_layers(caches(pattern))

    assert sorted(m.layer for group in groups for m in group.members) == list(range(len(pattern)))
    assert len({group.spec.page_bytes for group in groups}) == 1
