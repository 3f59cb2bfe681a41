"""One gateway's part in sharing, as a process of its own that can be killed: it books, says so, and waits for ever."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable

from longproof.clock import SystemClock
from longproof.gateway.shared_store import SharedStore, StoreAddress
from longproof.gateway.sharing import Sharing, SharingRule
from longproof.policy.controller import Controller
from longproof.policy.controller_config import ControllerConfig, ReplicaRule, TenantRule
from longproof.policy.routing import PrefixRouter
from longproof.testing.controllers import arrival, replica_rule

RULE = replica_rule(capacity_blocks=1_000, block_tokens=1)


class Gateway:
    """Controller, router and sharing, put together as `gateway.serve` does."""

    def __init__(
        self,
        url: str,
        name: str,
        *,
        lease_s: float = 6.0,
        rules: tuple[ReplicaRule, ...] = (RULE,),
        events: bool = True,
        tenants: tuple[TenantRule, ...] = (),
    ) -> None:
        self.clock, self.router = SystemClock(), PrefixRouter()
        self.controller = Controller(ControllerConfig(replicas=rules, tenants=tenants), self.router)
        for rule in rules:
            self.router.follow(rule.name, block_tokens=rule.block_tokens, cache_blocks=20_000, events=events)
        rule = SharingRule(lease_s=lease_s, again_s=0.05)
        address = StoreAddress(url=url, fleet="test", lease_ms=int(rule.kept_s * 1_000), timeout_s=rule.answer_s)
        self.acted: list[object] = []
        self.sharing = Sharing(
            SharedStore(address, name), self.controller, self.router, self.acted.extend, self.clock, rule
        )

    @property
    def peer_blocks(self) -> int:
        """What others hold of its first replica, as it knows."""
        return self.controller.snapshot(self.clock.now_ns()).replicas[0].stages[0].peer_blocks

    def hears_of(self, other: Gateway) -> Callable[[], bool]:
        """Whether it has heard of all that the other has booked and ended until now."""
        name, number = other.sharing._store.gateway, other.sharing._number

        def heard() -> bool:
            known = self.sharing._peers.get(name)
            return known is not None and known.number > number

        return heard

    def book(self, name: str, tokens: int) -> object:
        """A request of so many tokens."""
        return self.controller.on_arrival(arrival(name, tokens), self.clock.now_ns())


async def main(url: str, tokens: int, lease_s: float) -> None:
    gateway = Gateway(url, "child", lease_s=lease_s)
    gateway.sharing.start()
    gateway.book("held", tokens)
    print("booked", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
