"""Python definitions in a corpus, read with `ast`, and written again under names of their own.

What is shown is `ast.unparse` of a changed tree: no comments and no docstring, which would still tell the old value.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import TypeAlias

from longproof.quality.corpora.corpus import Corpus, Document

Definition: TypeAlias = ast.FunctionDef | ast.ClassDef | ast.Assign


@dataclass(frozen=True, slots=True)
class SameCorpus:
    """A corpus as the key of a cache: items are drawn anew for every length, and reading a code base takes seconds."""

    corpus: Corpus = field(compare=False)
    identity: tuple[str, str, int]

    @classmethod
    def of(cls, corpus: Corpus) -> SameCorpus:
        return cls(corpus, (corpus.name, corpus.manifest_sha256, len(corpus.documents())))


def modules(corpus: Corpus, label: str) -> Iterator[tuple[Document, ast.Module]]:
    """The Python files of a corpus that parse, in an order that `label` decides; read one by one, so that a large tree
    costs no more than what is taken of it."""
    files = [document for document in corpus.documents() if document.name.endswith(".py")]
    Random(label).shuffle(files)
    for document in files:
        try:
            with warnings.catch_warnings(action="ignore"):  # invalid escapes in files that are not ours
                yield document, ast.parse(document.text)
        except (SyntaxError, ValueError, RecursionError):
            continue


def salted(name: str, word: str) -> str:
    """`name` with `word` (one or two) at its end, in the same style: readBirch, READ_BIRCH, read_birch."""
    word, bare = word.replace(" ", ""), name.strip("_")
    if name.isupper():
        return f"{name}_{word.upper()}"
    if bare.lower() != bare and "_" not in bare:
        return f"{name}{word.capitalize()}"
    return f"{name}_{word.lower()}"


def written(node: Definition, names: Mapping[str, str]) -> str:
    """Source of `node` with names exchanged wherever they stand, without its docstring."""
    tree = _Renamed(names).visit(copied(node))
    if isinstance(tree, ast.FunctionDef | ast.ClassDef):
        tree.body = without_docstring(tree) or [ast.Pass()]
    return _unparsed(tree)


def copied(node: Definition) -> Definition:
    """A tree of its own that may be changed: written and read again, which is faster than a deep copy."""
    with warnings.catch_warnings(action="ignore"):  # as above
        (copy,) = ast.parse(_unparsed(node)).body
    assert isinstance(copy, ast.FunctionDef | ast.ClassDef | ast.Assign)  # it is what was written
    return copy


def _unparsed(node: ast.AST) -> str:
    with warnings.catch_warnings(action="ignore"):  # as above
        return ast.unparse(node)


def without_docstring(node: ast.FunctionDef | ast.ClassDef) -> list[ast.stmt]:
    """The statements of a definition; empty when it has nothing but its docstring."""
    first = node.body[0]
    told = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
    return node.body[1:] if told else node.body


class _Renamed(ast.NodeTransformer):
    """Names of variables, functions, classes and attributes; words inside strings stay."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = names

    def visit_Name(self, node: ast.Name) -> ast.Name:
        node.id = self._names.get(node.id, node.id)
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        node.attr = self._names.get(node.attr, node.attr)
        return self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.name = self._names.get(node.name, node.name)
        return self.generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        node.name = self._names.get(node.name, node.name)
        return self.generic_visit(node)
