"""Two modelled replicas. Both have a real LRU prefix cache and publish what it stores and drops.

    FifoEngine     one prefill at a time in the order of arrival, at a constant rate; answers run beside it
    SteppedEngine  continuous batching: every step has one token of each running stream and a chunk of prefill; KV
                   blocks are reserved by running requests, what is cached and unused is evicted

SteppedEngine takes its times from a formula of
the mocker of NVIDIA Dynamo (`perf_model.rs`, "polynomial": prefill by the tokens of the step, decode by the share of
the KV pool in use), so that its overload replay can be held against theirs.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import Protocol

from longproof.domain.kv_event import KvEvent, KvRemoved, KvStored
from longproof.domain.units import NS_PER_MS
from routing.requests import Job


class Sink(Protocol):
    """What an engine tells: at once, in the order of time."""

    def at(self, when_ns: int, engine: Engine, what: object) -> None:
        """Call `engine.on(what, when_ns)` then."""
        ...

    def first_token(self, job: Job, now_ns: int) -> None:
        """Its prefill is done."""
        ...

    def produced(self, job: Job, output_tokens: int, now_ns: int) -> None:
        """It has so many tokens."""
        ...

    def finished(self, job: Job, now_ns: int) -> None:
        """Its answer is complete."""
        ...

    def cache_changed(self, engine: Engine, events: list[KvEvent], now_ns: int) -> None:
        """Its prefix cache stored or dropped blocks."""
        ...


class Engine(Protocol):
    """One replica."""

    name: str
    uncached_tokens: int

    def submit(self, job: Job, now_ns: int) -> None:
        """A request comes in."""
        ...

    def on(self, what: object, now_ns: int) -> None:
        """Something it had asked for is due."""
        ...


class LruCache:
    """Blocks by last use; blocks of running requests are not evicted. `tail_first`: of one prompt's blocks the last
    goes first (vLLM, SGLang); else its first, which makes the rest useless (a plain LRU)."""

    def __init__(self, capacity_blocks: int, *, tail_first: bool = True) -> None:
        self.capacity_blocks = capacity_blocks
        self._tail_first = tail_first
        self._blocks: OrderedDict[int, None] = OrderedDict()
        self._uses: dict[int, int] = {}

    def match(self, blocks: tuple[int, ...]) -> int:
        """Blocks from the first that are held."""
        found = 0
        for name in blocks:
            if name not in self._blocks and name not in self._uses:
                break
            found += 1
        return found

    def hold(self, blocks: tuple[int, ...]) -> None:
        """A request uses them; they leave the list of what may go."""
        for name in blocks:
            self._blocks.pop(name, None)
            self._uses[name] = self._uses.get(name, 0) + 1

    def release(self, blocks: tuple[int, ...]) -> None:
        """It is over; its blocks may go."""
        for name in reversed(blocks) if self._tail_first else blocks:
            self._uses[name] -= 1
            if not self._uses[name]:
                del self._uses[name]
                self._blocks[name] = None

    @property
    def held_blocks(self) -> int:
        """Blocks that running requests use, shared ones once."""
        return len(self._uses)

    def evict(self, down_to_blocks: int) -> list[int]:
        """Drop unused blocks, oldest first, until so many are left in all; returns their names."""
        gone: list[int] = []
        while self._blocks and len(self._blocks) + len(self._uses) > down_to_blocks:
            gone.append(self._blocks.popitem(last=False)[0])
        return gone


class FifoEngine:
    """`block_tokens` tokens per block, `tokens_per_s` prefill, `answer_ns` from first token to the end of an answer. A
    request's cached part is whole blocks, never its last token."""

    def __init__(
        self,
        name: str,
        sink: Sink,
        *,
        cache: LruCache,
        block_tokens: int,
        tokens_per_s: float,
        answer_ns: int,
    ) -> None:
        self.name = name
        self.uncached_tokens = 0
        self._sink = sink
        self._cache = cache
        self._block_tokens = block_tokens
        self._tokens_per_s = tokens_per_s
        self._answer_ns = answer_ns
        self._queue: deque[Job] = deque()

    def submit(self, job: Job, now_ns: int) -> None:
        self._queue.append(job)
        if len(self._queue) == 1:
            self._begin(now_ns)

    def on(self, what: object, now_ns: int) -> None:
        if isinstance(what, Job):
            self._sink.finished(what, now_ns)
            return
        job = self._queue.popleft()
        self._store(job, now_ns)
        if self._queue:  # before anybody hears of it: what they send then comes behind
            self._begin(now_ns)
        self._sink.first_token(job, now_ns)
        self._sink.at(now_ns + self._answer_ns, self, job)

    def _begin(self, now_ns: int) -> None:
        job = self._queue[0]
        most = (job.input_tokens - 1) // self._block_tokens * self._block_tokens
        job.cached_tokens = min(self._cache.match(job.blocks) * self._block_tokens, most)
        uncached = job.input_tokens - job.cached_tokens
        self.uncached_tokens += uncached
        self._sink.at(now_ns + int(uncached * 1e9 / self._tokens_per_s), self, None)

    def _store(self, job: Job, now_ns: int) -> None:
        known = self._cache.match(job.blocks)
        self._cache.hold(job.blocks)
        self._cache.release(job.blocks)
        gone = self._cache.evict(self._cache.capacity_blocks)
        events: list[KvEvent] = [KvStored(blocks=job.blocks[known:])]
        if gone:
            events.append(KvRemoved(blocks=tuple(gone)))
        self._sink.cache_changed(self, events, now_ns)


@dataclass(slots=True)
class _Running:
    job: Job
    done_at_step: int
    blocks_held: int


@dataclass(slots=True)
class _Step:
    """`finished`: a prefill that this step completes. `number`: a step that was interrupted is void."""

    number: int
    steps: int
    begun_ns: int
    step_ns: int
    finished: list[Job] = field(default_factory=list[Job])


class SteppedEngine:
    """A vLLM-like replica: `kv_blocks` of `block_tokens`, at most `step_tokens` of prefill per step, in the order of
    arrival; the prompt's blocks are reserved at its start, its output's as it grows (here: at the start too, so that
    nothing is ever preempted). `name_tokens`: tokens per block as a trace names them, in which the cache is kept."""

    def __init__(
        self, name: str, sink: Sink, *, kv_blocks: int, block_tokens: int, step_tokens: int, name_tokens: int
    ) -> None:
        self.name = name
        self.uncached_tokens = 0
        self._sink = sink
        self._kv_tokens = kv_blocks * block_tokens
        self._name_tokens = name_tokens
        self._step_tokens = step_tokens
        self._cache = LruCache(self._kv_tokens // name_tokens)
        self._private_blocks = 0
        self._waiting: deque[Job] = deque()
        self._prefilling: deque[list[int | Job]] = deque()
        self._running: list[_Running] = []
        self._context_tokens = 0
        self._steps_done = 0
        self._number = 0
        self._current: _Step | None = None

    def submit(self, job: Job, now_ns: int) -> None:
        self._waiting.append(job)
        current = self._current
        if current is None:
            self._next(now_ns)
        elif current.steps > 1:  # a long row of pure decode steps: cut it at the next step's end
            passed = max(1, -(-(now_ns - current.begun_ns) // current.step_ns))
            if passed < current.steps:
                self._number += 1
                current.number, current.steps = self._number, passed
                self._sink.at(current.begun_ns + passed * current.step_ns, self, self._number)

    def on(self, what: object, now_ns: int) -> None:
        current = self._current
        if current is None or what != current.number:
            return
        self._steps_done += current.steps
        self._context_tokens += current.steps * len(self._running)
        for job in current.finished:
            self._sink.first_token(job, now_ns)
            self._running.append(_Running(job, self._steps_done + job.output_tokens - 1, self._tail_blocks(job)))
            self._context_tokens += job.input_tokens
        over = [one for one in self._running if one.done_at_step <= self._steps_done]
        if over:
            self._running = [one for one in self._running if one.done_at_step > self._steps_done]
            for one in over:
                self._context_tokens -= one.job.input_tokens + one.job.output_tokens - 1
                self._private_blocks -= one.blocks_held
                self._cache.release(one.job.blocks)
                self._sink.produced(one.job, one.job.output_tokens, now_ns)
                self._sink.finished(one.job, now_ns)
        self._current = None
        self._next(now_ns)

    def _tail_blocks(self, job: Job) -> int:
        """Blocks of the output, beyond those that have names."""
        total = -(-(job.input_tokens + job.output_tokens) // self._name_tokens)
        return max(0, total - len(job.blocks))

    def _admit(self, now_ns: int) -> None:
        while self._waiting:
            job = self._waiting[0]
            found = self._cache.match(job.blocks)
            new_blocks = len(job.blocks) - found + self._tail_blocks(job)
            wanted = self._cache.held_blocks + self._private_blocks + new_blocks
            if wanted > self._cache.capacity_blocks and (self._running or self._prefilling):
                return
            self._waiting.popleft()
            job.cached_tokens = min(found * self._name_tokens, job.input_tokens - 1)
            uncached = job.input_tokens - job.cached_tokens
            self.uncached_tokens += uncached
            self._cache.hold(job.blocks)
            self._private_blocks += self._tail_blocks(job)
            events: list[KvEvent] = [KvStored(blocks=job.blocks[found:])]
            gone = self._cache.evict(self._cache.capacity_blocks - self._private_blocks)
            if gone:
                events.append(KvRemoved(blocks=tuple(gone)))
            self._sink.cache_changed(self, events, now_ns)
            self._prefilling.append([uncached, job])

    def _next(self, now_ns: int) -> None:
        """Begin the next step, or a row of equal ones when there is nothing to prefill."""
        self._admit(now_ns)
        budget, spent, finished = self._step_tokens, 0, list[Job]()
        while self._prefilling and budget:
            entry = self._prefilling[0]
            left, job = entry
            assert isinstance(left, int)
            assert isinstance(job, Job)
            part = min(left, budget)
            budget -= part
            spent += part
            if part == left:
                self._prefilling.popleft()
                finished.append(job)
            else:
                entry[0] = left - part
        if not spent and not self._running:
            return
        steps = 1
        if not spent:
            steps = max(1, min(one.done_at_step for one in self._running) - self._steps_done)
        step_ns = self._step_ns(spent)
        self._number += 1
        self._current = _Step(self._number, steps, now_ns, step_ns, finished)
        self._sink.at(now_ns + steps * step_ns, self, self._number)

    def _step_ns(self, prefill_tokens: int) -> int:
        ms = 0.0
        if prefill_tokens:
            ms += 4.209989e-07 * prefill_tokens**2 + 1.518344e-02 * prefill_tokens + 1.650142e01
        if self._running:
            share = min(1.0, self._context_tokens / self._kv_tokens)
            ms += max(1.0, -25.74 * share**2 + 54.01 * share + 5.74)
        return int(ms * NS_PER_MS)
