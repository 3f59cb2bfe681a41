"""Is a replica there, and is it the same one as before? From what came of reading its metrics. Pure.

    answered                       up
    counters fell                  restarted: a new process, with nothing in its cache
    refused, twice in a row        down; when it answers again: restarted (nobody keeps a cache while not listening)
    silent                         a busy engine may answer late, so it stays up; silent for `silent_after_ns`: down,
                                   and up again with its first answer, unless its counters fell

An engine that answers requests with errors is the controller's business (its circuit breaker), not ours.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from longproof.clock import NS_PER_S
from longproof.domain.engine_metrics import SIDES, growth
from longproof.domain.events import EngineSample
from longproof.domain.fleet import ReplicaState

_NAMES = (
    "vllm:prompt_tokens_total",
    "vllm:generation_tokens_total",
    "sglang:prompt_tokens_total",
    "sglang:generation_tokens_total",
    "llamacpp:prompt_tokens_total",
    "llamacpp:tokens_predicted_total",
)
_COUNTERS = tuple(side + name for side in SIDES for name in _NAMES)
"""Of a pair either side's: what went from one to the other is lost with any of them."""
_REFUSALS = 2


@dataclass(slots=True, kw_only=True)
class ReplicaHealth:
    """One replica's. Every method returns the state that is new, None where nothing changed."""

    up: bool
    silent_after_ns: int = 60 * NS_PER_S
    reason: str = ""
    """Why it is down; "" while it is up."""
    _refused: int = 0
    _gone: bool = field(default=False)
    """It did not listen: whatever listens now is another process."""
    _silent_since_ns: int | None = None
    _before: EngineSample | None = None

    def answered(self, sample: EngineSample | None) -> ReplicaState | None:
        """It answered; `sample` None: without metrics."""
        was_up, was_gone = self.up, self._gone
        self.up, self._gone, self.reason = True, False, ""
        self._refused, self._silent_since_ns = 0, None
        before, self._before = self._before, sample or self._before
        fell = before is not None and sample is not None and any(_fell(before, sample, name) for name in _COUNTERS)
        if fell or (was_gone and before is not None):
            return ReplicaState.RESTARTED
        return None if was_up else ReplicaState.UP

    def refused(self, reason: str) -> ReplicaState | None:
        """Nothing listens, or the connection broke."""
        self._refused += 1
        self._silent_since_ns = None
        if self._refused < _REFUSALS:
            return None
        self._gone = True
        return self._down(reason)

    def silent(self, reason: str, now_ns: int) -> ReplicaState | None:
        """It took the connection and said nothing in time."""
        self._refused = 0
        if self._silent_since_ns is None:
            self._silent_since_ns = now_ns
        if now_ns - self._silent_since_ns < self.silent_after_ns:
            return None
        return self._down(reason)

    def _down(self, reason: str) -> ReplicaState | None:
        was_up, self.up, self.reason = self.up, False, reason
        return ReplicaState.DOWN if was_up else None


def _fell(before: EngineSample, after: EngineSample, name: str) -> bool:
    """Whether a counter that is in both fell; one that is gone may only be switched off."""
    labelled = name + "{"
    there = any(key == name or key.startswith(labelled) for key in after.values)
    return there and growth(before, after, name) is None
