"""One server of a layout: how many sessions it holds, how long a prompt occupies it, how long a step takes.

    at full load, one request   prefill P, then O tokens in steps of a batch B
    server's time for it        P + O x step(B) / B                 mixed server
    between two tokens          step(B) + (B - 1) x P / O           the others' prefills come in between

What layout sizes mean for time differs from engine to engine; `prefill_layout` and `decode_layout` translate them into
what the time model means by them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from longproof.domain.measure import Unknown
from longproof.errors import UserError
from longproof.plan.capacity import Capacity, Layout, PlanEngine
from longproof.plan.layouts import devices_of
from longproof.plan.perf_decode import Batch, decode_time
from longproof.plan.perf_estimate import TimeEstimate
from longproof.plan.perf_prefill import Prompt, prefill_time
from longproof.plan.search_question import CapacityOf, SearchQuestion, Unfit


@dataclass(slots=True, kw_only=True)
class Server:
    """A layout that holds at least one request. `busy_seconds`: what one prompt takes of the server at full load (a
    pipeline's bubble is filled by other prompts). `holds`: sessions its KV caches hold."""

    question: SearchQuestion
    layout: Layout
    devices: int
    holds: int
    prefill: TimeEstimate
    busy_seconds: float
    _steps: dict[int, TimeEstimate] = field(default_factory=dict[int, TimeEstimate])

    def step(self, sessions: int) -> TimeEstimate:
        """One decode step with so many sessions, at the middle of their output. Each size is worked out once."""
        # A pipeline keeps one micro-batch on each stage: a token's step has a stage's share of the sessions.
        sequences = math.ceil(sessions / self.layout.pp)
        if sequences not in self._steps:
            workload = self.question.workload
            context_tokens = workload.input_tokens + workload.output_tokens / 2
            self._steps[sequences] = decode_time(
                self.question.work,
                self.question.hardware.device,
                Batch(sequences=sequences, context_tokens=context_tokens),
                layout=decode_layout(self.question.engine, self.layout),
                precision=self.question.precision,
                rates=self.question.rates,
                narrow_cache=self.question.narrow_cache,
            )
        return self._steps[sequences]

    def decode_seconds(self, sessions: int) -> float:
        """The server's time for one request's output, in a batch of so many."""
        return self.question.workload.output_tokens * self.step(sessions).seconds / sessions

    def token_seconds(self, sessions: int, *, prefills: bool) -> float:
        """From token to token. `prefills`: the server also prefills the others' prompts."""
        shared = (sessions - 1) * self.busy_seconds / self.question.workload.output_tokens if prefills else 0.0
        return self.step(sessions).seconds + shared

    def most_sessions(self, *, prefills: bool) -> int:
        """The largest batch that is held and keeps the time between tokens; 1 when not even one does."""
        bound = self.question.slo.token_seconds
        if bound is None or self.token_seconds(self.holds, prefills=prefills) <= bound:
            return self.holds
        return self._largest_within(bound, prefills=prefills)

    def _largest_within(self, bound: float, *, prefills: bool) -> int:
        # Time grows almost linearly with the batch, so interpolation lands near; halving in turn bounds the steps.
        low, high, halve = 1, self.holds, False
        while high - low > 1:
            at_low, at_high = (self.token_seconds(n, prefills=prefills) for n in (low, high))
            if at_low > bound:
                return low
            guess = (low + high) // 2 if halve else low + int((bound - at_low) / (at_high - at_low) * (high - low))
            middle = min(max(guess, low + 1), high - 1)
            if self.token_seconds(middle, prefills=prefills) > bound:
                high = middle
            else:
                low = middle
                halve = not halve
        return low


def try_server(question: SearchQuestion, layout: Layout, capacity_of: CapacityOf) -> Server | Unfit:
    """The server, or why it cannot hold one request of the workload."""
    try:
        capacity = capacity_of(layout)
    except UserError as problem:
        return Unfit(layout=layout, reason=problem.problem)
    reason = _too_small(capacity, question.workload.total_tokens)
    if reason is not None:
        return Unfit(layout=layout, reason=reason)
    if isinstance(capacity.concurrency, Unknown):
        return Unfit(layout=layout, reason=f"its capacity is unknown: {capacity.concurrency.reason}")
    holds = int(capacity.concurrency.value) * layout.dp
    if holds < 1:
        return Unfit(layout=layout, reason=f"it holds {capacity.concurrency.value:.2f} requests of this length")
    workload = question.workload
    prefill = prefill_time(
        question.work,
        question.hardware.device,
        Prompt(new_tokens=workload.input_tokens - workload.cached_tokens, cached_tokens=workload.cached_tokens),
        layout=prefill_layout(question.engine, layout),
        precision=question.precision,
        rates=question.rates,
    )
    return Server(
        question=question,
        layout=layout,
        devices=devices_of(question.engine, layout),
        holds=holds,
        prefill=prefill,
        busy_seconds=_busy(prefill, layout),
    )


def prefill_layout(engine: PlanEngine, layout: Layout) -> Layout:
    """The layout as `prefill_time` means it: prefill CP beside TP, data-parallel ranks that share experts inside it."""
    if engine is PlanEngine.SGLANG and layout.pcp > 1:
        return replace(layout, tp=layout.tp // layout.pcp)
    return _shared_experts(engine, layout)


def decode_layout(engine: PlanEngine, layout: Layout) -> Layout:
    """The layout as `decode_time` means it.

    vLLM's PCP ranks each decode their own requests (`pcp_shard_decode_requests`), and with DCP they share the cache.
    SGLang's prefill-CP ranks keep the whole cache and all decode the same requests.
    """
    if layout.pcp > 1 and engine is PlanEngine.VLLM:
        owners = layout.pcp if layout.dcp == 1 else 1
        return _shared_experts(engine, replace(layout, dp=layout.dp * owners, pcp=1))
    if layout.pcp > 1:
        return replace(layout, tp=layout.tp // layout.pcp, pcp=1)
    return _shared_experts(engine, layout)


def _shared_experts(engine: PlanEngine, layout: Layout) -> Layout:
    # vLLM's data-parallel ranks have their own TP ranks and share the experts over all of them; the time model knows
    # that as attention DP inside one large tensor-parallel group.
    if engine is PlanEngine.VLLM and layout.dp > 1 and layout.ep > 1:
        return replace(layout, tp=layout.tp * layout.dp, dp_attention=True)
    return layout


def _busy(prefill: TimeEstimate, layout: Layout) -> float:
    """Attention of data-parallel ranks overlaps with that of the others; what they share does not."""
    alone = prefill.part("attention") * (1 - 1 / layout.dp)
    return prefill.seconds - prefill.part("bubble") - alone


def _too_small(capacity: Capacity, tokens: int) -> str | None:
    if capacity.refusal is not None:
        return capacity.refusal.sentence
    longest = capacity.longest_request_tokens
    if not isinstance(longest, Unknown) and longest.value < tokens:
        return f"its longest request is {longest.value:,} tokens, {tokens:,} are asked"
    return None
