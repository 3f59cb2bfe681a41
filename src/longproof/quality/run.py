"""Quality: does the model use what stands in the window? Asks items, stores what they are, and judges nothing for good.

    closed book    the question alone            what is right here was remembered or guessed
    evidence       needles and question          what is wrong here the model cannot do at any length
    full           the same under filler, at each length in turn
    warm           the same prompt again at once: a prefix hit must not change what is right

The same items are asked at every length: only the filler grows. Replies are scored here to decide what to ask next, and
scored again, from what was stored, by whoever reads the evidence.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from longproof.asking.context import Cell, ProbeContext
from longproof.asking.recovery import check_alive
from longproof.domain.request import GenerationRequest
from longproof.errors import CorpusError
from longproof.evidence.records import RequestBody
from longproof.quality.corpora.corpus import Corpus, Kind
from longproof.quality.corpora.opening import open_corpus
from longproof.quality.haystack import TokenizedCorpus, tokenize_corpus
from longproof.quality.item import Family, Item
from longproof.quality.judging import PROBE, Judged, item_key, judged, stored
from longproof.quality.plan import QualityPlan
from longproof.quality.prover import ProvenPrompt, Prover
from longproof.quality.question_form import stops_of
from longproof.quality.tasks import FAMILIES, chance_of
from longproof.stats.effective_context import judge, next_ask

_SPARE = 1.5
"""Items drawn beyond what a cell may need: some end without a score."""
_MOST_WITHOUT_SCORE = 10


async def run(ctx: ProbeContext, plan: QualityPlan) -> None:
    """Asks all families. Raises BudgetSpent or EngineGone; a family that the corpus cannot give, and lengths that
    cannot be proven, are noted.

    A curve is asked in rounds, one item of every family at every length in each: when the budget ends, no family has
    been left out, and a server that changes meanwhile does not change the curve's shape.
    """
    probe = _Quality(ctx, plan)
    askings: list[_Asking] = []
    for name in plan.families:
        asking = await probe.begun(FAMILIES[name])
        if asking is not None and plan.mode == "climb":
            await asking.climb()
        elif asking is not None and await asking.controls():
            askings.append(asking)
    for _ in range(plan.answers):
        for asking in askings:
            await asking.round()


async def run_in_turns(sides: Sequence[ProbeContext], plan: QualityPlan) -> None:
    """Asks two servers the same items of a curve: a family's round on one side, then on the other, A B B A. Where one
    can do a family's control and the other cannot, both draw the curve. Raises as `run`; ValueError for a climb, whose
    sides would stop on their own answers."""
    if plan.mode != "curve":
        raise ValueError("only a curve is asked in turns")
    probes = [_Quality(ctx, plan) for ctx in sides]
    families: list[list[_Asking]] = []
    for place, name in enumerate(plan.families):
        begun = [await probe.begun(FAMILIES[name]) for probe in probes]
        askings = [asking for asking in begun if asking is not None]
        if len(askings) == len(probes) and any([await asking.controls() for asking in _turned(askings, place)]):
            families.append(askings)
    for round_ in range(plan.answers):
        for place, askings in enumerate(families):
            for asking in _turned(askings, round_ + place):
                await asking.round()


def _turned(askings: list[_Asking], turn: int) -> list[_Asking]:
    return askings if turn % 2 == 0 else askings[::-1]


@dataclass(slots=True, kw_only=True)
class _Series:
    """The answers of one cell so far, in asking order; `next` is the item whose turn it is; `warmed` of them were asked
    again."""

    outcomes: list[float] = field(default_factory=list[float])
    asked: dict[int, Judged] = field(default_factory=dict[int, Judged])
    next: int = 0
    warmed: int = 0


class _Quality:
    def __init__(self, ctx: ProbeContext, plan: QualityPlan) -> None:
        self.ctx = ctx
        self.plan = plan
        self._prover = Prover(ctx.engine, route=ctx.protocol.route)
        self._corpora: dict[Kind, Corpus] = {}
        self._tokenized: dict[Kind, TokenizedCorpus] = {}
        self._tokenizing = asyncio.Lock()

    async def begun(self, family: Family) -> _Asking | None:
        """The family with its items; None, noted, where the corpus does not give them."""
        try:
            corpus = self._corpus(family.needs)
            asking = _Asking(self, family, corpus)
            (await self._tokens_of(family.needs)).check_holds(max(self.plan.lengths))
            return asking
        except CorpusError as reason:
            self.ctx.note(
                f"{PROBE}/{family.name}/left_out",
                probe=PROBE,
                what="family_left_out",
                family=family.name,
                reason=str(reason),
            )
            return None

    def _corpus(self, kind: Kind) -> Corpus:
        if kind not in self._corpora:
            plan = self.plan
            source = plan.corpus if kind == "prose" else plan.code_corpus or plan.corpus
            corpus = open_corpus(source, kind=kind, seed=plan.seed, tokens=max(plan.lengths))
            self._corpora[kind] = corpus
            self.ctx.note(
                f"{PROBE}/corpus/{kind}",
                probe=PROBE,
                what="corpus",
                name=corpus.name,
                filler=kind,
                licence=corpus.licence,
                manifest_sha256=corpus.manifest_sha256,
            )
        return self._corpora[kind]

    async def _tokens_of(self, kind: Kind) -> TokenizedCorpus:
        async with self._tokenizing:  # items that are asked together need it at once
            if kind not in self._tokenized:
                self._tokenized[kind] = await tokenize_corpus(
                    self.ctx.engine,
                    self._corpora[kind],
                    route=self.ctx.protocol.route,
                    longest_tokens=max(self.plan.lengths),
                )
            return self._tokenized[kind]

    # -- one question -------------------------------------------------------------------------------------------------

    async def ask(self, item: Item, arm: str, length: int, order: int, *, again: bool = False) -> Judged | None:
        """One reply, judged; None when its length could not be proven. `length` 0 for controls. `again`: it will be
        asked once more from the cache, so it must not be kept out of it; its nonce alone makes it cold."""
        self._store(item, length)
        key = f"{PROBE}/{item.family}/{arm}/{length}/{item.index}"
        first = f"{PROBE}/{item.family}/full/{length}/{item.index}"
        ctx = self.ctx
        told = ctx.journal.get(first) if arm == "warm" else None
        nonce = str(told.cell["nonce"]) if isinstance(told, RequestBody) else ctx.prompts.nonce(key)
        cell: Cell = {"family": item.family, "arm": arm, "length": length, "item": item.index, "order": order}
        cell["nonce"] = nonce

        async def build(_own: str) -> GenerationRequest:
            prompt = await self._prove(item, arm, length, nonce)
            cell.update(end=prompt.end, depth=item.depth if prompt.depth is None else prompt.depth)
            cell["text_sha256"] = prompt.text_sha256
            if prompt.distance_tokens is not None:
                cell["distance"] = prompt.distance_tokens
            return GenerationRequest(
                prompt=prompt.prompt,
                max_tokens=item.answer_tokens + self.plan.thinking_tokens,
                prompt_tokens=prompt.count.total,
                count_source=prompt.count.source,
                exact_output=False,
                cold=arm != "warm" and not again and ctx.engine.capabilities.cold,
                seed=ctx.protocol.seed,
                timeout_s=ctx.protocol.request_timeout_s,
                extra=stops_of(ctx.protocol.route),
            )

        expected = (length or len(item.question) // 3) + item.answer_tokens
        body = await ctx.ask_if_provable(key, probe=PROBE, cell=cell, build=build, expected_tokens=expected)
        if body is None:
            return None
        await check_alive(ctx, key, probe=PROBE, after=body.timeline)
        return judged(item, body)

    async def _prove(self, item: Item, arm: str, length: int, nonce: str) -> ProvenPrompt:
        if arm == "closed_book":
            return await self._prover.closed_book(item, nonce=nonce)
        if arm == "evidence":
            return await self._prover.evidence_only(item, nonce=nonce)
        return await self._prover.item(item, await self._tokens_of(item.kind), length, nonce=nonce)

    def _store(self, item: Item, length: int) -> None:
        """What the item is, once; where its distractors grow with the length, once for each."""
        key = item_key(item.family, item.index, length if _dense(item) else None)
        if self.ctx.journal.get(key) is not None:
            return
        self.ctx.journal.append(key, stored(item, length))


def _dense(item: Item) -> bool:
    return item.family.endswith("-dense")


class _Asking:
    """One family of one run."""

    def __init__(self, quality: _Quality, family: Family, corpus: Corpus) -> None:
        self._quality = quality
        self._plan = quality.plan
        self._family = family
        self._corpus = corpus
        self._drawn: dict[int, tuple[Item, ...]] = {}
        self._lengths = self._plan.lengths_of(family.needs)
        self._design = self._plan.design(chance_of(family, min(self._lengths)), family.needs)
        caps = [self._plan.answers]
        if self._plan.mode == "climb":
            caps = [self._design.cap_at(length) for length in self._lengths]
        self._count = max(self._plan.closed_book, round(max(caps) * (_SPARE if self._plan.mode == "climb" else 1)))
        self._control = _Series()
        self._cells = {length: _Series() for length in self._lengths}

    def _items(self, length: int) -> tuple[Item, ...]:
        """The items at a length; 0 for controls, whose distractors are those of the shortest."""
        if length not in self._drawn:
            self._drawn[length] = self._family.items(
                seed=self._plan.seed,
                n=self._count,
                corpus=self._corpus,
                target_tokens=length or min(self._lengths),
            )
        return self._drawn[length]

    async def controls(self) -> bool:
        """Asks what needs no filler. Whether the lengths are worth asking: a family that the model cannot do well
        enough has a curve all the same, unless it only guesses."""
        await self._closed_book()
        for _ in range(self._plan.answers):
            await self._batch(0, 1)
        if self._control.outcomes and judge(self._design, {}, self._control.outcomes).cannot:
            self._note("cannot")
            return self._does_it_in_part()
        return True

    async def round(self) -> None:
        """One more item at every length."""
        for length in self._lengths:
            await self._batch(length, 1)

    def _does_it_in_part(self) -> bool:
        """Whether the control is better than guessing: what the model does in part can still be seen to fall."""
        outcomes = self._control.outcomes
        return sum(outcomes) > self._design.chance * len(outcomes)

    async def climb(self) -> None:
        """What decides next, until nothing does."""
        await self._closed_book()
        while True:
            outcomes = {length: series.outcomes for length, series in self._cells.items()}
            ask = next_ask(self._design, outcomes, self._control.outcomes)
            if ask is None:
                break
            length = ask.length_tokens or 0
            if not await self._more(length, min(ask.together, max(1, self._plan.together))):
                self._note("ran_out", length=length)
                break

    async def _closed_book(self) -> None:
        for i, item in enumerate(self._items(0)[: self._plan.closed_book]):
            await self._quality.ask(item, "closed_book", 0, i)

    async def _warm(self, batch: Sequence[tuple[int, Item]], length: int) -> None:
        """The first prompts of a length once more, at once: later, others would have taken their place in the cache."""
        series = self._cells[length]
        for i, item in batch:
            if i in series.asked and series.warmed < self._plan.warm:
                series.warmed += 1
                await self._quality.ask(item, "warm", length, i)

    async def _more(self, length: int, answers: int) -> bool:
        """Asks until so many more answers have a score. False when the items ran out, or too few get one: more of them
        would decide nothing."""
        series = self._series(length)
        wanted = len(series.outcomes) + answers
        while len(series.outcomes) < wanted:
            if not await self._batch(length, min(wanted - len(series.outcomes), max(1, self._plan.together))):
                return False
            if series.next >= 2 * len(series.outcomes) + _MOST_WITHOUT_SCORE:
                return False
        return True

    async def _batch(self, length: int, many: int) -> bool:
        """Asks the next items at once. False when there are none."""
        series = self._series(length)
        batch = await self._next(series, length, many)
        arm = "full" if length else "evidence"
        again = bool(length) and series.warmed < self._plan.warm
        replies = await asyncio.gather(*(self._quality.ask(item, arm, length, i, again=again) for i, item in batch))
        for (i, _), reply in zip(batch, replies, strict=True):  # in asking order, whichever came back first
            if reply is not None:
                series.asked[i] = reply
            if reply is not None and reply.scored is not None:
                series.outcomes.append(float(reply.scored.right))
        if length:
            await self._warm(batch, length)
        return bool(batch)

    def _series(self, length: int) -> _Series:
        return self._cells[length] if length else self._control

    async def _next(self, series: _Series, length: int, many: int) -> Sequence[tuple[int, Item]]:
        items = self._items(length)
        batch: list[tuple[int, Item]] = []
        while series.next < len(items) and len(batch) < many:
            i, series.next = series.next, series.next + 1
            if length and self._plan.rule == "retention" and not await self._can(i):
                continue
            batch.append((i, items[i]))
        return batch

    async def _can(self, i: int) -> bool:
        """Whether the model can answer an item at all: asks its control where nobody has yet."""
        while self._control.next <= i and await self._batch(0, 1):
            pass
        reply = self._control.asked.get(i)
        return reply is not None and reply.scored is not None and reply.scored.right

    def _note(self, what: str, **detail: int) -> None:
        key = f"{PROBE}/{self._family.name}/{what}" + "".join(f"/{value}" for value in detail.values())
        self._quality.ctx.note(key, probe=PROBE, what=what, family=self._family.name, **detail)
