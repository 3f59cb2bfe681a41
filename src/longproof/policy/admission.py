"""May this request enter? Three questions, asked in order; the first "no" decides.

    limit      input + output ≤ the configured limit                        no → Reject
    capacity   every stage: blocks at full length ≤ what the stage has      no → Reject   (waiting would not help)
    load       every stage: blocks at entry ≤ what is free above the mark   no → Queue

Pure: a request, a limit and the pools' states in, a verdict out. "At entry" is the engine's reservation policy: all of
the output at once, none of it, a share, or what such requests were measured to produce; less the blocks of a prefix
that running requests hold already. Waiting requests are none of this module's business.

`decide` is the decision, with its reasons. `shortage_blocks` and `longest_total_tokens` are the same decision as
numbers, for callers that ask thousands of times a second; a property test holds them together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from longproof.domain.shapes import RequestShape
from longproof.domain.units import format_tokens
from longproof.domain.verdict import AdmissionVerdict, Admit, Change, Check, Question, Queue, Reject
from longproof.policy.ledger import PoolState


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """How much of the output allowance is reserved at entry: `output_share` of at most `output_cap_tokens`; with
    `measured`, of at most what such requests turned out to produce, and the cap only until that is known."""

    output_share: float
    source: str
    output_cap_tokens: int | None = None
    measured: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.output_share <= 1:
            raise ValueError(f"output_share {self.output_share} is not within 0 and 1")

    def entry_tokens(self, shape: RequestShape, expected_output_tokens: int | None = None) -> int:
        """Tokens charged when the request enters."""
        return shape.input_tokens + self.charged_output_tokens(shape.output_tokens, expected_output_tokens)

    def charged_output_tokens(self, allowance_tokens: int, expected_tokens: int | None = None) -> int:
        """The part of an output allowance that is charged at entry."""
        output, most = allowance_tokens, self.output_cap_tokens
        if self.measured and expected_tokens is not None:
            most = expected_tokens
        if most is not None and most < output:
            output = most
        return output if self.output_share == 1 else math.ceil(output * self.output_share)


UPFRONT = Reservation(
    output_share=1.0, source="the whole window at entry (llama.cpp slots, TensorRT-LLM GUARANTEED_NO_EVICT)"
)
INCREMENTAL = Reservation(
    output_share=0.0, source="the input at entry, output as it comes (vLLM 0.32 scheduler-reserve-full-isl)"
)
SGLANG = Reservation(
    output_share=0.7,
    output_cap_tokens=4096,
    source="SGLang 0.5.23: SGLANG_INIT_NEW_TOKEN_RATIO 0.7 of at most SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION 4096;"
    " the ratio then decays towards 0.098 while nothing is retracted",
)
MEASURED = Reservation(
    output_share=1.0,
    output_cap_tokens=4096,
    measured=True,
    source="the input and the output such requests turned out to produce, more as it comes: what a gateway charges so"
    " that an engine which reserves as it goes never has to preempt",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionRule:
    """The configuration admission judges by. `limit_tokens`: the configured sequence limit, None = none is set."""

    limit_tokens: int | None
    reservation: Reservation = UPFRONT
    limit_name: str = "the configured limit"


def decide(
    shape: RequestShape,
    pools: Sequence[PoolState],
    rule: AdmissionRule,
    *,
    shared_blocks: Mapping[str, int] | None = None,
    expected_output_tokens: int | None = None,
) -> AdmissionVerdict:
    """The verdict for `shape` on `pools`, every stage of one replica that it passes.

    `shared_blocks`: by pool, blocks of its prefix that running requests hold already (`Ledger.found_blocks`); they need
    no room now, but count towards the capacity like all others. `expected_output_tokens`: see `Reservation.measured`.
    Raises ValueError when no pool is given: without one nothing can be said about capacity.
    """
    if not pools:
        raise ValueError("no pool was given")
    entry = rule.reservation.entry_tokens(shape, expected_output_tokens)
    asked: list[Check] = []
    for question in Question:
        found = _checks(question, shape, pools, rule, entry, shared_blocks or {})
        asked += found
        failed = min((c for c in found if not c.fits), key=lambda c: c.margin, default=None)
        if failed is not None:
            return _refuse(failed, shape, pools, rule, tuple(asked))
    return Admit(binding=min(asked, key=_slack), checks=tuple(asked))


def reserved_tokens(shape: RequestShape, pools: Sequence[PoolState], rule: AdmissionRule) -> dict[str, int]:
    """What `Ledger.reserve` has to be given for a request that `decide` admitted."""
    return {state.pool.name: rule.reservation.entry_tokens(shape) for state in pools}


def shortage_blocks(
    entry_tokens: int, pools: Sequence[PoolState], shared_blocks: Mapping[str, int] | None = None
) -> int:
    """The question of load as a number: how many blocks the tightest stage lacks for `entry_tokens` now. 0 or less:
    `decide` admits what fits limit and capacity; above: it queues."""
    if not pools:
        raise ValueError("no pool was given")
    if len(pools) == 1 and not shared_blocks:  # asked of every replica for every request
        return pools[0].pool.need.blocks(entry_tokens) - pools[0].enterable_blocks
    return max(shortages(entry_tokens, pools, shared_blocks))


def shortages(
    entry_tokens: int, pools: Sequence[PoolState], shared_blocks: Mapping[str, int] | None = None
) -> list[int]:
    """`shortage_blocks` stage by stage, each in its own blocks."""
    return [_needed_now(entry_tokens, state, shared_blocks) - state.enterable_blocks for state in pools]


def longest_total_tokens(pools: Sequence[PoolState], rule: AdmissionRule) -> int | None:
    """Limit and capacity as a number: the longest input + output that `decide` does not reject. None = there is
    neither a limit nor a stage that grows with the length."""
    most = _MOST_TOKENS if rule.limit_tokens is None else rule.limit_tokens
    longest = min(state.pool.need.longest_tokens(state.pool.capacity_blocks, at_most=most) for state in pools)
    return None if longest == _MOST_TOKENS else longest


_MOST_TOKENS = 1 << 50
"""Beyond any window or pool."""


def _needed_now(entry_tokens: int, state: PoolState, shared_blocks: Mapping[str, int] | None) -> int:
    needed = state.pool.need.blocks(entry_tokens)
    return needed - shared_blocks.get(state.pool.name, 0) if shared_blocks else needed


def _checks(
    question: Question,
    shape: RequestShape,
    pools: Sequence[PoolState],
    rule: AdmissionRule,
    entry_tokens: int,
    shared_blocks: Mapping[str, int],
) -> list[Check]:
    if question is Question.LIMIT:
        if rule.limit_tokens is None:
            return []
        return [
            Check(question=question, where="", needed=shape.total_tokens, available=rule.limit_tokens, unit="tokens")
        ]
    found: list[Check] = []
    for state in pools:
        need = state.pool.need
        unit = "places" if not need.grows else "tokens" if need.block_tokens == 1 else "blocks"
        if question is Question.CAPACITY:
            needed, available = need.blocks(shape.total_tokens), state.pool.capacity_blocks
        else:
            needed, available = _needed_now(entry_tokens, state, shared_blocks), state.enterable_blocks
        found.append(Check(question=question, where=state.pool.name, needed=needed, available=available, unit=unit))
    return found


def _slack(check: Check) -> float:
    return check.margin / check.available if check.available else 0.0


def _refuse(
    failed: Check, shape: RequestShape, pools: Sequence[PoolState], rule: AdmissionRule, asked: tuple[Check, ...]
) -> Queue | Reject:
    amounts = f"{format_tokens(failed.needed)} {failed.unit} needed, {format_tokens(failed.available)}"
    size = (
        f"{format_tokens(shape.input_tokens)} input and {format_tokens(shape.output_tokens)} output tokens"
        f" ({format_tokens(shape.total_tokens)} in all)"
    )
    match failed.question:
        case Question.LIMIT:
            return Reject(
                binding=failed,
                reason=f"{size} exceed {rule.limit_name} of {format_tokens(failed.available)} tokens",
                change=_limit_change(shape, rule, failed.available),
                checks=asked,
            )
        case Question.CAPACITY:
            longest = _longest(failed.where, pools, shape.total_tokens)
            return Reject(
                binding=failed,
                reason=f"{size} exceed stage {failed.where}: {amounts} there when it is idle;"
                f" the longest request it holds has {format_tokens(longest)} tokens",
                change=Change(
                    name=f"capacity of {failed.where}",
                    current=failed.available,
                    wanted=failed.needed,
                    unit=failed.unit,
                ),
                checks=asked,
            )
        case Question.LOAD:
            return Queue(
                binding=failed,
                reason=f"{size} do not fit stage {failed.where} now: {amounts} free above the watermark",
                change=Change(
                    name=f"free space at {failed.where}",
                    current=failed.available,
                    wanted=failed.needed,
                    unit=failed.unit,
                ),
                checks=asked,
            )


def _limit_change(shape: RequestShape, rule: AdmissionRule, limit: int) -> Change:
    """The output allowance where trimming it is enough, else the content, else the limit itself."""
    room = limit - shape.input_tokens
    if room >= 1:
        return Change(name="output allowance", current=shape.output_tokens, wanted=room, unit="tokens")
    content = limit - shape.template_tokens - shape.output_tokens
    if content >= 1:
        return Change(name="input content", current=shape.content_tokens, wanted=content, unit="tokens")
    return Change(name=rule.limit_name, current=limit, wanted=shape.total_tokens, unit="tokens")


def _longest(where: str, pools: Sequence[PoolState], at_most: int) -> int:
    pool = next(state.pool for state in pools if state.pool.name == where)
    return pool.need.longest_tokens(pool.capacity_blocks, at_most=at_most)
