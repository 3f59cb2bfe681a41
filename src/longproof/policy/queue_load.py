"""How much waits before a new request: prefill and KV tokens, by the size of those that wait.

Sizes fall into buckets, four to the doubling, so that the answer takes no time per waiting request; what is as large as
the newcomer within a bucket counts as before it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

_BUCKETS = 256


@dataclass(frozen=True, slots=True)
class Ahead:
    """Served before it, as things stand. `late_work_ns` is that part of `work_ns` which is there by its age."""

    requests: int
    work_ns: int
    tokens: int
    late_work_ns: int


@dataclass(slots=True)
class QueueLoad:
    """Sums over the waiting: the fresh ones by bucket of work, the late ones together."""

    _count: list[int] = field(default_factory=lambda: [0] * _BUCKETS)
    _work: list[int] = field(default_factory=lambda: [0] * _BUCKETS)
    _tokens: list[int] = field(default_factory=lambda: [0] * _BUCKETS)
    _late_count: int = 0
    _late_work: int = 0
    _late_tokens: int = 0

    def add(self, work_ns: int, tokens: int) -> None:
        """A fresh one more."""
        at = _bucket(work_ns)
        self._count[at] += 1
        self._work[at] += work_ns
        self._tokens[at] += tokens

    def drop(self, work_ns: int, tokens: int) -> None:
        """A fresh one less."""
        at = _bucket(work_ns)
        self._count[at] -= 1
        self._work[at] -= work_ns
        self._tokens[at] -= tokens

    def add_late(self, work_ns: int, tokens: int) -> None:
        """A late one more."""
        self._late_count += 1
        self._late_work += work_ns
        self._late_tokens += tokens

    def drop_late(self, work_ns: int, tokens: int) -> None:
        """A late one less."""
        self._late_count -= 1
        self._late_work -= work_ns
        self._late_tokens -= tokens

    def ahead_of(self, work_ns: int, late_share: float) -> Ahead:
        """What goes before a new request of `work_ns`: all that is no larger, and of the late their share of the
        time that takes."""
        end = _bucket(work_ns) + 1
        fresh, tokens = sum(self._work[:end]), sum(self._tokens[:end])
        late = self._late_work
        if late_share < 1:
            late = min(late, int((fresh + work_ns) * late_share / (1 - late_share)))
        late_tokens, late_count = self._late_tokens, self._late_count
        if self._late_work:
            late_tokens = late_tokens * late // self._late_work
            late_count = late_count * late // self._late_work
        return Ahead(sum(self._count[:end]) + late_count, fresh + late, tokens + late_tokens, late)


def _bucket(work_ns: int) -> int:
    octave = work_ns.bit_length()
    if octave < 3:
        return octave
    return min(_BUCKETS - 1, 4 * octave + ((work_ns >> (octave - 3)) & 3))
