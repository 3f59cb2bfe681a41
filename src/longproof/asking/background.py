"""The background load: short requests in a closed loop, by chance at a rate, or as a trace has them.

    closed    `concurrency` always under way
    Poisson   `rate_per_s` arrivals, however slow the answers are; the same times in every window
    trace     the times of a recorded trace; the same in every window

Every request has a prompt of its own: no two windows send one twice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from longproof.asking.arrivals import Lengths, Replay, poisson_times
from longproof.asking.context import Cell, ProbeContext
from longproof.asking.lot import Lot
from longproof.asking.stock import PromptStock
from longproof.asking.window import LoadRequest

_APART = 1_000_000
"""Numbers of one window's requests begin that far behind those of the one before: more than any window sends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Background:
    """A background load: `concurrency`, `rate_per_s` or `trace_at_ns` with `trace_classes` is given. ValueError
    otherwise."""

    lengths: Lengths
    concurrency: int = 0
    rate_per_s: float = 0.0
    trace_at_ns: tuple[int, ...] = ()
    trace_classes: tuple[int, ...] = ()
    trace_span_ns: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        if sum((self.concurrency > 0, self.rate_per_s > 0, bool(self.trace_at_ns))) != 1:
            raise ValueError("a background load is a closed loop, or Poisson arrivals, or a trace: one of them")

    @classmethod
    def of_trace(cls, replay: Replay, *, lengths: Lengths | None = None, seed: int = 0) -> Background:
        """The load of a trace; `lengths`: its own, scaled."""
        return cls(
            lengths=lengths or replay.lengths,
            trace_at_ns=replay.at_ns,
            trace_classes=replay.classes,
            trace_span_ns=replay.span_ns,
            seed=seed,
        )

    @property
    def closed(self) -> bool:
        """Whether a request leaves only when another is over."""
        return self.concurrency > 0

    @property
    def arrival(self) -> str:
        """``closed``, ``poisson`` or ``trace``."""
        return "closed" if self.closed else "poisson" if self.rate_per_s > 0 else "trace"

    def describe(self) -> Cell:
        """What stands with a window under this load."""
        cell: Cell = {"arrival": self.arrival, "lengths": self.lengths.words(), "seed": self.seed}
        if self.closed:
            cell["concurrency"] = self.concurrency
        elif self.rate_per_s > 0:
            cell["rate_per_s"] = self.rate_per_s
        return cell

    def words(self) -> str:
        """``8 short requests at a time (…)``"""
        if self.closed:
            return f"{self.concurrency} short requests at a time ({self.lengths.words()})"
        how = f"{self.rate_per_s:g} short requests a second, Poisson" if self.rate_per_s > 0 else "a trace replayed"
        return f"{how} ({self.lengths.words()})"

    def arrivals(self, for_ns: int) -> tuple[tuple[int, int], ...]:
        """(ns from the start, class of length) of an open loop's requests."""
        if self.rate_per_s > 0:
            times = poisson_times(self.rate_per_s, for_ns, seed=self.seed)
            return tuple((at, self.lengths.class_of(i, self.seed)) for i, at in enumerate(times))
        trace = Replay(
            lengths=self.lengths, at_ns=self.trace_at_ns, classes=self.trace_classes, span_ns=self.trace_span_ns
        )
        return trace.within(for_ns)

    def expected_requests(self, for_ns: int, each_s: float) -> int:
        """About how many requests a window of that length sends, when one takes `each_s` in a closed loop."""
        if self.closed:
            return max(self.concurrency, round(self.concurrency * for_ns / 1e9 / each_s))
        return len(self.arrivals(for_ns))


class ShortRequests:
    """The requests of a background load, ready to send. `ready` proves one prompt of each length; raises
    LengthUnproven where that cannot be."""

    def __init__(self, ctx: ProbeContext, background: Background, *, probe: str) -> None:
        self._ctx = ctx
        self._background = background
        self._probe = probe
        self._stocks: list[PromptStock] = []

    async def ready(self) -> None:
        """Once; does nothing after."""
        if self._stocks:
            return
        lengths = self._background.lengths.input_tokens
        stocks = {
            tokens: await self._ctx.prompts.stock(tokens, key=f"{self._probe}/stock/{tokens}")
            for tokens in sorted(set(lengths))
        }
        self._stocks = [stocks[tokens] for tokens in lengths]

    def closed(self, window: int, timeout_s: float) -> Callable[[int], LoadRequest]:
        """i → the i-th request of a closed loop, in the window of that number."""
        background, lots = self._background, self._lots(timeout_s)
        return lambda i: self._request(lots[background.lengths.class_of(i, background.seed)], window, i)

    def scheduled(self, window: int, for_ns: int, timeout_s: float) -> tuple[LoadRequest, ...]:
        """An open loop's requests of that long, in the window of that number."""
        found, lots = self._background.arrivals(for_ns), self._lots(timeout_s)
        return tuple(self._request(lots[kind], window, i, at_ns=at) for i, (at, kind) in enumerate(found))

    def _lots(self, timeout_s: float) -> list[Lot]:
        return [
            Lot(
                stock,
                max_tokens=output_tokens,
                timeout_s=timeout_s,
                cold=self._ctx.engine.capabilities.cold,
                seed=self._ctx.protocol.seed,
            )
            for stock, output_tokens in zip(self._stocks, self._background.lengths.output_tokens, strict=True)
        ]

    def _request(self, lot: Lot, window: int, i: int, *, at_ns: int | None = None) -> LoadRequest:
        number = window * _APART + i
        return LoadRequest(
            name=f"short/{i}",
            cell={"role": "short", "length": lot.stock.length_tokens},
            request=lot.request(number),
            nonce=lot.stock.nonce_of(number),
            at_ns=at_ns,
        )
