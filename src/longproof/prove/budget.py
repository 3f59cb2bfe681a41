"""The budget: held against every request before it is sent. What the evidence already holds counts as spent."""

from __future__ import annotations

import math
from collections.abc import Iterable
from statistics import median

from longproof.asking.context import BudgetSpent, Progress
from longproof.domain.units import format_ns, format_tokens
from longproof.errors import BudgetError
from longproof.evidence.records import Protocol, Record, RequestBody, WindowBody


class RunBudget:
    """Time and tokens of one proof, over all its sessions. Time is what requests took, not what the client did between
    them."""

    def __init__(self, protocol: Protocol, records: Iterable[Record] = ()) -> None:
        self._most_ns = protocol.budget_ns
        self._most_tokens = protocol.budget_tokens
        self.spent_ns = 0
        self.spent_tokens = 0
        self._answered = 0
        self._prefill_ns_per_token: list[float] = []
        self._decode_ns: list[float] = []
        for record in records:
            if isinstance(record.body, RequestBody):
                self.finished(record.body)
            if isinstance(record.body, WindowBody):
                self.window_ended(record.body)

    def window_ended(self, window: WindowBody) -> None:
        """Counts a window under load: its requests ran together, so its time is its own and not their sum."""
        self.spent_ns += window.ended_ns - window.started_ns

    def finished(self, body: RequestBody) -> None:
        """Counts a request that is over. Refusals cost time and teach nothing about speed; neither does what ran beside
        other requests, and its time is its window's."""
        timeline = body.timeline
        if body.planned_ns is not None:
            produced = timeline.usage.completion_tokens if timeline.usage is not None else None
            self.spent_tokens += 0 if timeline.ttft_ns is None else (timeline.prompt_tokens_sent or 0) + (produced or 0)
            return
        self.spent_ns += timeline.e2e_ns
        prompt = timeline.prompt_tokens_sent or 0
        ttft = timeline.ttft_ns
        if ttft is None or not prompt:
            return
        produced = timeline.usage.completion_tokens if timeline.usage is not None else None
        self.spent_tokens += prompt + (produced or 0)
        self._answered += 1
        if self._answered > 1:  # the first request after a start compiles and allocates: it says nothing about the rest
            self._prefill_ns_per_token.append(ttft / prompt)
            self._decode_ns.append(float(timeline.e2e_ns - ttft))

    def predict_ns(self, tokens: int, requests: int = 1) -> float:
        """How long that many tokens in that many requests will take, at the usual rate so far (the median: one answer
        that a busy machine held up says nothing about the others); 0 before two answers."""
        if not self._prefill_ns_per_token:
            return 0.0
        return tokens * median(self._prefill_ns_per_token) + requests * median(self._decode_ns)

    def check(self, tokens: int, ns: int = 0) -> None:
        """Raises BudgetSpent when that many tokens (prompt + output) would go over. 0 tokens = the two calibration
        requests, without which no time can be predicted. `ns` > 0: they take that long, whatever was seen so far."""
        if tokens == 0:
            return
        if self._most_tokens is not None and self.spent_tokens + tokens > self._most_tokens:
            raise BudgetSpent(
                f"{format_tokens(self.spent_tokens)} of {format_tokens(self._most_tokens)} tokens are spent"
            )
        if self._most_ns is not None and self.spent_ns + (ns or self.predict_ns(tokens)) > self._most_ns:
            raise BudgetSpent(f"{format_ns(self.spent_ns)} of {format_ns(self._most_ns)} are spent")


class Counted:
    """Progress that also counts against a budget."""

    def __init__(self, progress: Progress, budget: RunBudget) -> None:
        self._progress = progress
        self._budget = budget

    def step(self, probe: str, what: str) -> None:
        self._progress.step(probe, what)

    def finished(self, key: str, body: RequestBody) -> None:
        self._budget.finished(body)
        self._progress.finished(key, body)

    def window_ended(self, key: str, body: WindowBody) -> None:
        self._budget.window_ended(body)
        self._progress.window_ended(key, body)


def require_useful(protocol: Protocol, smallest_tokens: int, predicted_ns: float) -> None:
    """BudgetError when the budget does not even hold the smallest request the protocol begins with."""
    if protocol.budget_tokens is not None and protocol.budget_tokens < smallest_tokens:
        raise BudgetError(
            f"the budget of {format_tokens(protocol.budget_tokens)} tokens is below the"
            f" {format_tokens(smallest_tokens)} that the"
            " smallest useful run needs",
            advice=f"allow at least --budget {smallest_tokens}tok, or shorten it with --context, --lengths or --only",
        )
    if protocol.budget_ns is not None and protocol.budget_ns < predicted_ns:
        raise BudgetError(
            f"the budget of {format_ns(protocol.budget_ns)} is below the {format_ns(predicted_ns)} that the"
            " smallest useful run"
            " takes on this server",
            advice=(
                f"allow at least --budget {math.ceil(predicted_ns / 1e9)}s, or shorten it with --context,"
                " --lengths or --only"
            ),
        )
