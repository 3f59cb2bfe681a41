"""Four questions that people ask of a code base: a default, a constant, a parent class, a decorator.

The definitions are the user's, under names of their own, and the asked value is exchanged for a fresh one: a model that
recites what it learned names the old value, and that is kept apart from not finding the new one. SmolLM2 did: 3 for
`get_close_matches`, though the text said otherwise.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, TypeAlias

from longproof.errors import CorpusError
from longproof.quality.corpora.corpus import Corpus, Kind
from longproof.quality.item import Item, Needle
from longproof.quality.tasks.drawing import Fresh, Slot, balanced, slots
from longproof.quality.tasks.python_source import SameCorpus, copied, modules, salted, without_docstring, written
from longproof.quality.tasks.wording import in_text_order

Asked: TypeAlias = Literal["default", "constant", "parent", "decorator"]
VALUES: tuple[Asked, ...] = ("default", "constant")
RELATIONS: tuple[Asked, ...] = ("parent", "decorator")
"""Families of their own: SmolLM2-135M reads values (12 of 16 without filler), not relations (2 of 16)."""
MEMORY = "original value: memory, not the text"

_QUESTIONS: dict[Asked, str] = {
    "default": "What is the default value of {part} in {name}? Answer with the value only.",
    "constant": "What is the value of {name}? Answer with the value only.",
    "parent": "What is the parent class of {name}? Answer with the name of the class only.",
    "decorator": "What is the decorator of {name}? Answer with the name of the decorator only.",
}
_MOST_LINES = 12
_MOST_CHARACTERS = 400
"""Short definitions: four of them leave room for filler in a window of 1,000 tokens."""
_ENOUGH_PER_ITEM = 4
_DIGITS = 5
"""Nearly every number of three digits stands somewhere in a large code base."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A definition that answers a question: `name` is defined, `part` the parameter asked about, `original` what the
    file says."""

    asked: Asked
    node: ast.FunctionDef | ast.ClassDef | ast.Assign
    name: str
    original: str
    part: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeDefinition:
    """One definition and two of the same kind beside it, one with the same parameter where the corpus has it."""

    name: str
    asked: tuple[Asked, ...]
    needs: Kind = "code"
    real: bool = True
    distractors: int = 2

    @property
    def chance(self) -> float:
        """See `Family.chance`."""
        return 1 / (1 + self.distractors)

    def items(self, *, seed: int, n: int, corpus: Corpus, target_tokens: int | None = None) -> tuple[Item, ...]:
        """See `Family.items`. The length changes nothing. Only kinds of which the corpus has enough are asked."""
        del target_tokens
        found = _collected(
            SameCorpus.of(corpus), f"{seed}/{self.name}", self.asked, enough=_ENOUGH_PER_ITEM * max(n, 4)
        )
        kinds: list[Asked] = [asked for asked in self.asked if len(found[asked]) > self.distractors]
        if not kinds:
            raise CorpusError(
                f"corpus {corpus.name} has no {1 + self.distractors} short Python definitions of the same kind, "
                f"of {sum(map(len, found.values()))} found",
                advice="name a folder with Python sources, or use the corpus 'python' for code",
            )
        asked = balanced(kinds, f"{seed}/{self.name}/kinds", n)
        return tuple(self._item(slot, found[asked[slot.index]], corpus) for slot in slots(self.name, seed=seed, n=n))

    def _item(self, slot: Slot, found: list[Found], corpus: Corpus) -> Item:
        fresh = Fresh(slot.seed, corpus)
        wanted = slot.chance.choice(found)
        others = [other for other in found if other.name != wanted.name]
        slot.chance.shuffle(others)
        others.sort(key=lambda other: other.part != wanted.part)  # same parameter first, else as shuffled
        shown = [wanted, *others[: self.distractors]]
        names = [salted(each.name, word) for each, word in zip(shown, fresh.names(len(shown)), strict=True)]
        values = [_new_value(each, fresh) for each in shown]
        needles = [
            Needle(
                text=_rewritten(each, name, value),
                depth=slot.chance.random() if place else slot.depth,
                evidence=place == 0,
            )
            for place, (each, name, value) in enumerate(zip(shown, names, values, strict=True))
        ]
        decoys = dict.fromkeys(values[1:], "value of another definition")
        return Item(
            family=self.name,
            index=slot.index,
            seed=slot.seed,
            needles=in_text_order(needles, slot.chance),
            question=_QUESTIONS[wanted.asked].format(name=names[0], part=wanted.part),
            answers=(values[0],),
            candidates=(*values, wanted.original),
            decoys={**decoys, wanted.original: MEMORY},
            chance=self.chance,
            kind="code",
            depth=slot.depth,
        )


def _new_value(found: Found, fresh: Fresh) -> str:
    """A number for a number; for a class or decorator the old name with a new end."""
    if found.asked in ("default", "constant"):
        return fresh.numbers(1, digits=_DIGITS)[0]
    return salted(found.original, fresh.names(1)[0])


def _rewritten(found: Found, name: str, value: str) -> str:
    """Source with the new name and the new value."""
    if found.asked in ("parent", "decorator"):
        return written(found.node, {found.name: name, found.original: value})
    node = copied(found.node)
    if isinstance(node, ast.Assign):
        node.value = ast.Constant(int(value))
    elif isinstance(node, ast.FunctionDef):
        _set_default(node.args, found.part, int(value))
    return written(node, {found.name: name})


# -- what a corpus has ------------------------------------------------------------------------------------------------


@lru_cache(maxsize=4)
def _collected(read: SameCorpus, label: str, wanted: tuple[Asked, ...], *, enough: int) -> dict[Asked, list[Found]]:
    """Definitions by question, each name once; reading stops when there is enough of every kind."""
    found: dict[Asked, dict[str, Found]] = {asked: {} for asked in wanted}
    for _, module in modules(read.corpus, label):
        for definition in _definitions(module, wanted):
            found[definition.asked].setdefault(definition.name, definition)
        if all(len(kind) >= enough for kind in found.values()):
            break
    return {asked: list(kind.values()) for asked, kind in found.items()}


def _definitions(module: ast.Module, wanted: Sequence[Asked]) -> Iterator[Found]:
    if "constant" in wanted:
        for node in module.body:
            if isinstance(node, ast.Assign):
                yield from _constant(node)
    for node in ast.walk(module):
        if isinstance(node, ast.ClassDef):
            found = list(_parent(node))
        elif isinstance(node, ast.FunctionDef) and not node.name.startswith("__"):
            found = [*_defaults(node), *_decorator(node)]
        else:
            continue
        found = [definition for definition in found if definition.asked in wanted]
        if found and _is_short(node):
            yield from found


def _is_short(node: ast.FunctionDef | ast.ClassDef) -> bool:
    body = without_docstring(node)
    lines = sum((statement.end_lineno or statement.lineno) - statement.lineno + 1 for statement in body)
    return bool(body) and lines <= _MOST_LINES and len(written(node, {})) <= _MOST_CHARACTERS


def _constant(node: ast.Assign) -> Iterator[Found]:
    target = node.targets[0]
    if len(node.targets) == 1 and isinstance(target, ast.Name) and _is_whole_number(node.value):
        yield Found(asked="constant", node=node, name=target.id, original=ast.unparse(node.value))


def _parent(node: ast.ClassDef) -> Iterator[Found]:
    if len(node.bases) == 1 and isinstance(base := node.bases[0], ast.Name) and not node.keywords:
        yield Found(asked="parent", node=node, name=node.name, original=base.id)


def _decorator(node: ast.FunctionDef) -> Iterator[Found]:
    if len(node.decorator_list) == 1 and isinstance(decorator := node.decorator_list[0], ast.Name):
        yield Found(asked="decorator", node=node, name=node.name, original=decorator.id)


def _defaults(node: ast.FunctionDef) -> Iterator[Found]:
    """The first parameter with a whole number as its default."""
    for parameter, default in _with_defaults(node.args):
        if _is_whole_number(default):
            yield Found(asked="default", node=node, name=node.name, part=parameter.arg, original=ast.unparse(default))
            return


def _with_defaults(arguments: ast.arguments) -> Iterator[tuple[ast.arg, ast.expr]]:
    positional = [*arguments.posonlyargs, *arguments.args]
    yield from zip(positional[len(positional) - len(arguments.defaults) :], arguments.defaults, strict=True)
    yield from (
        (parameter, default)
        for parameter, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
        if default is not None
    )


def _set_default(arguments: ast.arguments, part: str, value: int) -> None:
    for parameter, default in _with_defaults(arguments):
        if parameter.arg == part and isinstance(default, ast.Constant):
            default.value = value


def _is_whole_number(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) is int
