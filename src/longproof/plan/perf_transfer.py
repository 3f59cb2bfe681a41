"""Moving a cache instead of computing it: from host memory, disk or a remote pool, and from a prefill to a decode
server.

    time = fixed + pieces x per piece + bytes / rate

Figures: host to H100 over PCIe 5 by piece size (vLLM blog, kv-offloading-connector, 2026-01-08: 1.2, 14.5, 44, 51 GB/s
by DMA for 4 KiB, 64 KiB, 1 MiB, 16 MiB; 12.5, 42, 47, 48 by a copy kernel); whole prompts 15 ms + bytes / 45 GB/s; a
prefill-decode pair over 8 RoCE NICs 0.4 ms + bytes / 152 of 200 GB/s (Mooncake docs, vllm-v1-pd-performance); NVMe 6.55
GB/s per disk and 194 GB/s from a remote pool over 8 x 400 Gb/s (vLLM blog, pegaflow, 2026-05-18).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from longproof.hardware.device import Device
from longproof.plan.perf_estimate import Part, Precision, Rates, TimeEstimate, known
from longproof.plan.perf_prefill import Prompt, prefill_time
from longproof.plan.perf_work import ModelWork

TRANSFER_BAND = 0.15
"""Half-width that covers the figures above."""
NVME_BYTES_PER_SECOND = 6.55e9
"""Steady reads of one NVMe disk."""
REMOTE_NIC_SHARE = 194 / 400
"""Share of the NICs' line rate that pulls of 1 GiB and more reach: 194 of 8 x 50 GB/s."""
PD_NIC_SHARE, PD_FIXED_SECONDS = 0.76, 0.4e-3
"""Share of the NICs' line rate between a prefill and a decode server, and what each transfer costs besides."""
_RESTORE_SHARE, _RESTORE_FIXED_SECONDS = 45 / 64, 15e-3


class CopyMethod(StrEnum):
    """How pieces cross the host link."""

    DMA = "dma"
    KERNEL = "kernel"


# method → (seconds per piece, share of the link's one-way rate)
_COPY = {CopyMethod.DMA: (3.24e-6, 51 / 64), CopyMethod.KERNEL: (0.25e-6, 48 / 64)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """A place a cache can be fetched from. `fixed_seconds` per request."""

    name: str
    bytes_per_second: float
    fixed_seconds: float = 0.0
    band: float = TRANSFER_BAND


def host_tier(device: Device) -> Tier:
    """Host memory behind the device's own link, in large pieces. Raises UsageError when the link is not known."""
    rate = known(device.host_link.bytes_per_second, f"host link of {device.title}")
    return Tier(name="host memory", bytes_per_second=_RESTORE_SHARE * rate, fixed_seconds=_RESTORE_FIXED_SECONDS)


def disk_tier(disks: int = 1) -> Tier:
    """So many NVMe disks read in parallel."""
    return Tier(name="disk", bytes_per_second=disks * NVME_BYTES_PER_SECOND, fixed_seconds=_RESTORE_FIXED_SECONDS)


def remote_tier(nics_bytes_per_second: float) -> Tier:
    """A remote pool behind NICs of that line rate in all."""
    return Tier(
        name="remote pool",
        bytes_per_second=REMOTE_NIC_SHARE * nics_bytes_per_second,
        fixed_seconds=_RESTORE_FIXED_SECONDS,
    )


def host_copy_rate(device: Device, piece_bytes: float, method: CopyMethod = CopyMethod.DMA) -> float:
    """Bytes per second from host to device in pieces of that size: small pieces waste the link, so layout decides."""
    per_piece, share = _COPY[method]
    rate = share * known(device.host_link.bytes_per_second, f"host link of {device.title}")
    return piece_bytes / (per_piece + piece_bytes / rate)


def restore_time(cache_bytes: float, tier: Tier) -> TimeEstimate:
    """Time until a cache of that size is back on the device."""
    return TimeEstimate(
        parts=(
            Part(name="fixed", seconds=tier.fixed_seconds),
            Part(name="transfer", seconds=cache_bytes / tier.bytes_per_second),
        ),
        band=tier.band,
    )


def pd_transfer_time(cache_bytes: float, nics_bytes_per_second: float) -> TimeEstimate:
    """Time to hand a cache from a prefill to a decode server over NICs of that line rate in all."""
    return TimeEstimate(
        parts=(
            Part(name="fixed", seconds=PD_FIXED_SECONDS),
            Part(name="transfer", seconds=cache_bytes / (PD_NIC_SHARE * nics_bytes_per_second)),
        ),
        band=TRANSFER_BAND,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreOrRecompute:
    """Both ways to have a prefix's cache. `restore_wins` compares the middles of the bands, `certain` the ends."""

    restore: TimeEstimate
    recompute: TimeEstimate

    @property
    def restore_wins(self) -> bool:
        """Whether fetching is the faster one."""
        return self.restore.seconds < self.recompute.seconds

    @property
    def certain(self) -> bool:
        """Whether that holds over both error bands."""
        return self.restore.high < self.recompute.low or self.recompute.high < self.restore.low


def restore_or_recompute(
    work: ModelWork,
    device: Device,
    tokens: int,
    tier: Tier,
    *,
    precision: Precision | None = None,
    rates: Rates | None = None,
) -> RestoreOrRecompute:
    """Fetch the cache of a prefix of `tokens`, or compute it again, on one device."""
    return RestoreOrRecompute(
        restore=restore_time(work.sequence_bytes(tokens), tier),
        recompute=prefill_time(work, device, Prompt(new_tokens=tokens), precision=precision, rates=rates),
    )


def restore_break_even_tokens(
    work: ModelWork,
    device: Device,
    tier: Tier,
    *,
    precision: Precision | None = None,
    rates: Rates | None = None,
    limit_tokens: int = 1 << 24,
) -> int | None:
    """Shortest prefix for which fetching beats computing; None when it never does up to `limit_tokens`.

    The advantage grows with length (computing is at least linear, fetching linear), so bisection finds the border.
    """

    def wins(tokens: int) -> bool:
        return restore_or_recompute(work, device, tokens, tier, precision=precision, rates=rates).restore_wins

    if not wins(limit_tokens):
        return None
    low, high = 0, limit_tokens
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if wins(middle) else (middle, high)
    return high
