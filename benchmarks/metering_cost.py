"""What metering, metrics and the decision log add to a request on the event loop, in microseconds of processor time.

    python benchmarks/metering_cost.py [requests]

One thread plays the loop: per request it tells the meter of its start, of four times progress and of its end, the
lives of one decision and one departure, and the log of three inputs. The threads that fold and encode are counted
apart: they share the interpreter.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from longproof.gateway.decision_codec import LogHeader
from longproof.gateway.decisions import DecisionLog
from longproof.gateway.ledger_store import SqliteLedger
from longproof.gateway.lives import Lives
from longproof.gateway.meter import MeterSettings, UsageMeter
from longproof.gateway.metrics import GatewayMetrics
from longproof.gateway.ports import Admitted, Spent
from longproof.policy.actions import Dispatch
from longproof.policy.arrivals import Arrival, Ended, EndKind
from longproof.policy.controller_config import ControllerConfig
from longproof.policy.decision_record import Arrived, DecisionRecord, Finished, FirstToken
from longproof.policy.metering import PriceBook, Prices, Sku
from longproof.policy.routing import RoutingRule
from longproof.testing.controllers import replica_rule
from longproof.testing.fleets import empty_fleet

BOOK = PriceBook(skus=(Sku(name="chat", prices=Prices(input_cold=10**6, input_cached=10**5, output=4 * 10**6)),))
ARRIVAL = Arrival(id="r", tenant="acme", model="m", input_tokens=2_000, exact=True, output_tokens=64)
SENT = Dispatch(id="r", replica="a", reason="least predicted time", pool="short")


def timed(name: str, requests: int, step: Callable[[int], None], finish: Callable[[], None]) -> None:
    """Prints the loop thread's and the whole process's time per request."""
    loop_ns, whole_ns = time.thread_time_ns(), time.process_time_ns()
    for number in range(requests):
        step(number)
    loop_ns = time.thread_time_ns() - loop_ns
    finish()
    whole_ns = time.process_time_ns() - whole_ns
    print(f"{name:<14} {loop_ns / requests / 1e3:8.1f} us on the loop {whole_ns / requests / 1e3:8.1f} us in all")


def main(requests: int) -> None:
    """All three."""
    with tempfile.TemporaryDirectory() as folder:
        meter = UsageMeter(Path(folder), SqliteLedger(Path(folder) / "usage.sqlite"), MeterSettings(book=BOOK))
        meter.start()

        def metered(number: int) -> None:
            name = f"r{number}"
            meter.admitted(
                Admitted(
                    id=name,
                    key="k",
                    tenant="acme",
                    model="m",
                    replica="a",
                    input_tokens=2_000,
                    output_tokens=64,
                    at_ns=0,
                )
            )
            for tokens in (16, 32, 48, 64):
                meter.passed(name, tokens)
            meter.spent(_spent(name))

        timed("meter", requests, metered, meter.close)
    lives, metrics = Lives(), GatewayMetrics(empty_fleet(lambda: 0))
    lives.listeners.append(metrics.add)

    def lived(_: int) -> None:
        lives.decided(SENT, ARRIVAL, 0)
        lives.departed("r", 10)

    timed("metrics", requests, lived, lambda: None)
    with tempfile.TemporaryDirectory() as folder:
        config = ControllerConfig(replicas=(replica_rule(),))
        log = DecisionLog(Path(folder) / "log.jsonl", LogHeader(config=config, routing=RoutingRule()))

        def logged(number: int) -> None:
            log.sink(DecisionRecord(number=3 * number, at_ns=0, input=Arrived(arrival=ARRIVAL), actions=(SENT,)))
            log.sink(DecisionRecord(number=3 * number + 1, at_ns=1, input=FirstToken(id="r"), actions=()))
            end = Finished(id="r", end=Ended(kind=EndKind.COMPLETED))
            log.sink(DecisionRecord(number=3 * number + 2, at_ns=2, input=end, actions=()))

        timed("decision log", requests, logged, log.close)
        print(f"{log.dropped} records dropped")


def _spent(name: str) -> Spent:
    return Spent(
        id=name,
        ending=EndKind.COMPLETED,
        status=200,
        input_tokens=2_000,
        cached_tokens=1_000,
        output_tokens=64,
        reported=True,
        at_ns=10**9,
        first_token_ns=10**8,
        kv_token_ms=2_000_000,
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20_000)
