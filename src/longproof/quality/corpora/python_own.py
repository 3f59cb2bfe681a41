"""CPython's own documentation and sources, read where they lie: every machine has them, nothing is shipped."""

from __future__ import annotations

import ast
import hashlib
import os
import platform
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path

from longproof.errors import CorpusError
from longproof.quality.corpora.corpus import Document, Kind, TextCorpus, manifest_of
from longproof.quality.corpora.reading import read_text
from longproof.quality.corpora.unreadable import Unreadable

NAME = "python"
LICENCE = "PSF-2.0, read in place"

_ITEMS = 16
_CHARS_PER_TOKEN = 5
_LEAST_CHARS = 1_500_000

_NOT_READ = """__pycache__ dist-packages encodings ensurepip idlelib lib2to3 pydoc_data site-packages test tests
turtledemo venv"""
_LEFT_OUT = frozenset(_NOT_READ.split())
"""Tests, tables of characters, help texts as one huge string, and what is not CPython's."""


def python_corpus(*, kind: Kind, tokens: int | None = None) -> TextCorpus:
    """The Python that runs us. Prose: the language reference of ``help()`` and the docstrings; code: the standard
    library (3.11: 2M characters of prose, 9M of code).

    With `tokens`, the longest item, only so many of its files as sixteen such items need, evenly spaced: parsing all of
    them takes seconds. The manifest is over all of them. Raises CorpusError where the sources are not on this machine.
    """
    sources = list(_sources())
    if not sources:
        raise CorpusError(
            f"this Python ({platform.python_version()}) has no readable sources of its standard library",
            advice="use the corpus 'generated', or name a folder with --corpus",
        )
    chosen = sources if tokens is None else _enough(sources, tokens)
    return TextCorpus(
        name=f"{NAME}-{platform.python_version()}",
        kind=kind,
        licence=LICENCE,
        documents=[*_topics(), *_docstrings(chosen)] if kind == "prose" else chosen,
        manifest_sha256=manifest_of(
            (source.name, hashlib.sha256(source.text.encode("utf-8", "surrogatepass")).hexdigest())
            for source in sources
        ),
    )


def _enough(sources: list[Document], tokens: int) -> list[Document]:
    there = sum(len(source.text) for source in sources)
    step = there / (_ITEMS * _CHARS_PER_TOKEN * tokens + _LEAST_CHARS)
    return sources if step < 2 else [sources[int(number * step)] for number in range(int(len(sources) / step))]


def _sources() -> Iterator[Document]:
    root = Path(sysconfig.get_path("stdlib"))
    for here, folders, files in os.walk(root):
        folders[:] = sorted(set(folders) - _LEFT_OUT)
        for name in sorted(files):
            # _sysconfigdata holds this machine's paths, which would make every machine's corpus another one
            if name.endswith(".py") and not name.startswith("_sysconfigdata"):
                path = Path(here) / name
                try:
                    text, _ = read_text(path)
                except Unreadable:
                    continue
                yield Document(name=path.relative_to(root).as_posix(), text=text)


def _topics() -> Iterator[Document]:
    try:
        from pydoc_data.topics import topics  # noqa: PLC0415 - half a megabyte, and some distributions leave it out
    except ImportError:
        return
    for name, text in sorted(topics.items()):
        yield Document(name=f"topics/{name}", text=text)


def _docstrings(sources: list[Document]) -> Iterator[Document]:
    for source in sources:
        with warnings.catch_warnings(action="ignore"):  # the library's own deprecated escapes
            tree = ast.parse(source.text)
        texts = [
            text
            for node in ast.walk(tree)
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            and (text := ast.get_docstring(node))
        ]
        if texts:
            yield Document(name=f"docstrings/{source.name}", text="\n\n".join(texts))
