"""Who asked, what it cost and what was decided in the fleets to look at: tenants, takings, recent decisions."""

from __future__ import annotations

from longproof.domain.fleet import TenantSnapshot
from longproof.gateway.meter import MeterState
from longproof.gateway.recent import RecentDecisions
from longproof.gateway.takings import Sum, TakingsView
from longproof.policy.actions import Dispatch, Refusal, Wait
from longproof.policy.arrivals import Arrival
from longproof.policy.choice import Score

S = 1_000_000_000

TENANTS = (
    TenantSnapshot(
        name="acme",
        weight=2.0,
        running=51,
        waiting=3,
        held_tokens=3_100_000,
        served_ns=900 * S,
        lead_ns=0,
        balance_token_seconds=7.1e8,
        budget_token_seconds=1e9,
    ),
    TenantSnapshot(
        name="globex",
        weight=1.0,
        running=30,
        waiting=3,
        held_tokens=1_900_000,
        served_ns=500 * S,
        lead_ns=20 * S,
        balance_token_seconds=1.2e7,
        budget_token_seconds=2e8,
    ),
    TenantSnapshot(
        name="initech", weight=1.0, running=11, waiting=3, held_tokens=220_000, served_ns=480 * S, lead_ns=0
    ),
)


def busy_meter() -> MeterState:
    """Two SKUs' takings of two tenants."""
    chat = Sum(
        requests=16_800,
        input_cold_tokens=21_400_000,
        input_cached_tokens=88_100_000,
        output_tokens=4_300_000,
        kv_token_ms=902_000_000_000,
        nano_usd=22_310_450_000,
    )
    long = Sum(
        requests=900,
        input_cold_tokens=25_300_000,
        input_cached_tokens=13_200_000,
        output_tokens=420_000,
        kv_token_ms=8_104_000_000_000,
        nano_usd=61_007_112_000,
    )
    return MeterState(
        ledger="usage.sqlite",
        open_requests=92,
        unwritten=0,
        journal_bytes=18_211,
        recovered=0,
        problem=None,
        takings=TakingsView(
            by_sku={"chat": chat, "long-context": long}, by_tenant={"acme": chat, "globex": long}, by_ending={}
        ),
    )


def _asked(name: str, tenant: str) -> Arrival:
    return Arrival(id=name, tenant=tenant, model="llama-3.3-70b", input_tokens=1_236, exact=True, output_tokens=512)


def busy_decisions(now_ns: int) -> RecentDecisions:
    """Twelve decisions of the last 40 seconds: dispatched, waiting, refused."""
    recent = RecentDecisions()
    scores = (
        Score("long-0", 41_000_000_000, 84_208, 33_792, 9_000_000_000, 4_000_000_000, 0, 28_000_000_000, "stopped"),
        Score("pair-0", 33_500_000_000, 0, 118_000, 31_000_000_000, 2_500_000_000, 0, 0, ""),
    )
    for number in range(12):
        at_ns = now_ns - (40 - 3 * number) * S
        name = f"req-7c1e{number:04x}"
        if number % 4 == 3:
            recent.add(
                Refusal(
                    id=name,
                    status=429,
                    code="ttft_slo",
                    reason="the first token would take 33.5 s, 20 s were promised",
                    limit=20,
                    actual=33,
                    unit="s",
                    retry_after_ns=14 * S,
                    scores=scores,
                ),
                _asked(name, "globex"),
                at_ns,
            )
        elif number % 4 == 2:
            recent.add(Wait(id=name, reason="long-0/kv is above its watermark", ahead=2), _asked(name, "acme"), at_ns)
        else:
            recent.add(
                Dispatch(
                    id=name,
                    replica=f"chat-{number % 2}",
                    reason="least predicted time to first token: 38 ms",
                    scores=(
                        Score("chat-0", 38_000_000, 1_024, 212, 38_000_000, 9_000_000, 0, 0, ""),
                        Score("chat-1", 61_000_000, 0, 1_236, 61_000_000, 4_000_000, 0, 0, ""),
                    ),
                    waited_ns=2 * S if number % 4 else 0,
                ),
                _asked(name, "acme"),
                at_ns,
            )
    return recent
