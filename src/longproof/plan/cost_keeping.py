"""Whether a prefix's cache is worth keeping: on the device, or in a cheaper tier.

one hit saves     the prefill [- the place taken while it is fetched]
holding costs     $/GB·s of where it lies x its size
break-even        saved / holding cost: longer between two uses, and computing again is cheaper
"""

from __future__ import annotations

from dataclasses import dataclass

from longproof.plan.cost import GIGABYTE, Fleet
from longproof.plan.perf_estimate import Precision, Rates, TimeEstimate
from longproof.plan.perf_prefill import Prompt, prefill_time
from longproof.plan.perf_transfer import Tier, restore_time
from longproof.plan.perf_work import ModelWork

_SECONDS_PER_HOUR = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepOrRecompute:
    """Holding a prefix in a tier against computing it again at each use.

    `break_even_seconds`: how long it may be held between two uses before recomputing is cheaper; None = any time
    (holding costs nothing), 0 = not at all (a hit saves nothing). `saved_usd`: by one hit, before holding.
    """

    saved_usd: float
    holding_usd_per_second: float
    break_even_seconds: float | None

    @property
    def break_even_uses_per_hour(self) -> float | None:
        """Uses per hour from which holding pays; 0 = any number, None = it never does."""
        if self.break_even_seconds is None:
            return 0.0
        return _SECONDS_PER_HOUR / self.break_even_seconds if self.break_even_seconds > 0 else None


def keep_on_device(
    work: ModelWork,
    fleet: Fleet,
    prefix_tokens: int,
    *,
    precision: Precision | None = None,
    rates: Rates | None = None,
) -> KeepOrRecompute:
    """Keep a prefix in device memory: holding costs the sessions it displaces, a hit saves its prefill."""
    computing = prefill_time(
        work, fleet.device, Prompt(new_tokens=prefix_tokens), layout=fleet.layout, precision=precision, rates=rates
    )
    saved = _prefill_usd(fleet, computing)
    holding = fleet.usd_per_gigabyte_second.typical * work.sequence_bytes(prefix_tokens) / GIGABYTE
    return _kept(saved, holding)


def keep_in_tier(
    work: ModelWork,
    fleet: Fleet,
    prefix_tokens: int,
    tier: Tier,
    *,
    usd_per_gigabyte_hour: float,
    precision: Precision | None = None,
    rates: Rates | None = None,
) -> KeepOrRecompute:
    """Keep a prefix in host memory, on disk or in a remote pool that costs so much per GB and hour (0 = the memory is
    there anyway). A hit saves the prefill and costs the fetch, during which its place on the device is taken."""
    computing = prefill_time(
        work, fleet.device, Prompt(new_tokens=prefix_tokens), layout=fleet.layout, precision=precision, rates=rates
    )
    gigabytes = work.sequence_bytes(prefix_tokens) / GIGABYTE
    fetching = restore_time(gigabytes * GIGABYTE, tier).seconds
    saved = _prefill_usd(fleet, computing)
    saved -= fleet.usd_per_gigabyte_second.typical * gigabytes * fetching
    return _kept(saved, usd_per_gigabyte_hour / _SECONDS_PER_HOUR * gigabytes)


def _kept(saved_usd: float, holding_usd_per_second: float) -> KeepOrRecompute:
    if saved_usd <= 0:
        seconds: float | None = 0.0
    else:
        seconds = saved_usd / holding_usd_per_second if holding_usd_per_second > 0 else None
    return KeepOrRecompute(
        saved_usd=saved_usd, holding_usd_per_second=holding_usd_per_second, break_even_seconds=seconds
    )


def _prefill_usd(fleet: Fleet, computing: TimeEstimate) -> float:
    return fleet.usd_per_second.typical * (computing.seconds - computing.part("bubble")) / fleet.layout.dp
