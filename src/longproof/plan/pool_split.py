"""One pool for everything, or a short and a long one: how many replicas and devices each takes.

    mix ─ boundary ─▶ short part ─ on the short layout's pool ─▶ replicas
                   └▶ long part  ─ on the long layout's pool ──▶ replicas      against the whole mix on the long layout

Only the long pool has to take the longest session, so only it needs the layout that can (more ranks, context parallel);
the short one keeps many small replicas, and no long prefill runs beside its sessions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from longproof.domain.units import format_tokens
from longproof.errors import UsageError
from longproof.plan.concurrency import MixPlan, PoolOffer, plan_mix
from longproof.plan.mix import SessionMix


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """A layout on offer: its name, the devices one replica takes and the pool it has."""

    layout: str
    devices: int
    pool: PoolOffer


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSize:
    """One pool: `sessions` of the mix run in it, on `replicas`, each holding `per_replica`'s number."""

    name: str
    layout: str
    share: float
    sessions: int
    replicas: int
    devices: int
    per_replica: MixPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitPlan:
    """Pools of a split, next to one pool for all (on the long layout, which alone takes every session)."""

    boundary_tokens: int
    short: PoolSize
    long: PoolSize
    single: PoolSize
    explanation: str

    @property
    def devices(self) -> int:
        """Devices of both pools."""
        return self.short.devices + self.long.devices


def split_pools(
    mix: SessionMix, boundary_tokens: int, short: Replica, long: Replica, sessions: int, risk: float
) -> SplitPlan:
    """Pools for `sessions` running together, divided at `boundary_tokens` (input and output; the boundary is short).

    Raises UsageError when one side has no sessions, or a layout does not take its longest one.
    """
    parts = {"short": mix.part(0, boundary_tokens), "long": mix.part(boundary_tokens, None)}
    for name, (part, _) in parts.items():
        if part is None:
            raise UsageError(
                f"no session lies on the {name} side of {format_tokens(boundary_tokens)} tokens",
                advice=f"use a boundary below the longest session ({format_tokens(mix.longest_tokens)} tokens)",
            )
    sized = {
        name: _size(name, part, share, replica, sessions, risk)
        for (name, (part, share)), replica in zip(parts.items(), (short, long), strict=True)
        if part is not None
    }
    single = _size("single", mix, 1.0, long, sessions, risk)
    total = sized["short"].devices + sized["long"].devices
    explanation = (
        f"{sized['short'].share:.1%} of the sessions are up to {format_tokens(boundary_tokens)} tokens long and run on"
        f" {sized['short'].replicas} x {short.layout} ({sized['short'].devices} devices), the others on"
        f" {sized['long'].replicas} x {long.layout} ({sized['long'].devices} devices): {total} devices, where one pool"
        f" for all takes {single.devices}."
    )
    return SplitPlan(
        boundary_tokens=boundary_tokens,
        short=sized["short"],
        long=sized["long"],
        single=single,
        explanation=explanation,
    )


def _size(name: str, mix: SessionMix, share: float, replica: Replica, sessions: int, risk: float) -> PoolSize:
    plan = plan_mix(mix, replica.pool, risk)
    if plan.sessions == 0:
        raise UsageError(
            f"one replica of {replica.layout} holds none of the {name} sessions at a risk of {risk:g}",
            advice="give it more memory, or accept a larger risk",
        )
    here = math.ceil(sessions * share - 1e-9)
    replicas = -(-here // plan.sessions)
    return PoolSize(
        name=name,
        layout=replica.layout,
        share=share,
        sessions=here,
        replicas=replicas,
        devices=replicas * replica.devices,
        per_replica=plan,
    )
