"""Who calls this, over one to three calls: the way back through functions that stand far apart.

    def a(): b()          asked for two hops:  "Which function calls the function that calls c?"   answer: a
    def b(): c()          decoy chain:         p() calls q() calls r()

Chains come from the call graph of one file each, of functions whose name is defined once there and that call each other
in no other way. Every function gets a name of its own, so that what the filler shows of the file is not meant.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from longproof.errors import CorpusError
from longproof.quality.corpora.corpus import Corpus, Kind
from longproof.quality.item import Item, Needle
from longproof.quality.tasks.drawing import Fresh, Slot, balanced, slots
from longproof.quality.tasks.python_source import SameCorpus, modules, salted, without_docstring, written
from longproof.quality.tasks.wording import in_text_order

Chain: TypeAlias = tuple[ast.FunctionDef, ...]
"""Functions of which each calls the next."""

HOPS = (1, 2, 3)
_DECOY_CHAINS = {1: 3, 2: 1, 3: 1}
FEWEST_CALLERS = 4
"""Calling functions shown: four, for three hops six. The chance of a guess is that of four for all: one number for the
family, never too small."""
_FORM = "Answer with the name of the function only."
_MOST_LINES = 15
_MOST_CHARACTERS = 400
"""Six functions leave room in a window of 1,000 tokens."""
_ENOUGH_PER_ITEM = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class CallTrace:
    """One, two and three hops equally often, as far as the corpus has such chains."""

    name: str = "call-trace"
    needs: Kind = "code"
    real: bool = True

    @property
    def chance(self) -> float:
        """See `Family.chance`."""
        return 1 / FEWEST_CALLERS

    def items(self, *, seed: int, n: int, corpus: Corpus, target_tokens: int | None = None) -> tuple[Item, ...]:
        """See `Family.items`. The length changes nothing; `depth` is that of the function asked for."""
        del target_tokens
        chains = _collected(SameCorpus.of(corpus), f"{seed}/{self.name}", enough=_ENOUGH_PER_ITEM * max(n, 4))
        hops = [count for count in HOPS if len(chains[count]) > _DECOY_CHAINS[count]]
        if not hops:
            raise CorpusError(
                f"corpus {corpus.name} has {len(chains[1])} short Python functions that one other function calls by "
                f"name; {1 + _DECOY_CHAINS[1]} are needed",
                advice="name a folder with Python sources, or use the corpus 'python' for code",
            )
        asked = balanced(hops, f"{seed}/{self.name}/hops", n)
        return tuple(self._item(slot, chains[asked[slot.index]], corpus) for slot in slots(self.name, seed=seed, n=n))

    def _item(self, slot: Slot, chains: Sequence[Chain], corpus: Corpus) -> Item:
        wanted, *decoys = slot.chance.sample(chains, 1 + _DECOY_CHAINS[len(chains[0]) - 1])
        fresh = Fresh(slot.seed, corpus)
        names = [_names(chain, fresh) for chain in (wanted, *decoys)]
        needles = [
            Needle(
                text=written(function, known),
                depth=slot.chance.random() if chain is not wanted or place else slot.depth,
                evidence=chain is wanted,
            )
            for chain, known in zip((wanted, *decoys), names, strict=True)
            for place, function in enumerate(chain[:-1])
        ]
        answer, *between, called = [names[0][function.name] for function in wanted]
        others = [new for known in names[1:] for new in known.values()]
        return Item(
            family=self.name,
            index=slot.index,
            seed=slot.seed,
            needles=in_text_order(needles, slot.chance),
            question=f"Which function calls {'the function that calls ' * len(between)}{called}? {_FORM}",
            answers=(answer,),
            candidates=(answer, *between, *others),
            decoys={**dict.fromkeys(between, "stopped on the way"), **dict.fromkeys(others, "another chain")},
            chance=self.chance,
            answer_tokens=64,
            kind="code",
            depth=slot.depth,
        )


def _names(chain: Chain, fresh: Fresh) -> dict[str, str]:
    words = fresh.names(len(chain))
    return {function.name: salted(function.name, word) for function, word in zip(chain, words, strict=True)}


def _disjoint(chains: Sequence[Chain]) -> list[Chain]:
    """Chains that share no function name, the first come first."""
    taken: list[Chain] = []
    used: set[str] = set()
    for chain in chains:
        names = {function.name for function in chain}
        if not names & used:
            taken.append(chain)
            used |= names
    return taken


# -- the call graph ---------------------------------------------------------------------------------------------------


@lru_cache(maxsize=4)
def _collected(read: SameCorpus, label: str, *, enough: int) -> dict[int, list[Chain]]:
    found: dict[int, list[Chain]] = {count: [] for count in HOPS}
    for _, module in modules(read.corpus, label):
        functions = _plain_functions(module)
        graph = {name: _calls(function, functions) for name, function in functions.items()}
        for count in HOPS:
            for chain in _chains(graph, count):
                if all(_is_short(functions[name]) for name in chain[:-1]):
                    found[count].append(tuple(functions[name] for name in chain))
        if all(len(chains) >= enough for chains in found.values()):
            break
    return {count: _disjoint(chains) for count, chains in found.items()}


def _plain_functions(module: ast.Module) -> dict[str, ast.FunctionDef]:
    """Top-level functions whose name is bound once in the whole file: no overloads, no methods or variables of that
    name."""
    functions = [node for node in module.body if isinstance(node, ast.FunctionDef) and not node.decorator_list]
    if len(functions) < 2:
        return {}
    bound = Counter(name for node in ast.walk(module) for name in _bound_by(node))
    return {function.name: function for function in functions if bound[function.name] == 1}


def _bound_by(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
        yield node.id
    elif isinstance(node, ast.arg):
        yield node.arg
    elif isinstance(node, ast.alias):
        yield (node.asname or node.name).partition(".")[0]
    elif isinstance(node, ast.ExceptHandler) and node.name:
        yield node.name


def _calls(function: ast.FunctionDef, functions: Mapping[str, ast.FunctionDef]) -> frozenset[str]:
    """Plain functions that stand in it, called or only mentioned: a mention is no clean call, see `_chains`."""
    mentioned = [node.id for node in ast.walk(function) if isinstance(node, ast.Name) and node.id in functions]
    called = [
        node.func.id
        for node in ast.walk(function)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in functions
    ]
    return frozenset(called) if len(called) == len(mentioned) else frozenset()


def _chains(graph: Mapping[str, frozenset[str]], hops: int) -> Iterator[tuple[str, ...]]:
    """Paths of that many calls in which no function calls another one but the next (itself included)."""
    paths: list[tuple[str, ...]] = [(name,) for name in graph]
    for _ in range(hops):
        paths = [(*path, called) for path in paths for called in sorted(graph[path[-1]]) if called not in path]
    for path in paths:
        if all(graph[name] & {*path} == frozenset(path[place + 1 : place + 2]) for place, name in enumerate(path)):
            yield path


def _is_short(function: ast.FunctionDef) -> bool:
    lines = (function.end_lineno or function.lineno) - function.lineno + 1
    return lines <= _MOST_LINES and bool(without_docstring(function)) and len(written(function, {})) <= _MOST_CHARACTERS
