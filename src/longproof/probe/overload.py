"""Overload: where does useful work peak as more is asked, what gives beyond it, and does the server come back?

    warm-up    one request that enters no number: engines compile and allocate on the first
    idle       one request at a time: what one takes by itself, and so what is good enough
    step       concurrency (or arrivals a second) from below capacity to well beyond it; each a window of `step_ns`
    recovery   the load stops; one request at a time until the times are those of the idle server again

Nobody is given up before a server that works one request after the other would have answered: waiting is no fault.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from longproof.asking.arrivals import one_length
from longproof.asking.background import Background, ShortRequests
from longproof.asking.context import Cell, ProbeContext
from longproof.asking.prompts import LengthUnproven
from longproof.asking.recovery import check_alive
from longproof.asking.window import Load, run_window, stored_window
from longproof.clock import NS_PER_S
from longproof.domain.events import RequestTimeline
from longproof.domain.outcome import Outcome, classify, completed_as_asked
from longproof.domain.request import GenerationRequest
from longproof.evidence.records import WindowBody
from longproof.evidence.windows import Window

PROBE = "overload"
_IN_A_ROW = 3
_BAND = 1.5
_BAND_NS = 2_000_000
_FUTILE = 2
_LEAST_IDLE = 8
"""So many requests that the idle server's times are known; on a slow server that takes longer than planned."""
_BROKEN = (Outcome.UNREACHABLE, Outcome.CUT, Outcome.SERVER_ERROR)


@dataclass(frozen=True, slots=True, kw_only=True)
class OverloadPlan:
    """`concurrencies`: requests at a time, step by step; or `rates_per_s`, Poisson. One of the two is given. A request
    is good when its TTFT and TPOT keep `slo_ttft_s` and `slo_tpot_s`; None: `slo_times` its 95th percentile when idle.
    `recovery_ns`: so long the server gets to recover, watched in windows of `slice_ns`; more than `slow_after_ns` is
    slow. `patience`: how many times longer than all requests one after the other a request may take."""

    prompt_tokens: int
    output_tokens: int
    concurrencies: tuple[int, ...] = ()
    rates_per_s: tuple[float, ...] = ()
    step_ns: int = 10 * NS_PER_S
    idle_ns: int = 10 * NS_PER_S
    slo_ttft_s: float | None = None
    slo_tpot_s: float | None = None
    slo_times: float = 5.0
    recovery_ns: int = 60 * NS_PER_S
    slice_ns: int = NS_PER_S
    slow_after_ns: int = NS_PER_S
    patience: float = 2.0
    least_patience_s: float = 10.0
    sample_every_s: float = 0.25
    seed: int = 0
    request_s: float = 1.0

    def __post_init__(self) -> None:
        if bool(self.concurrencies) == bool(self.rates_per_s):
            raise ValueError("an overload is made of concurrencies or of rates: one of them")


def doubling(most: int, *, first: int = 2) -> tuple[int, ...]:
    """``2, 4, 8 …`` up to `most`, which is always the last."""
    steps: list[int] = []
    step = first
    while step < most:
        steps.append(step)
        step *= 2
    return (*steps, most)


def cost(plan: OverloadPlan, output_tokens: int) -> tuple[int, int]:
    """(requests, tokens) of the whole probe, about: a closed loop sends as many as the server answers. The output is
    the plan's own, not `output_tokens`."""
    del output_tokens
    requests = round(plan.idle_ns / NS_PER_S / plan.request_s) + 2 * _IN_A_ROW
    requests += sum(_expected(background, plan) for background in _loads(plan))
    return requests, requests * (plan.prompt_tokens + plan.output_tokens)


async def run(ctx: ProbeContext, plan: OverloadPlan) -> None:
    """Runs all steps and waits for recovery. Raises BudgetSpent or EngineGone."""
    try:
        await _Overload(ctx, plan).run()
    except LengthUnproven as reason:
        ctx.note(
            f"{PROBE}/unproven", probe=PROBE, what="length_unproven", reason=str(reason), length=plan.prompt_tokens
        )


def _loads(plan: OverloadPlan) -> list[Background]:
    lengths = one_length(plan.prompt_tokens, plan.output_tokens)
    closed = [Background(lengths=lengths, concurrency=many, seed=plan.seed) for many in plan.concurrencies]
    return closed + [Background(lengths=lengths, rate_per_s=rate, seed=plan.seed) for rate in plan.rates_per_s]


def _expected(background: Background, plan: OverloadPlan) -> int:
    return background.expected_requests(plan.step_ns, plan.request_s)


class _Overload:
    def __init__(self, ctx: ProbeContext, plan: OverloadPlan) -> None:
        self._ctx = ctx
        self._plan = plan
        self._alone_s = 0.0
        lengths = one_length(plan.prompt_tokens, plan.output_tokens)
        self._one = Background(lengths=lengths, concurrency=1, seed=plan.seed)
        self._of_one = ShortRequests(ctx, self._one, probe=PROBE)

    async def run(self) -> None:
        first = await self._ask(f"{PROBE}/warmup", {"role": "warmup"})
        idle_ns = max(self._plan.idle_ns, _LEAST_IDLE * first.e2e_ns if completed_as_asked(first) else 0)
        idle = await self._window("idle", self._one, 0, idle_ns, phase="idle")
        done = [body.timeline for _, body in idle.requests if completed_as_asked(body.timeline)]
        if not done:
            self._ctx.note(f"{PROBE}/fails_alone", probe=PROBE, what="fails_alone", length=self._plan.prompt_tokens)
            return
        self._alone_s = median(timeline.e2e_ns for timeline in done) / NS_PER_S
        futile = 0
        for number, load in enumerate(_loads(self._plan), start=1):
            label = str(load.concurrency) if load.closed else f"{load.rate_per_s:g}"
            window = await self._window(f"step/{label}", load, number, self._plan.step_ns, phase="step")
            await self._check(window)
            futile = 0 if any(completed_as_asked(body.timeline) for _, body in window.requests) else futile + 1
            if futile == _FUTILE:
                self._ctx.note(f"{PROBE}/futile", probe=PROBE, what="futile", step=label)
                break
        await self._recovery(done, 1 + len(_loads(self._plan)))

    async def _window(self, name: str, load: Background, number: int, for_ns: int, *, phase: str) -> Window:
        key = f"{PROBE}/{name}"
        if not isinstance(self._ctx.journal.get(key), WindowBody):
            requests = self._of_one if load is self._one else ShortRequests(self._ctx, load, probe=PROBE)
            await requests.ready()
            expected = load.expected_requests(for_ns, self._alone_s or self._plan.request_s)
            cell: Cell = {"phase": phase, "number": number}
            await run_window(
                self._ctx,
                key,
                probe=PROBE,
                cell=cell,
                load=self._load(load, requests, number, for_ns),
                expected_tokens=expected * (self._plan.prompt_tokens + self._plan.output_tokens),
                expected_ns=for_ns,
                sample_every_s=self._plan.sample_every_s,
            )
        return stored_window(self._ctx, key)

    def _load(self, load: Background, requests: ShortRequests, number: int, for_ns: int) -> Load:
        scheduled = () if load.closed else load.arrivals(for_ns)
        timeout_s = self._timeout_s(load.concurrency or len(scheduled))
        describe: Cell = {
            **load.describe(),
            "for_ns": for_ns,
            "timeout_s": timeout_s,
            "prompt_tokens": self._plan.prompt_tokens,
            "output_tokens": self._plan.output_tokens,
            "slo_times": self._plan.slo_times,
            "slow_after_ns": self._plan.slow_after_ns,
        }
        if self._plan.slo_ttft_s is not None:
            describe["slo_ttft_s"] = self._plan.slo_ttft_s
        if self._plan.slo_tpot_s is not None:
            describe["slo_tpot_s"] = self._plan.slo_tpot_s
        if not load.closed:
            return Load(for_ns=0, scheduled=requests.scheduled(number, for_ns, timeout_s), describe=describe)
        stock = requests.closed(number, timeout_s)
        return Load(for_ns=for_ns, concurrency=load.concurrency, stock=stock, describe=describe)

    def _timeout_s(self, together: int) -> float:
        """All of them one after the other, and `patience` times that."""
        most = self._ctx.protocol.request_timeout_s
        if not self._alone_s:
            return most
        return min(most, max(self._plan.least_patience_s, self._plan.patience * together * self._alone_s))

    async def _check(self, window: Window) -> None:
        broken = [body.timeline for _, body in window.requests if classify(body.timeline) in _BROKEN]
        if broken:
            gone = [timeline for timeline in broken if classify(timeline) is Outcome.UNREACHABLE]
            await check_alive(self._ctx, f"{window.body.prefix}check", probe=PROBE, after=(gone or broken)[-1])

    # -- recovery -----------------------------------------------------------------------------------------------------

    async def _recovery(self, idle: list[RequestTimeline], first_number: int) -> None:
        """One request at a time, slice by slice, until some in a row are as quick as on the idle server."""
        ttft_ns = _edge([timeline.ttft_ns for timeline in idle if timeline.ttft_ns])
        tpot_ns = _edge([timeline.tpot_ns for timeline in idle if timeline.tpot_ns])
        self._ctx.note(
            f"{PROBE}/band",
            probe=PROBE,
            what="band",
            ttft_ns=ttft_ns,
            tpot_ns=tpot_ns,
            in_a_row=_IN_A_ROW,
            most_ns=self._plan.recovery_ns,
            n=len(idle),
        )
        in_a_row, watched_ns = 0, 0
        for number in range(max(1, self._plan.recovery_ns // self._plan.slice_ns)):
            window = await self._window(
                f"recovery/{number}", self._one, first_number + number, self._plan.slice_ns, phase="recovery"
            )
            for _, body in sorted(window.requests, key=lambda found: found[1].timeline.submitted_ns):
                timeline = body.timeline
                quick = completed_as_asked(timeline) and (timeline.ttft_ns or 0) <= ttft_ns
                in_a_row = in_a_row + 1 if quick and (timeline.tpot_ns or 0) <= tpot_ns else 0
                if in_a_row == _IN_A_ROW:
                    return
            await self._check(window)
            watched_ns += window.body.ended_ns - window.body.started_ns
            if watched_ns >= self._plan.recovery_ns:
                return

    async def _ask(self, key: str, cell: Cell) -> RequestTimeline:
        async def build(nonce: str) -> GenerationRequest:
            built = await self._ctx.prompts.exact(self._plan.prompt_tokens, nonce=nonce)
            return GenerationRequest(
                prompt=built.prompt,
                max_tokens=self._plan.output_tokens,
                prompt_tokens=built.count.total,
                count_source=built.count.source,
                cold=self._ctx.engine.capabilities.cold,
                seed=self._ctx.protocol.seed,
                timeout_s=self._timeout_s(1),
            )

        tokens = self._plan.prompt_tokens + self._plan.output_tokens
        return (await self._ctx.ask(key, probe=PROBE, cell=cell, build=build, expected_tokens=tokens)).timeline


def _edge(idle_ns: list[int] | list[float]) -> int:
    """Where the band of the idle server ends: half as long again as the longest of its times."""
    return round(_BAND * max(idle_ns, default=0)) + _BAND_NS
