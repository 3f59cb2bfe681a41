"""The typed form of a device file.

    Device
    ├── nominal_memory_bytes, usable_memory_bytes, bandwidth        what the label says, what software sees
    ├── dense_flops {bf16, fp16, fp8, int8, fp4}                    without structured sparsity
    ├── scale_up, scale_out, host_link                              bytes per second in ONE direction, per device
    ├── power (…), price
    └── prefill, decode                                             fitted efficiencies, each with its band

A figure is a `Reading`: `Measured` with its source and date, or `Unknown` where no source was found. Nothing is filled
in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from longproof.domain.measure import Measured, Reading, Unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleUp:
    """The link between devices of one domain (NVLink, Infinity Fabric, ICI, else PCIe).

    `devices`: the domain's size. `switched`: every pair at full speed at once (NVSwitch), so that an all-reduce is not
    bound to a ring.
    """

    name: str
    bytes_per_second: Reading[float]
    devices: int
    switched: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLink:
    """The link to host memory, one direction."""

    name: str
    bytes_per_second: Reading[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardPower:
    """A power limit the device is sold or run with. `note`: which board."""

    watts: Reading[float]
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceRange:
    """Dollars per device and hour, on demand: the lowest listing, a typical one, the highest."""

    low: Reading[float]
    typical: Reading[float]
    high: Reading[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiency:
    """The share of a peak that is reached, with a relative half-width.

    `value` 0.6 and `band` 0.1: between 0.54 and 0.66. `fitted_on`: what it was fitted on. For prefill the peak is dense
    FLOP/s, for decode memory bandwidth.
    """

    value: float
    band: float
    fitted_on: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One accelerator, or one CPU. `name` is the key; `aliases` are other spellings that mean it."""

    name: str
    title: str
    vendor: str
    aliases: tuple[str, ...]
    nominal_memory_bytes: Reading[int]
    usable_memory_bytes: Reading[int]
    bandwidth_bytes_per_second: Reading[float]
    dense_flops: Mapping[str, Reading[float]]
    scale_up: ScaleUp
    scale_out_bytes_per_second: Reading[float]
    host_link: HostLink
    power: tuple[BoardPower, ...]
    price: PriceRange
    prefill: Reading[Efficiency]
    decode: Reading[Efficiency]

    def memory_bytes(self) -> Reading[int]:
        """What software sees, else the nominal size.

        Labels count loosely: HBM parts show about as many GiB as their label has GB (H100 "80 GB" is 79.2 GiB), so the
        nominal size is on the low side for them.
        """
        return self.usable_memory_bytes if isinstance(self.usable_memory_bytes, Measured) else self.nominal_memory_bytes

    def flops(self, dtype: str) -> Reading[float]:
        """Dense FLOP/s for a dtype of matrix products; float16 and bfloat16 stand in for one another, nothing else
        does."""
        found = self.dense_flops.get(dtype, Unknown(reason=f"{self.title} has no {dtype} figure"))
        if isinstance(found, Unknown) and dtype in ("bf16", "fp16"):
            return self.dense_flops.get("fp16" if dtype == "bf16" else "bf16", found)
        return found
