"""Speculative decoding: what a draft saves per token, with its own cache and its own prefill counted.

    step      = k drafted tokens one by one + one target step over k+1 tokens
    accepted  = (1 - a^(k+1)) / (1 - a)        a: chance that a drafted token is right, independent per position
    gain      = target step x accepted / step

The win grows with context when the target's cache reads grow faster than the draft's: both read their own caches, so a
draft with few KV heads, a window or a latent keeps its price while the target's step becomes dear. A full-attention
draft with its own long cache loses that advantage, and needs memory for it. Source of the acceptance formula: Leviathan
et al., arXiv:2211.17192, equation 1.
"""

from __future__ import annotations

from dataclasses import dataclass

from longproof.errors import UsageError
from longproof.hardware.device import Device
from longproof.plan.capacity import Layout
from longproof.plan.perf_decode import Batch, decode_time
from longproof.plan.perf_estimate import Precision, Rates, TimeEstimate
from longproof.plan.perf_prefill import Prompt, prefill_time
from longproof.plan.perf_work import ModelWork


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """`work` drafts `tokens` per step, each right with chance `acceptance` (0 to 1)."""

    work: ModelWork
    tokens: int
    acceptance: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculativeGain:
    """Per-token time without and with a draft, at one context and batch.

    `accepted_per_step`: tokens a step yields, the target's own included. `draft_prefill`: what the prompt costs more
    once. `draft_cache_bytes`: what each sequence holds more.
    """

    plain: TimeEstimate
    draft_step: TimeEstimate
    verify_step: TimeEstimate
    drafted: int
    accepted_per_step: float
    draft_prefill: TimeEstimate
    draft_cache_bytes: float

    @property
    def seconds_per_token(self) -> float:
        """With the draft."""
        return (self.drafted * self.draft_step.seconds + self.verify_step.seconds) / self.accepted_per_step

    @property
    def gain(self) -> float:
        """Plain time per token over the time with the draft; below 1 the draft costs time."""
        return self.plain.seconds / self.seconds_per_token

    @property
    def pays_back_tokens(self) -> float | None:
        """Output tokens after which the draft's prefill is earned back; None when it never is."""
        saved = self.plain.seconds - self.seconds_per_token
        return self.draft_prefill.seconds / saved if saved > 0 else None


def accepted_per_step(acceptance: float, drafted: int) -> float:
    """Expected tokens of one step: 1 + a + … + a^k. Raises UsageError for a chance outside 0 … 1."""
    if not 0 <= acceptance <= 1:
        raise UsageError(f"an acceptance of {acceptance} is no probability", advice="give a number from 0 to 1")
    return sum(acceptance**i for i in range(drafted + 1))


def speculative_gain(
    target: ModelWork,
    draft: Draft,
    device: Device,
    batch: Batch,
    *,
    layout: Layout | None = None,
    draft_layout: Layout | None = None,
    precision: Precision | None = None,
    rates: Rates | None = None,
) -> SpeculativeGain:
    """Compare decoding with and without a draft at one context. `draft_layout` None: the target's."""
    own = draft_layout or layout
    verify = Batch(
        sequences=batch.sequences, context_tokens=batch.context_tokens, tokens_each=batch.tokens_each + draft.tokens
    )
    context = max(1, round(batch.context_tokens))
    return SpeculativeGain(
        plain=decode_time(target, device, batch, layout=layout, precision=precision, rates=rates),
        draft_step=decode_time(draft.work, device, batch, layout=own, precision=precision, rates=rates),
        verify_step=decode_time(target, device, verify, layout=layout, precision=precision, rates=rates),
        drafted=draft.tokens,
        accepted_per_step=accepted_per_step(draft.acceptance, draft.tokens),
        draft_prefill=prefill_time(
            draft.work, device, Prompt(new_tokens=context), layout=own, precision=precision, rates=rates
        ),
        draft_cache_bytes=draft.work.sequence_bytes(context),
    )
