"""CPython's own documentation and sources, read where they lie: every machine has them, nothing is shipped."""

from __future__ import annotations

import ast
import os
import platform
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path

from longproof.errors import CorpusError
from longproof.quality.corpora.corpus import Document, Kind, TextCorpus
from longproof.quality.corpora.reading import read_text
from longproof.quality.corpora.unreadable import Unreadable

NAME = "python"
LICENCE = "PSF-2.0, read in place"

_NOT_READ = """__pycache__ dist-packages encodings ensurepip idlelib lib2to3 pydoc_data site-packages test tests
turtledemo venv"""
_LEFT_OUT = frozenset(_NOT_READ.split())
"""Tests, tables of characters, help texts as one huge string, and what is not CPython's."""


def python_corpus(*, kind: Kind) -> TextCorpus:
    """The Python that runs us. Prose: the language reference of ``help()`` and the docstrings; code: the standard
    library (3.11: 2M characters of prose, 11M of code). Raises CorpusError where the sources are not on this machine.
    """
    sources = list(_sources())
    if not sources:
        raise CorpusError(
            f"this Python ({platform.python_version()}) has no readable sources of its standard library",
            advice="use the corpus 'generated', or name a folder with --corpus",
        )
    documents = [*_topics(), *_docstrings(sources)] if kind == "prose" else sources
    return TextCorpus(name=f"{NAME}-{platform.python_version()}", kind=kind, licence=LICENCE, documents=documents)


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
