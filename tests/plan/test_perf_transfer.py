"""Moving caches: rates by piece size, tiers, prefill to decode server, and against computing again."""

from __future__ import annotations

import pytest

from longproof.errors import UsageError
from longproof.hardware.catalogue import find_device
from longproof.plan.perf_transfer import (
    CopyMethod,
    Tier,
    disk_tier,
    host_copy_rate,
    host_tier,
    pd_transfer_time,
    remote_tier,
    restore_break_even_tokens,
    restore_or_recompute,
    restore_time,
)
from longproof.plan.perf_work import AttentionWork, LayerWork, ModelWork

H100 = find_device("h100-sxm")
KIB = 1024
# The shape of Llama-3.1-8B: 131,072 B per token, 7e9 multiply-adds per token.
EIGHT_B = ModelWork(
    name="8b",
    layers=(
        LayerWork(
            dense_elements=218_000_000, dense_bytes=436e6,
            attention=AttentionWork(query_heads=32, kv_heads=8, score_dim=128, value_dim=128, cached_bytes=4096.0),
        ),
    ) * 32,
    hidden_size=4096,
)  # fmt: skip


def test_small_pieces_waste_the_host_link() -> None:
    # vLLM blog 2026-01-08, figure 4: DMA 1.2, 14.5, 44 GB/s for 4 KiB, 64 KiB, 1 MiB
    rates = [host_copy_rate(H100, size * KIB) / 1e9 for size in (4, 64, 1024)]
    assert rates == pytest.approx([1.2, 14.5, 44.4], rel=0.05)


def test_a_copy_kernel_is_better_for_small_and_worse_for_large_pieces() -> None:
    small, large = 4 * KIB, 16 * 1024 * KIB
    assert host_copy_rate(H100, small, CopyMethod.KERNEL) > 5 * host_copy_rate(H100, small)
    assert host_copy_rate(H100, large, CopyMethod.KERNEL) < host_copy_rate(H100, large)


def test_a_whole_prompt_returns_from_host_memory_as_published() -> None:
    # 50,000 tokens of 131,072 B = 6.55 GB: 15 ms + 6.55 GB / 45 GB/s = 160.6 ms (read from the plot: 152 ± 10)
    back = restore_time(EIGHT_B.sequence_bytes(50_000), host_tier(H100))
    assert back.seconds == pytest.approx(0.015 + 6.5536e9 / 45e9)
    assert back.low < 0.152 < back.high


def test_tiers_are_ordered_by_rate() -> None:
    gigabyte = 1e9
    # eight 400 Gb/s NICs: 194 GB/s; host 45; one disk 6.55
    remote, host, disk = remote_tier(400e9), host_tier(H100), disk_tier()
    assert remote.bytes_per_second == pytest.approx(194e9)
    assert restore_time(gigabyte, remote).seconds < restore_time(gigabyte, host).seconds
    assert restore_time(gigabyte, host).seconds < restore_time(gigabyte, disk).seconds
    assert disk_tier(4).bytes_per_second == 4 * disk.bytes_per_second


def test_a_hand_over_to_the_decode_server_takes_what_mooncake_measured() -> None:
    # 2,304 MiB over 8 NICs of 200 GB/s in all: 16.43 ms; 146 MiB: 1.5 ms
    assert pd_transfer_time(2304 * KIB * KIB, 200e9).seconds == pytest.approx(16.43e-3, rel=0.05)
    assert pd_transfer_time(146 * KIB * KIB, 200e9).seconds == pytest.approx(1.5e-3, rel=0.10)


def test_fetching_beats_computing_from_about_a_thousand_tokens() -> None:
    # At 1,000 tokens 15 + 2.9 ms to fetch; computing 1.4e13 FLOP at 594 TFLOP/s takes 23.8 ms
    assert restore_or_recompute(EIGHT_B, H100, 1_000, host_tier(H100)).restore_wins
    border = restore_break_even_tokens(EIGHT_B, H100, host_tier(H100))
    assert border is not None
    assert not restore_or_recompute(EIGHT_B, H100, border - 1, host_tier(H100)).restore_wins
    assert restore_or_recompute(EIGHT_B, H100, border, host_tier(H100)).restore_wins


def test_a_slow_tier_never_wins_and_that_is_certain() -> None:
    slow = Tier(name="tape", bytes_per_second=1e6)
    assert restore_break_even_tokens(EIGHT_B, H100, slow, limit_tokens=1 << 20) is None
    assert restore_or_recompute(EIGHT_B, H100, 10_000, slow).certain


def test_an_unknown_host_link_is_refused() -> None:
    with pytest.raises(UsageError, match="host link"):
        host_tier(find_device("gb200"))
