"""One question with its evidence, what counts as its answer, and how a reply to it was judged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from longproof.quality.corpora.corpus import SEPARATORS, Corpus, Kind
from longproof.quality.naming import values_in

FEWEST_ANSWER_TOKENS = 48
"""Room for a whole sentence around the value. Qwen2.5-Coder-0.5B began 'To find the passcode ...' and lost 3 of 3 items
at 18 tokens, at the shortest length: an inverted curve that says nothing about the window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Needle:
    """A sentence, or several lines of code or of a document, that stands verbatim in the prompt.

    `depth`: where, as a share of the filler before it, in [0, 1]. `evidence` False: a distractor of the same form; it
    stays in the evidence-only control as well.
    """

    text: str
    depth: float
    evidence: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One question. It is the same at every length: only the filler grows (dense families grow their distractors too).

    `seed`: "{seed}/{family}/{index}"; everything drawn comes from it. `needles` are in the order of the text: depths
    never fall, and equal depths keep the order given. `question` ends the prompt and says the form of the answer.
    `answers`: the expected value; several = exactly this set, in any order. `candidates`: every value that could be
    named, answers included; naming any other is wrong. `decoys`: wrong candidate → what naming it means. `chance`: the
    probability that a guess among the values shown is right; 0 when nothing but the answer is shown, so that it can
    only be read or made up. `pair`: the twin with the opposite answer has the same. `answer_tokens`: room for the
    answer, thinking not included. `kind` also decides whether case matters in the answer: in code it does. `depth`: the
    one that the depth test uses, (s+u)/n with u in [0, 1) and s a permutation of the n strata whose every beginning
    covers all depths: a run that stops early has not asked the shallow items only.
    """

    family: str
    index: int
    seed: str
    needles: tuple[Needle, ...]
    question: str
    answers: tuple[str, ...]
    candidates: tuple[str, ...]
    decoys: Mapping[str, str] = field(default_factory=dict[str, str])
    chance: float = 0.0
    pair: str | None = None
    answer_tokens: int = FEWEST_ANSWER_TOKENS
    kind: Kind = "prose"
    depth: float = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """How one reply was judged.

    `named`: the candidates found, in the order of the text, each once. `why`: "exact", "nothing named", "other value",
    "some missing", "dump", "unfinished thinking", or "decoy: …" with what naming it means. `considered`: the part of
    the reply that was scored.
    """

    right: bool
    named: tuple[str, ...]
    why: str
    considered: str


class Family(Protocol):
    """A kind of task. `needs`: the filler it belongs into. `real`: built from the documents of the corpus, so that a
    corpus without fitting documents is refused; else from the package's own wording."""

    @property
    def name(self) -> str:
        """As users write it: "multi-key-8"."""
        ...

    @property
    def needs(self) -> Kind:
        """Prose or code."""
        ...

    @property
    def real(self) -> bool:
        """Whether the items come from the corpus' documents."""
        ...

    @property
    def chance(self) -> float:
        """The most that a guess is worth in any of its items: what the threshold is raised by."""
        ...

    def items(self, *, seed: int, n: int, corpus: Corpus, target_tokens: int | None = None) -> tuple[Item, ...]:
        """`n` items (twins: one more when n is odd), the same for the same arguments.

        `target_tokens` matters only for dense families: the number of their distractors grows with it. Raises
        CorpusError when the corpus leaves no values that are new to it, or gives too few documents of the needed form.
        """
        ...


def closed_book(item: Item) -> Item:
    """The control that has to fail: the question without any text. What is right here was remembered or guessed."""
    return replace(item, needles=())


def closed_book_chance(item: Item) -> float:
    """What a guess without any text is worth: nothing where the answer is a value that only the text shows; `chance`
    where it is an ordinary word that can be said anyway (yes, no, a small number)."""
    shown, _ = values_in(evidence_text(item), item.answers, item.kind)
    return 0.0 if set(shown) == set(item.answers) else item.chance


def evidence_text(item: Item) -> str:
    """The control that has to pass: the evidence and its distractors, without filler."""
    return SEPARATORS[item.kind].join(needle.text for needle in item.needles)
