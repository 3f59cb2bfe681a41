"""What each tenant may use, and has used.

Two accounts per tenant. *Service*, in nanoseconds of a replica's work per weight: whoever had less is served first. *KV
budget*, in token-seconds: a bucket that fills at the tenant's rate, is emptied by what its requests hold, and lets
nothing in when what is left does not cover what is expected.

    left(now) = min(burst, left + (rate - held) · dt)        available = left - (Σ expected - Σ used so far)

Expectations are booked when a request comes in, so a burst cannot spend one balance twice; a request that holds on
longer than expected takes the balance below zero, and the tenant waits until it is above again. What other gateways
spend of the same budget (`policy.peers`) is taken from the balance as it becomes known, and what they expect counts
like our own expectations; a gateway where a tenant is new begins with the balance the others have.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from longproof.domain.units import NS_PER_MS, NS_PER_S
from longproof.policy.controller_config import ControllerConfig, TenantRule
from longproof.policy.peers import TenantUse


@dataclass(slots=True, eq=False)
class Tenant:
    """One tenant's accounts. `here` counts its requests that have not ended, `running` those with a place at a replica.
    Token-seconds are kept as integer token-nanoseconds."""

    rule: TenantRule
    here: int = 0
    running: int = 0
    waiting: int = 0
    held_tokens: int = 0
    served_ns: int = 0
    virtual_ns: float = 0.0
    _left: int = 0
    _expected: int = 0
    _used: int = 0
    _spent: int = 0
    _peers_spent: int = 0
    _peers_expected: int = 0
    _since_ns: int | None = None

    @property
    def capped(self) -> bool:
        """Whether it runs as many requests as it may."""
        return self.rule.most_running is not None and self.running >= self.rule.most_running

    def serve(self, work_ns: int) -> None:
        """It got this much of a replica's time (negative: less than was charged)."""
        self.served_ns += work_ns
        self.virtual_ns += work_ns / self.rule.weight

    def hold(self, tokens: int, now_ns: int) -> None:
        """Its requests hold `tokens` more (or fewer, negative) from now on."""
        self._advance(now_ns)
        self.held_tokens += tokens

    def expect(self, token_ns: int) -> None:
        """A request came in that is expected to use this much."""
        self._expected += token_ns

    def settle(self, expected_token_ns: int, used_token_ns: int, now_ns: int) -> None:
        """It is gone: what was expected of it no longer counts, what it used was taken as it went."""
        if self.rule.budget is None:
            return
        self._advance(now_ns)
        self._expected -= expected_token_ns
        self._used -= used_token_ns

    def left_token_ns(self, now_ns: int) -> int | None:
        """The balance; None without a budget. Looking changes nothing."""
        return None if self.rule.budget is None else self._left_at(now_ns)

    def available_token_ns(self, now_ns: int) -> int:
        """The balance less what is expected of those that are here; without a budget, 0."""
        if self.rule.budget is None:
            return 0
        elapsed = 0 if self._since_ns is None else max(0, now_ns - self._since_ns)
        used = self._used + self.held_tokens * elapsed
        return self._left_at(now_ns) - max(0, self._expected - used) - self._peers_expected

    def budget_wait_ns(self, wanted_token_ns: int, now_ns: int) -> int:
        """0: the budget covers it. Else how long until it does, if nothing else changes. What exceeds the whole bucket
        needs a full one."""
        budget = self.rule.budget
        if budget is None:
            return 0
        burst = int(budget.burst_token_seconds * NS_PER_S)
        short = min(wanted_token_ns, burst) - self.available_token_ns(now_ns)
        return 0 if short <= 0 else max(1, int(short / budget.token_seconds_per_s))

    def use(self, now_ns: int) -> TenantUse | None:
        """What other gateways have to know of its budget; None while there is nothing to tell."""
        if self.rule.budget is None or (self._since_ns is None and not self._expected):
            return None
        elapsed = 0 if self._since_ns is None else max(0, now_ns - self._since_ns)
        held = self.held_tokens * elapsed
        return TenantUse(
            spent_token_ms=(self._spent + held) // NS_PER_MS,
            expected_token_ms=max(0, self._expected - self._used - held) // NS_PER_MS,
            left_token_ms=self._left_at(now_ns) // NS_PER_MS,
        )

    def peers_told(self, use: TenantUse, now_ns: int) -> None:
        """What other gateways have spent since this one began, and expect."""
        new_here = self._since_ns is None
        self._advance(now_ns)
        spent = use.spent_token_ms * NS_PER_MS
        if new_here and use.left_token_ms is not None:
            self._left = min(self._left, use.left_token_ms * NS_PER_MS)
        else:
            self._left -= max(0, spent - self._peers_spent)
        self._peers_spent = max(self._peers_spent, spent)
        self._peers_expected = use.expected_token_ms * NS_PER_MS

    def _left_at(self, now_ns: int) -> int:
        budget = self.rule.budget
        assert budget is not None
        burst = int(budget.burst_token_seconds * NS_PER_S)
        if self._since_ns is None:
            return burst
        elapsed = max(0, now_ns - self._since_ns)
        return min(burst, self._left + int((budget.token_seconds_per_s - self.held_tokens) * elapsed))

    def _advance(self, now_ns: int) -> None:
        if self.rule.budget is None:
            return
        self._left = self._left_at(now_ns)
        if self._since_ns is None:
            self._since_ns = now_ns
        elif now_ns > self._since_ns:
            self._used += self.held_tokens * (now_ns - self._since_ns)
            self._spent += self.held_tokens * (now_ns - self._since_ns)
            self._since_ns = now_ns


_MOST_REMEMBERED = 10_000


class Tenants:
    """All tenants that have work, and those that had some; idle ones without a budget are forgotten when there are too
    many."""

    def __init__(self, config: ControllerConfig) -> None:
        self._rules = {rule.name: rule for rule in config.tenants}
        self._other = config.other_tenants
        self._known: dict[str, Tenant] = {}
        self._active: dict[int, Tenant] = {}

    def of(self, name: str) -> Tenant:
        """The accounts of one tenant."""
        found = self._known.get(name)
        if found is None:
            if len(self._known) >= _MOST_REMEMBERED:
                self._known = {n: t for n, t in self._known.items() if t.here or t.rule.budget}
            found = Tenant(self._rules.get(name, self._other))
            self._known[name] = found
        return found

    def all(self) -> dict[str, Tenant]:
        """By name."""
        return self._known

    def use(self, now_ns: int) -> dict[str, TenantUse]:
        """By name, what other gateways have to know of budgets."""
        uses = ((name, tenant.use(now_ns)) for name, tenant in self._known.items())
        return {name: use for name, use in uses if use is not None}

    def on_peers(self, uses: Mapping[str, TenantUse], now_ns: int) -> None:
        """What other gateways say of budgets. Tenants without one here are left alone."""
        for name, use in uses.items():
            if name in self._rules and self._rules[name].budget is not None:
                self.of(name).peers_told(use, now_ns)

    def enter(self, tenant: Tenant) -> None:
        """A request of `tenant` came in. If it has no other, what it did not ask for while it was away is not saved up:
        it starts level with the least served of those that are here."""
        tenant.here += 1
        if tenant.here > 1:
            return
        self._active = {key: t for key, t in self._active.items() if t.here and t is not tenant}
        least = min((t.virtual_ns for t in self._active.values()), default=0.0)
        tenant.virtual_ns = max(tenant.virtual_ns, least)
        self._active[id(tenant)] = tenant
