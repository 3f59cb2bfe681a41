"""What an engine says of its cache, beside the books: whose blocks they are that we did not book."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from longproof.domain.engine_metrics import usage_of_side
from longproof.domain.events import EngineSample
from longproof.domain.fleet import UNBOUNDED_BLOCKS
from longproof.policy.ledger import Ledger

_IDLE_USAGE = 0.02
"""An idle vLLM shows next to nothing: what a prefill instance still holds for its decode instance stays below this."""


@dataclass(slots=True, eq=False)
class EngineFigures:
    """One replica's. `one_stage`: a single stage grows with the length; `paired`: a prefill and a decode side."""

    one_stage: bool
    paired: bool
    sample: EngineSample | None = None
    excess: dict[str, int] = field(default_factory=dict[str, int])
    """By pool: the engine's figure at the last sample less ours."""
    _usage_has_cache: bool = False

    @property
    def usage(self) -> float | None:
        """The engine's last figure of what is in use; None where it has none, or counts what is only cached."""
        return None if self.sample is None or self._usage_has_cache else self.sample.kv_usage

    def correct(self, ledger: Ledger, sample: EngineSample, used_blocks: Mapping[str, int]) -> None:
        """Book as somebody else's what the engine shows beyond ours. `used_blocks`: by pool, what our requests use."""
        self.sample = sample
        if sample.kv_usage is None or self._counts_cache(ledger, sample):
            return
        for name, account in ledger.accounts.items():
            if not account.pool.need.grows or account.pool.capacity_blocks >= UNBOUNDED_BLOCKS:
                continue
            side = usage_of_side(sample, account.pool.stage)
            usage = sample.kv_usage if side is None else side
            excess = round(usage * account.pool.capacity_blocks) - used_blocks.get(name, 0) - account.told.blocks
            # one sample may be a step old: only what two in a row show is somebody else's
            lasting = max(0, min(excess, self.excess.get(name, 0)))
            self.excess[name] = excess
            if (self.one_stage or side is not None) and lasting != account.foreign_blocks:
                ledger.set_foreign(name, lasting)

    def forget(self, ledger: Ledger) -> None:
        """A new process with an empty cache: nothing there is anybody else's."""
        self.sample = None
        self.excess.clear()
        for name in ledger.accounts:
            ledger.set_foreign(name, 0)

    def _counts_cache(self, ledger: Ledger, sample: EngineSample) -> bool:
        """Whether the engine's usage includes blocks that are only cached, which are free for whoever comes: it does if
        it ever shows some while it says that nothing runs or waits. Such a figure corrects nothing."""
        if self.paired:  # vLLM's never does; a prefill side that keeps blocks for its decode side looks idle
            return False
        idle = sample.running == 0 and not sample.waiting
        if idle and (sample.kv_usage or 0.0) > _IDLE_USAGE and not self._usage_has_cache:
            self._usage_has_cache = True
            self.excess.clear()
            for name in ledger.accounts:
                ledger.set_foreign(name, 0)
        return self._usage_has_cache
