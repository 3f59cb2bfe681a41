"""A predicted time: what it is made of, and how far it can be off.

Times here are float seconds, not integer nanoseconds: a decode step grows by 0.04 ns per cached token.
"""

from __future__ import annotations

from dataclasses import dataclass

from longproof.domain.measure import Measured, Reading
from longproof.errors import UsageError
from longproof.hardware.device import Device


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One term of a time. `name`: weights, kv, attention, all-reduce …"""

    name: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeEstimate:
    """A time as the sum of its parts. `band`: relative half-width, 0.1 = ±10 %. `notes`: what was assumed."""

    parts: tuple[Part, ...]
    band: float
    notes: tuple[str, ...] = ()

    @property
    def seconds(self) -> float:
        """The sum of the parts."""
        return sum(part.seconds for part in self.parts)

    @property
    def low(self) -> float:
        """The fast end of the band, in seconds."""
        return self.seconds * max(0.0, 1 - self.band)

    @property
    def high(self) -> float:
        """The slow end of the band, in seconds."""
        return self.seconds * (1 + self.band)

    @property
    def ns(self) -> int:
        """The time in nanoseconds, rounded."""
        return round(self.seconds * 1e9)

    def part(self, name: str) -> float:
        """Seconds of one part, 0 when it is not there."""
        return sum(part.seconds for part in self.parts if part.name == name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """What share of a device's peaks a run reaches, and the fixed costs beside it.

    `prefill`: share of dense FLOP/s. `decode`: share of memory bandwidth. `layer_seconds`, `expert_layer_seconds`: time
    of one decode step per layer that no byte explains (kernel launches, norms, routing). The bands are relative.
    """

    prefill: float
    prefill_band: float
    decode: float
    decode_band: float
    layer_seconds: float = 54e-6
    expert_layer_seconds: float = 38e-6
    notes: tuple[str, ...] = ()


IDEAL = Rates(prefill=1.0, prefill_band=0.0, decode=1.0, decode_band=0.0, layer_seconds=0.0, expert_layer_seconds=0.0)
"""Every peak reached and nothing else counted: the roofline, a lower bound of any time."""

# Where no run of a device was found. The fitted devices lie between 0.60 and 0.885 (prefill) and 0.80 and 0.915
# (decode); the bands cover them.
ASSUMED_PREFILL, ASSUMED_PREFILL_BAND = 0.65, 0.40
ASSUMED_DECODE, ASSUMED_DECODE_BAND = 0.85, 0.25


def rates_of(device: Device) -> Rates:
    """The rates fitted for the device, or the assumed ones with their wider bands and a note that says so."""
    notes: list[str] = []
    prefill, prefill_band = ASSUMED_PREFILL, ASSUMED_PREFILL_BAND
    decode, decode_band = ASSUMED_DECODE, ASSUMED_DECODE_BAND
    if isinstance(device.prefill, Measured):
        prefill, prefill_band = device.prefill.value.value, device.prefill.value.band
    else:
        notes.append(f"prefill efficiency of {device.title} is assumed: no published run was found")
    if isinstance(device.decode, Measured):
        decode, decode_band = device.decode.value.value, device.decode.value.band
    else:
        notes.append(f"decode efficiency of {device.title} is assumed: no published run was found")
    return Rates(prefill=prefill, prefill_band=prefill_band, decode=decode, decode_band=decode_band, notes=tuple(notes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """Dtypes of the matrix products: `weights` for projections and experts, `attention` for scores and values.

    Keys of `Device.dense_flops`. A device without a figure for one of them computes in bf16.
    """

    weights: str = "bf16"
    attention: str = "bf16"


def peak_flops(device: Device, dtype: str) -> float:
    """Dense FLOP/s of a device, falling back to bf16. Raises UsageError when neither has a sourced figure."""
    found = device.flops(dtype)
    if not isinstance(found, Measured):
        found = device.flops("bf16")
    return known(found, f"dense FLOP/s of {device.title}")


def known(reading: Reading[float], what: str) -> float:
    """The value, or UsageError: a time cannot be predicted without it."""
    if isinstance(reading, Measured):
        return reading.value
    raise UsageError(
        f"{what} is not known: {reading.reason}",
        advice="choose a device whose data file has the figure, or measure it and calibrate",
    )
