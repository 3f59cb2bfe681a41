"""Busy: what becomes of a long request on a server that is at work, and of the short ones it meets?

    alone     short request ×1, long request × `twins`     nothing else runs: what each takes by itself
    before    ░░░░░░░░░░░░░░░░░░░░                         the background load alone
    during    ░░░░░█████████░░░░░    × `injections`        the same load; a cold long request comes after `lead_ns`
    after     ░░░░░░░░░░░░░░░░░░░░                         the background alone again: did the server itself drift?
    together  short request × `mixed`, twice               the same prompts one by one, and all at once: does each
                                                           get its own answer?
    follow-up short request ×1                             it must still serve

A request waits `patience` times as long as the long one takes alone before it is given up.
"""

from __future__ import annotations

from dataclasses import dataclass

from longproof.asking.background import Background, ShortRequests
from longproof.asking.context import Cell, ProbeContext
from longproof.asking.prompts import LengthUnproven
from longproof.asking.recovery import check_alive
from longproof.asking.window import Load, LoadRequest, run_window, stored_window
from longproof.clock import NS_PER_S
from longproof.domain.outcome import Outcome, classify, completed_as_asked
from longproof.domain.request import GenerationRequest
from longproof.evidence.records import RequestBody, WindowBody
from longproof.evidence.windows import Window

PROBE = "busy"
_MOST_HANGS = 2
_LEAST_TOLD = 16
"""Output tokens by which two answers are told apart."""
_LEAST_SHORTS = 8
"""So many times what a short request takes alone, a background is watched at least."""
_SUSPECT = (Outcome.UNREACHABLE, Outcome.HUNG, Outcome.TIMED_OUT, Outcome.CUT, Outcome.SERVER_ERROR, Outcome.EMPTY)


@dataclass(frozen=True, slots=True, kw_only=True)
class BusyPlan:
    """`long_tokens`: prompt of the long request. `alone_ns`: how long the background is watched alone, before and
    after, behind `lead_ns` in which it gets going; so long after the beginning the long request is sent, and the load
    goes on until that is over, for `tail_ns` at least. `twins`: how often the long request is asked alone. `short_s`:
    what a short request is expected to take; only the cost depends on it."""

    background: Background
    long_tokens: int
    long_output_tokens: int
    injections: int = 3
    twins: int = 2
    mixed: int = 4
    alone_ns: int = 10 * NS_PER_S
    lead_ns: int = 2 * NS_PER_S
    tail_ns: int = 2 * NS_PER_S
    patience: float = 20.0
    least_patience_s: float = 10.0
    sample_every_s: float = 0.25
    short_s: float = 1.0


def cost(plan: BusyPlan, output_tokens: int) -> tuple[int, int]:
    """(requests, tokens) of the whole probe, about: a closed loop sends as many as the server answers. The long
    requests' own output is the plan's, not `output_tokens`."""
    del output_tokens
    long_total = plan.long_tokens + plan.long_output_tokens
    shorts = sum(_expected_shorts(plan, for_ns) for for_ns in (plan.alone_ns, plan.alone_ns)) + 2 + 2 * plan.mixed
    shorts += plan.injections * _expected_shorts(plan, plan.tail_ns)
    longs = plan.twins + plan.injections
    return shorts + longs, round(shorts * plan.background.lengths.mean_tokens) + longs * long_total


async def run(ctx: ProbeContext, plan: BusyPlan) -> None:
    """Runs all phases. Raises BudgetSpent or EngineGone; lengths that cannot be promised are noted and end it."""
    busy = _Busy(ctx, plan)
    try:
        await busy.run()
    except LengthUnproven as reason:
        ctx.note(f"{PROBE}/unproven", probe=PROBE, what="length_unproven", reason=str(reason), length=plan.long_tokens)


class _Busy:
    def __init__(self, ctx: ProbeContext, plan: BusyPlan) -> None:
        self._ctx = ctx
        self._plan = plan
        self._shorts = ShortRequests(ctx, plan.background, probe=PROBE)
        self._timeout_s = ctx.protocol.request_timeout_s
        self._alone_ns = 0
        self._lead_ns = plan.lead_ns
        self._watch_ns = plan.alone_ns

    async def run(self) -> None:
        short = await self._short_alone("alone")
        if completed_as_asked(
            short.timeline
        ):  # a slow server gets longer windows, or no short request would end in one
            self._lead_ns = max(self._lead_ns, short.timeline.e2e_ns)
            self._watch_ns = max(self._watch_ns, _LEAST_SHORTS * short.timeline.e2e_ns)
        twins = [await self._long_alone(i) for i in range(self._plan.twins)]
        done = [twin.timeline.e2e_ns for twin in twins if completed_as_asked(twin.timeline)]
        if twins and not done:
            self._ctx.note(f"{PROBE}/fails_alone", probe=PROBE, what="fails_alone", length=self._plan.long_tokens)
            return
        self._alone_ns = max(done, default=0)
        patience_s = max(self._plan.least_patience_s, self._plan.patience * self._alone_ns / NS_PER_S)
        self._timeout_s = min(self._timeout_s, patience_s)
        await self._alone("before", 0)
        await self._injections()
        await self._alone("after", 1)
        await self._together()
        await self._short_alone("follow_up")

    async def _injections(self) -> None:
        hangs = 0
        for i in range(self._plan.injections):
            window = await self._during(i)
            longs = [body.timeline for _, body in window.requests if body.cell.get("role") == "long"]
            hangs += any(classify(timeline) is Outcome.HUNG for timeline in longs)
            if hangs >= _MOST_HANGS and i + 1 < self._plan.injections:
                self._ctx.note(f"{PROBE}/enough_hangs", probe=PROBE, what="enough_hangs", hung=hangs, asked=i + 1)
                return

    # -- alone --------------------------------------------------------------------------------------------------------

    async def _short_alone(self, phase: str) -> RequestBody:
        lengths = self._plan.background.lengths
        tokens, output = lengths.input_tokens[0], lengths.output_tokens[0]
        cell: Cell = {"role": "short", "phase": phase, "length": tokens}
        return await self._ask(f"{PROBE}/short/{phase}", cell, tokens, output)

    async def _long_alone(self, i: int) -> RequestBody:
        tokens, output = self._plan.long_tokens, self._plan.long_output_tokens
        cell: Cell = {"role": "long", "phase": "alone", "length": tokens, "repeat": i}
        return await self._ask(f"{PROBE}/long/{i}", cell, tokens, output)

    async def _together(self) -> None:
        """The same few prompts alone and all at once. Greedy answers may differ in near ties; another's answer is no
        near tie."""
        lengths = self._plan.background.lengths
        tokens, output = lengths.input_tokens[0], max(_LEAST_TOLD, lengths.output_tokens[0])
        own: list[RequestBody] = []
        for i in range(self._plan.mixed):
            cell: Cell = {"role": "own", "phase": "one by one", "question": i, "length": tokens}
            own.append(await self._ask(f"{PROBE}/own/{i}", cell, tokens, output))
        key = f"{PROBE}/together"
        if not own or isinstance(self._ctx.journal.get(key), WindowBody):
            return
        asked = [
            LoadRequest(
                name=f"own/{i}",
                cell={"role": "own", "question": i, "length": tokens},
                request=await self._request(body.nonce or "", tokens, output),
                nonce=body.nonce,
                at_ns=0,
            )
            for i, body in enumerate(own)
        ]
        await run_window(
            self._ctx,
            key,
            probe=PROBE,
            cell={"phase": "together"},
            load=Load(for_ns=0, scheduled=tuple(asked), describe={"together": len(asked)}),
            expected_tokens=len(own) * (tokens + output),
            expected_ns=sum(body.timeline.e2e_ns for body in own),
            sample_every_s=self._plan.sample_every_s,
        )

    async def _ask(self, key: str, cell: Cell, tokens: int, output: int) -> RequestBody:
        async def build(nonce: str) -> GenerationRequest:
            return await self._request(nonce, tokens, output)

        answer = await self._ctx.ask(
            key, probe=PROBE, cell=cell, build=build, expected_tokens=tokens + output, sampled=True
        )
        await check_alive(self._ctx, key, probe=PROBE, after=answer.timeline)
        return answer

    async def _request(self, nonce: str, tokens: int, output: int) -> GenerationRequest:
        built = await self._ctx.prompts.exact(tokens, nonce=nonce)
        return GenerationRequest(
            prompt=built.prompt,
            max_tokens=output,
            prompt_tokens=built.count.total,
            count_source=built.count.source,
            cold=self._ctx.engine.capabilities.cold,
            seed=self._ctx.protocol.seed,
            timeout_s=self._timeout_s,
        )

    # -- windows ------------------------------------------------------------------------------------------------------

    async def _alone(self, phase: str, window: int) -> None:
        for_ns = self._lead_ns + self._watch_ns
        await self._window(f"{PROBE}/{phase}", {"phase": phase}, window=window, for_ns=for_ns, long=None)

    async def _during(self, i: int) -> Window:
        """A closed loop goes on until the long request is over; open loops were written down before: three times what
        it takes alone, so that it meets them although it is slowed down."""
        key = f"{PROBE}/during/{i}"
        cell: Cell = {"phase": "during", "repeat": i, "length": self._plan.long_tokens}
        for_ns = self._lead_ns + self._plan.tail_ns
        if not self._plan.background.closed:
            for_ns += 3 * self._alone_ns
        return await self._window(key, cell, window=2 + i, for_ns=for_ns, long=self._plan.long_tokens)

    async def _window(self, key: str, cell: Cell, *, window: int, for_ns: int, long: int | None) -> Window:
        if not isinstance(self._ctx.journal.get(key), WindowBody):
            await self._shorts.ready()
            load = self._load(window, for_ns, None if long is None else await self._long(key, long))
            shorts = self._plan.background.expected_requests(for_ns, self._plan.short_s)
            await run_window(
                self._ctx,
                key,
                probe=PROBE,
                cell=cell,
                load=load,
                expected_tokens=round(shorts * self._plan.background.lengths.mean_tokens) + (long or 0),
                expected_ns=for_ns + self._alone_ns,
                sample_every_s=self._plan.sample_every_s,
            )
        done = stored_window(self._ctx, key)
        suspect = [body.timeline for _, body in done.requests if classify(body.timeline) in _SUSPECT]
        if suspect:
            await check_alive(self._ctx, key, probe=PROBE, after=suspect[-1])
        return done

    def _load(self, window: int, for_ns: int, long: LoadRequest | None) -> Load:
        background = self._plan.background
        longs = () if long is None else (long,)
        describe: Cell = {**background.describe(), "lead_ns": self._lead_ns, "timeout_s": self._timeout_s}
        if not background.closed:
            scheduled = self._shorts.scheduled(window, for_ns, self._timeout_s)
            return Load(for_ns=0, scheduled=(*scheduled, *longs), describe=describe)
        return Load(
            for_ns=for_ns,
            concurrency=background.concurrency,
            stock=self._shorts.closed(window, self._timeout_s),
            scheduled=longs,
            until_scheduled_end=True,
            describe=describe,
        )

    async def _long(self, key: str, tokens: int) -> LoadRequest:
        nonce = self._ctx.prompts.nonce(f"{key}/long")
        return LoadRequest(
            name="long",
            cell={"role": "long", "length": tokens},
            request=await self._request(nonce, tokens, self._plan.long_output_tokens),
            nonce=nonce,
            at_ns=self._lead_ns,
        )


def _expected_shorts(plan: BusyPlan, for_ns: int) -> int:
    return plan.background.expected_requests(plan.lead_ns + for_ns, plan.short_s)
