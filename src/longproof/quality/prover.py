"""Prompts of a proven length around an item: assembled as text, counted by the server, brought to the target, checked.

    nonce ─ haystack with needles ─ trim ─ question
              │                      └─ units chosen anew until the server's own count is the target
              └─ the same for all questions of a cluster, so that a prefix cache can serve it

What is not proven is not asked: `LengthUnproven` says why. After the call, `length_check` holds the count against the
server's own ``usage``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from longproof.asking.context import ProbeContext
from longproof.asking.exact import LengthUnproven
from longproof.asking.tally import Tally, tally_for
from longproof.domain.request import ChatMessage, ChatPrompt, Prompt, Route, TextPrompt, TokenCount
from longproof.engines.base import Engine
from longproof.errors import EngineDied, EngineMisbehaved, EngineUnreachable, UsageError
from longproof.quality.haystack import Haystack, TokenizedCorpus, choose_haystack, haystack_text
from longproof.quality.item import Item, Needle, evidence_text
from longproof.quality.proof import LengthCheck, first_missing, length_check, without_spaces
from longproof.quality.question_form import as_asked

__all__ = ["LengthCheck", "ProvenPrompt", "Prover", "length_check", "prove_item"]

ALLOWED_TOKENS_OFF = 1
_ROUNDS = 10
_PATIENT_ROUNDS = 3
"""So many counts for the exact length before a neighbour is taken."""
_TRIMMABLE_TOKENS = 64
"""A larger miss moves the end of the stretch, not only the units after it."""
_END_CHARS = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvenPrompt:
    """A prompt, its length, and what it is made of.

    Controls have neither `target_tokens` nor `haystack`. `depths` [needles] are the real ones, `depth` that of the
    needle which the item's own depth speaks of. `distance_tokens`: from where the first of the evidence begins to the
    prompt's end, question and template included; None where no needle stands. `corpus_sha256`: the manifest. `cluster`
    is the same for prompts that share a haystack, whose answers are not independent. `checked_in`: where the needles
    and the question were looked for. `text_sha256`: of the text behind the nonce; the same text has the same, whenever
    and of whichever server it is asked. `end`: its last characters, for people.
    """

    prompt: Prompt
    count: TokenCount
    target_tokens: int | None = None
    haystack: Haystack | None = None
    depths: tuple[float, ...] = ()
    depth: float | None = None
    distance_tokens: int | None = None
    corpus_sha256: str | None = None
    cluster: str = ""
    checked_in: str
    text_sha256: str
    end: str


async def prove_item(
    ctx: ProbeContext,
    item: Item,
    corpus: TokenizedCorpus,
    target_tokens: int,
    *,
    nonce: str = "",
    cluster: Sequence[Item] = (),
) -> ProvenPrompt:
    """`Prover.item` for a probe's engine and route. Who asks many items keeps a Prover, which remembers its counts."""
    prover = Prover(ctx.engine, route=ctx.protocol.route)
    return await prover.item(item, corpus, target_tokens, nonce=nonce, cluster=cluster)


class Prover:
    """Builds prompts for one engine and one route. Same arguments and server → same prompt.

    `sends_to_count`: where the server counts only what it answers, a prompt may be sent once behind another nonce, for
    one token, to learn its length. That doubles the work; without it, lengths on such a server are unproven.
    """

    def __init__(self, engine: Engine, *, route: Route, sends_to_count: bool = False) -> None:
        self._engine = engine
        self._route = route
        self._sends_to_count = sends_to_count
        self._tally: Tally = tally_for(engine, route)
        self._without_filler: dict[bytes, int] = {}
        self._ends: dict[str, int] = {}

    async def item(
        self,
        item: Item,
        corpus: TokenizedCorpus,
        target_tokens: int,
        *,
        nonce: str = "",
        cluster: Sequence[Item] = (),
    ) -> ProvenPrompt:
        """The item's question under a haystack: `target_tokens` as the server counts, or one more or less.

        `nonce` stands in front: nobody has sent the prompt before. `cluster`: the items that share this haystack, this
        one among them; the needles of all stand in it, and the text up to the last few units is the same for each.
        Raises LengthUnproven, EngineUnreachable, EngineDied, and CorpusError when the corpus is too short.
        """
        members = tuple(cluster) or (item,)
        needles = _together(members)
        wanted = _Wanted(
            item=item,
            corpus=corpus,
            needles=needles,
            avoid=corpus.units_to_avoid(needles, (value for member in members for value in member.candidates)),
            seed=members[0].pair or members[0].seed,
            nonce=nonce,
            target_tokens=target_tokens,
            cluster=_cluster_id(members, corpus, target_tokens),
            shared=len(members) > 1,
            asked=as_asked(item.question, self._route),
        )
        with _explained(target_tokens):
            questions = [await self._without(wanted, member.question) for member in members]
            own = questions[members.index(item)] if item in members else await self._without(wanted, item.question)
            return await self._reach(wanted, own, longest=max(questions))

    async def closed_book(self, item: Item, *, nonce: str = "") -> ProvenPrompt:
        """The question alone: what is right here was remembered or guessed. Raises as `item`."""
        return await self._control(item, (), "", nonce)

    async def evidence_only(self, item: Item, *, nonce: str = "") -> ProvenPrompt:
        """The needles, distractors among them, and the question. Raises as `item`."""
        return await self._control(item, item.needles, evidence_text(item), nonce)

    # -- to the target ------------------------------------------------------------------------------------------------

    async def _reach(self, wanted: _Wanted, without_filler: int, *, longest: int) -> ProvenPrompt:
        """Chooses, counts and corrects. `longest`: tokens without filler of the cluster's longest question."""
        if without_filler > wanted.target_tokens + ALLOWED_TOKENS_OFF:
            raise wanted.unproven(
                f"{wanted.target_tokens:,} tokens do not hold template, needles and question: these alone are "
                f"{without_filler:,}",
                without_filler,
            )
        if not self._tally.counts_unsent and not self._sends_to_count:
            raise wanted.unproven("the server counts only what it answers, and nobody else can count for it")
        scale = 1 + wanted.corpus.drift
        filler = round((wanted.target_tokens - without_filler) / scale)
        stretch = round((wanted.target_tokens - longest) / scale)
        if not wanted.corpus.counted.all():
            stretch -= _TRIMMABLE_TOKENS  # costs are guesses: room for the trim to make up for them
        best: tuple[Haystack, str, TokenCount] | None = None
        for attempt in range(_ROUNDS):
            haystack = wanted.choose(filler, attempt, stretch)
            if haystack is None:
                break
            text = wanted.written(haystack)
            count = await self._count_whole(wanted.nonce, text)
            off = count.total - wanted.target_tokens
            if best is None or abs(off) < abs(best[2].total - wanted.target_tokens):
                best = (haystack, text, count)
            if off == 0 or (attempt + 1 >= _PATIENT_ROUNDS and abs(off) <= ALLOWED_TOKENS_OFF):
                break
            filler -= off
            if abs(off) > _TRIMMABLE_TOKENS:
                stretch -= off
        return await self._finished(wanted, best, without_filler)

    async def _finished(
        self, wanted: _Wanted, best: tuple[Haystack, str, TokenCount] | None, without_filler: int
    ) -> ProvenPrompt:
        if best is None:
            raise wanted.unproven(
                f"no whole units of corpus {wanted.corpus.name} make up the "
                f"{wanted.target_tokens - without_filler:,} tokens that are left",
                without_filler,
            )
        haystack, text, count = best
        if abs(count.total - wanted.target_tokens) > ALLOWED_TOKENS_OFF:
            raise wanted.unproven(
                f"other units at the end led to {count.total:,} tokens, never nearer to the target", count.total
            )
        prompt = self._prompt(wanted.nonce, text)
        rendered = await self._rendered(prompt)
        checked_in = _verified(prompt, rendered, [*(needle.text for needle in wanted.needles), wanted.item.question])
        return ProvenPrompt(
            prompt=prompt,
            count=count,
            distance_tokens=await self._distance(wanted, haystack, rendered, without_filler),
            target_tokens=wanted.target_tokens,
            haystack=haystack,
            depths=haystack.depths,
            depth=_depth(wanted, haystack),
            corpus_sha256=wanted.corpus.manifest_sha256,
            cluster=wanted.cluster,
            checked_in=checked_in,
            text_sha256=_sha256(text),
            end=text[-_END_CHARS:],
        )

    async def _control(self, item: Item, needles: Sequence[Needle], evidence: str, nonce: str) -> ProvenPrompt:
        text = _paragraphs(evidence, as_asked(item.question, self._route))
        with _explained(0):
            count = await self._count_whole(nonce, text)
            prompt = self._prompt(nonce, text)
            checked_in = _verified(
                prompt, await self._rendered(prompt), [*(needle.text for needle in needles), item.question]
            )
        return ProvenPrompt(
            prompt=prompt, count=count, checked_in=checked_in, text_sha256=_sha256(text), end=text[-_END_CHARS:]
        )

    # -- counting and checking ----------------------------------------------------------------------------------------

    def _prompt(self, nonce: str, text: str) -> Prompt:
        whole = _paragraphs(nonce, text)
        if self._route is Route.CHAT:
            return ChatPrompt(messages=(ChatMessage(role="user", content=whole),))
        return TextPrompt(text=whole)

    async def _without(self, wanted: _Wanted, question: str) -> int:
        """Tokens of everything but the filler, with one of the cluster's questions."""
        separator = wanted.corpus.separator
        evidence = "".join(f"{needle.text}{separator}" for needle in wanted.needles).removesuffix(separator)
        text = _paragraphs(evidence, as_asked(question, self._route))
        key = hashlib.sha256(f"{wanted.nonce}\0{text}".encode()).digest()
        if key not in self._without_filler:
            front = wanted.nonce if self._tally.counts_unsent else _sibling(wanted.nonce)
            self._without_filler[key] = (await self._tally.prompt(self._prompt(front, text))).total
        return self._without_filler[key]

    async def _count_whole(self, nonce: str, text: str) -> TokenCount:
        """By the server beforehand; where that means sending it, behind another nonce, so that this one stays cold."""
        front = nonce if self._tally.counts_unsent else _sibling(nonce)
        return await self._tally.prompt(self._prompt(front, text))

    async def _distance(
        self, wanted: _Wanted, haystack: Haystack, rendered: str | None, without_filler: int
    ) -> int | None:
        """Tokens from the first of the evidence to the prompt's end: filler by its units, the rest counted as text.
        Where counting means sending, the rest is what all but the filler costs, by its characters."""
        first = _first_evidence(wanted, haystack)
        if first is None:
            return None
        filler = round((1 - haystack.depths[first]) * haystack.tokens)
        texts = [needle.text for needle in wanted.needles]
        end = wanted.asked
        if rendered is not None:  # what the template puts behind the user's words
            end += rendered.rpartition(wanted.item.question)[2] if wanted.item.question in rendered else ""
        rest = _paragraphs(wanted.corpus.separator.join(texts[first:]), end)
        if not self._tally.counts_unsent:
            whole = len(wanted.nonce) + sum(map(len, texts)) + len(wanted.asked)
            return filler + round(without_filler * min(1.0, len(rest) / max(1, whole)))
        if rest not in self._ends:
            self._ends[rest] = await self._tally.text(rest)
        return filler + self._ends[rest]

    async def _rendered(self, prompt: Prompt) -> str | None:
        """What the server's template makes of a chat; None for plain text and where it does not say."""
        if not isinstance(prompt, ChatPrompt):
            return None
        try:
            return await self._engine.render(prompt.messages)
        except (EngineUnreachable, EngineDied):
            raise
        except (EngineMisbehaved, UsageError):
            return None  # it has no such endpoint


def _verified(prompt: Prompt, rendered: str | None, texts: Sequence[str]) -> str:
    """Where all of the texts stand verbatim and in order. Raises LengthUnproven where one does not.

    What a server renders may come back from ids, with white space tidied up: there it is left out of account.
    """
    sent = prompt.messages[0].content if isinstance(prompt, ChatPrompt) else ""
    if isinstance(prompt, TextPrompt):
        sent = prompt.text
    missing = first_missing(sent, texts)
    if missing is None and rendered is not None:
        missing = first_missing(without_spaces(rendered), [without_spaces(text) for text in texts])
    if missing is not None:
        where = "the prompt" if rendered is None else "what the server makes of the prompt"
        raise LengthUnproven(
            f"'{texts[missing][:80]}' does not stand verbatim and in its order in {where}", wanted_tokens=0
        )
    return "the text as sent" if rendered is None else "the server's rendering"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    """One prompt's wishes. `asked`: the item's question in the form of the route."""

    item: Item
    corpus: TokenizedCorpus
    needles: tuple[Needle, ...]
    avoid: frozenset[int]
    seed: str
    nonce: str
    target_tokens: int
    cluster: str
    shared: bool
    asked: str

    def choose(self, filler_tokens: int, attempt: int, stretch_tokens: int) -> Haystack | None:
        """Of that many tokens, or one less or more where whole units do not make them up."""
        for tokens in (filler_tokens, filler_tokens - 1, filler_tokens + 1):
            if tokens < 0:
                continue
            found = choose_haystack(
                self.corpus,
                self.needles,
                tokens=tokens,
                seed=self.seed,
                avoid=self.avoid,
                attempt=attempt,
                stretch_tokens=stretch_tokens,
                shared=self.shared,
            )
            if found is not None:
                return found
        return None

    def written(self, haystack: Haystack) -> str:
        return _paragraphs(haystack_text(self.corpus, haystack, self.needles), self.asked)

    def unproven(self, why: str, closest_tokens: int | None = None) -> LengthUnproven:
        return LengthUnproven(why, wanted_tokens=self.target_tokens, closest_tokens=closest_tokens)


@contextmanager
def _explained(target_tokens: int) -> Generator[None]:
    """A server that will not count leaves the length unproven; one that is gone stays that."""
    try:
        yield
    except (EngineUnreachable, EngineDied):
        raise
    except EngineMisbehaved as problem:
        raise LengthUnproven(f"the server would not count: {problem.what}", wanted_tokens=target_tokens) from problem


def _together(members: Iterable[Item]) -> tuple[Needle, ...]:
    """The needles of all members by depth, each text once; those of one item stay in its own order."""
    by_text: dict[str, Needle] = {}
    for member in members:
        for needle in member.needles:
            by_text.setdefault(needle.text, needle)
    return tuple(sorted(by_text.values(), key=lambda needle: needle.depth))


def _cluster_id(members: Sequence[Item], corpus: TokenizedCorpus, target_tokens: int) -> str:
    seeds = "\0".join(member.seed for member in members)
    return hashlib.sha256(f"{seeds}\0{corpus.manifest_sha256}\0{target_tokens}".encode()).hexdigest()[:16]


def _first_evidence(wanted: _Wanted, haystack: Haystack) -> int | None:
    """The needle that stands first of those that the answer needs; where nothing is evidence (an absent twin), of the
    item's own needles that which stands first."""
    own = {needle.text: needle.evidence for needle in wanted.item.needles}
    placed = [index for index, needle in enumerate(wanted.needles) if needle.text in own]
    evidence = [index for index in placed if own[wanted.needles[index].text]]
    return min(evidence or placed, key=lambda index: (haystack.borders[index], index), default=None)


def _depth(wanted: _Wanted, haystack: Haystack) -> float | None:
    own = {needle.text for needle in wanted.item.needles}
    placed = [
        (abs(needle.depth - wanted.item.depth), depth)
        for needle, depth in zip(wanted.needles, haystack.depths, strict=True)
        if needle.text in own
    ]
    return min(placed)[1] if placed else None


def _paragraphs(*texts: str) -> str:
    return "\n\n".join(text for text in texts if text)


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _sibling(nonce: str) -> str:
    """The same words in another order: as many tokens, and another beginning after the first word."""
    first, *others = nonce.split(" ")
    return " ".join([first, *others[1:], *others[:1]])
