"""What was used and earned since the gateway started, by SKU and by tenant: for people, not for bills.

Bills are made from the ledger (`longproof usage`); this is a running sum of the same rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from longproof.gateway.ledger_rows import Intent, Settlement


@dataclass(slots=True, kw_only=True)
class Sum:
    """A running sum. `unpriced`: charged requests without an amount; they are in no other figure of money."""

    requests: int = 0
    input_cold_tokens: int = 0
    input_cached_tokens: int = 0
    output_tokens: int = 0
    kv_token_ms: int = 0
    nano_usd: int = 0
    unpriced: int = 0

    def add(self, row: Settlement) -> None:
        """One more request."""
        self.requests += 1
        self.input_cold_tokens += row.input_cold_tokens
        self.input_cached_tokens += row.input_cached_tokens or 0
        self.output_tokens += row.output_tokens
        self.kv_token_ms += row.kv_token_ms or 0
        if row.total_nano_usd is not None:
            self.nano_usd += row.total_nano_usd
        elif row.charged:
            self.unpriced += 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TakingsView:
    """Sums by SKU (None: nothing on the price list covers it), by tenant and by ending."""

    by_sku: dict[str | None, Sum]
    by_tenant: dict[str, Sum]
    by_ending: dict[str, int]


@dataclass(slots=True)
class Takings:
    """The sums themselves."""

    _by_sku: dict[str | None, Sum] = field(default_factory=dict[str | None, Sum])
    _by_tenant: dict[str, Sum] = field(default_factory=dict[str, Sum])
    _by_ending: dict[str, int] = field(default_factory=dict[str, int])

    def add(self, intent: Intent, row: Settlement) -> None:
        """One more ended request."""
        self._by_sku.setdefault(row.sku, Sum()).add(row)
        self._by_tenant.setdefault(intent.tenant, Sum()).add(row)
        self._by_ending[row.ending] = self._by_ending.get(row.ending, 0) + 1

    def view(self) -> TakingsView:
        """The sums now; they go on growing."""
        return TakingsView(by_sku=self._by_sku, by_tenant=self._by_tenant, by_ending=self._by_ending)
