"""How long collectives take between the devices of a layout.

    domain    the devices joined by the scale-up link (8 GPUs on NVSwitch, 72 in an NVL72, 2 cards on PCIe)
    beyond    one NIC per device

An all-reduce inside a switched domain moves each byte once up and once down; on a ring 2(n-1)/n times. Across n domains
of d devices each device carries 1/d of the data around a ring of n. Time = bytes / (share x line rate) + a latency per
call, which is all that matters for one decoded token.

The shares are fitted: 0.6 of NVLink reproduces TP16 and TP32 of Llama-3.1-405B and the NVL32 figures; 0.52 of a 400
Gb/s NIC is Table 5 of arXiv:2411.01783 (26 of 50 GB/s). The latencies are its Table 7 (TP8 to TP32 time per token).
"""

from __future__ import annotations

from longproof.hardware.device import Device
from longproof.plan.perf_estimate import known

DOMAIN_SHARE, UNSWITCHED_SHARE = 0.60, 0.70
"""Share of the scale-up link's one-way rate that a large collective reaches, with and without a switch (the second:
Qwen3.5-397B TP4 on PCIe 5, time to first token of 8k to 64k)."""
NIC_SHARE = 0.52
"""Share of a NIC's rate that SendRecv reaches in an 8-way ring (26 of 50 GB/s)."""
ALL_TO_ALL_SHARE = 0.98
"""Share of a NIC's rate that All2All reaches beyond its latency (Table 5: 9.8 MB in 424 us, 39.3 MB in 1023 us)."""
ALL_TO_ALL_SECONDS = 225e-6
"""Latency of one All2All of prefill (same two figures)."""
SEND_SECONDS = 35e-6
"""Latency of one SendRecv across hosts (Table 5: 3.3 MB in 166 us)."""
SWITCHED_SECONDS, UNSWITCHED_SECONDS = 20e-6, 30e-6
"""Latency of one small all-reduce inside a domain, with and without a switch."""
SMALL_SHARE = 0.16
"""Share of the scale-up rate that messages of some hundred kilobytes reach, as one decode step sends them (GLM-5.1 on 8
PCIe cards, batches of 1 to 16: 10 of 64 GB/s)."""
DOMAIN_HOP_SECONDS = 31e-6
"""More latency for each further domain (Table 7: TP16 39.5 ms and TP32 47.3 ms per token)."""


def scale_up_rate(device: Device) -> float:
    """Bytes per second one device sends inside its domain. Raises UsageError when not known."""
    return known(device.scale_up.bytes_per_second, f"scale-up link of {device.title}")


def domain_rate(device: Device) -> float:
    """Bytes per second a large collective reaches inside the domain, per device and direction."""
    return (DOMAIN_SHARE if device.scale_up.switched else UNSWITCHED_SHARE) * scale_up_rate(device)


def scale_out_rate(device: Device) -> float:
    """Bytes per second one device sends to other domains. Raises UsageError when not known."""
    return known(device.scale_out_bytes_per_second, f"network rate per {device.title}")


def domains(device: Device, ranks: int) -> int:
    """Scale-up domains that `ranks` devices span."""
    return -(-ranks // max(1, device.scale_up.devices))


def all_reduce_seconds(device: Device, ranks: int, data_bytes: float) -> float:
    """Bandwidth time of an all-reduce of `data_bytes` held by each of `ranks` devices."""
    if ranks <= 1:
        return 0.0
    outer = domains(device, ranks)
    inner = ranks // outer
    seconds = 0.0
    if inner > 1:
        factor = 1.0 if device.scale_up.switched else 2 * (inner - 1) / inner
        seconds += factor * data_bytes / domain_rate(device)
    if outer > 1:
        seconds += 2 * (outer - 1) / outer * data_bytes / inner / (NIC_SHARE * scale_out_rate(device))
    return seconds


def small_all_reduce_seconds(device: Device, ranks: int, data_bytes: float) -> float:
    """One all-reduce of a decode step: latency, and a few hundred kilobytes at the rate small messages reach."""
    if ranks <= 1:
        return 0.0
    inside = SWITCHED_SECONDS if device.scale_up.switched else UNSWITCHED_SECONDS
    moved = 2 * (ranks - 1) / ranks * data_bytes / (SMALL_SHARE * scale_up_rate(device))
    return inside + DOMAIN_HOP_SECONDS * (domains(device, ranks) - 1) + moved


def small_gather_seconds(device: Device, ranks: int, data_bytes: float) -> float:
    """Bandwidth time of gathering `data_bytes` from `ranks` devices in one decode step."""
    return 0.0 if ranks <= 1 else (ranks - 1) / ranks * data_bytes / (SMALL_SHARE * scale_up_rate(device))


def all_to_all_seconds(device: Device, ranks: int, sent_bytes: float) -> float:
    """Bandwidth time of an all-to-all in which each rank sends `sent_bytes` in all, the part that stays included."""
    if ranks <= 1:
        return 0.0
    outer = domains(device, ranks)
    leaving = sent_bytes * (ranks - 1) / ranks
    if outer == 1:
        return leaving / domain_rate(device)
    return sent_bytes * (outer - 1) / outer / (ALL_TO_ALL_SHARE * scale_out_rate(device))


def send_seconds(
    device: Device, ranks_of_a_group: int, data_bytes: float, *, across_hosts: bool | None = None
) -> float:
    """One SendRecv to the next rank, where neighbours are `ranks_of_a_group` devices apart (the TP size under CP).

    `across_hosts` None: they are when a group fills a domain.
    """
    far = ranks_of_a_group >= device.scale_up.devices if across_hosts is None else across_hosts
    if far:
        return SEND_SECONDS + data_bytes / (NIC_SHARE * scale_out_rate(device))
    return SEND_SECONDS / 2 + data_bytes / domain_rate(device)
