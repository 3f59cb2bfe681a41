"""One file as text: plain, Markdown, HTML, PDF or source code, in whatever encoding it is."""

from __future__ import annotations

import codecs
import io
import re
import tokenize
from pathlib import Path

from charset_normalizer import from_bytes

from longproof.quality.corpora.corpus import Kind
from longproof.quality.corpora.html import html_text
from longproof.quality.corpora.pdf import pdf_text
from longproof.quality.corpora.unreadable import Unreadable

MOST_FILE_BYTES = 64 * 2**20
"""A larger file is not read: text of that size is a dump of data."""

_PROSE_SUFFIXES = ".adoc .asciidoc .htm .html .markdown .md .mdx .org .pdf .rst .tex .text .txt .xhtml"
_CODE_SUFFIXES = """.bash .c .cc .clj .cljs .coffee .cpp .cs .css .cu .cuh .cxx .d .dart .el .erl .ex .exs .f .f90 .fs
.go .graphql .groovy .h .hh .hpp .hs .hxx .inl .java .jl .js .jsx .kt .kts .lisp .lua .m .metal .mjs .ml .mli .mm .nim
.pas .php .pl .pm .proto .ps1 .py .pyi .pyx .r .rb .rkt .rs .s .scala .scm .sh .sol .sql .swift .tcl .tf .thrift .ts
.tsx .v .vb .vhd .vim .vue .zig .zsh"""
_PROSE = frozenset(_PROSE_SUFFIXES.split())
_CODE = frozenset(_CODE_SUFFIXES.split())
_PROSE_NAMES = frozenset(("authors", "changelog", "changes", "contributing", "history", "install", "news", "readme"))
_SAMPLE_BYTES = 65_536
_COMMONEST = "cp1252"
_CONTROLS = re.compile(r"[\x00-\x08\x0e-\x1a\x1c-\x1f\x7f]")
_MOST_CONTROLS = 0.005
_WIDE_BOMS = (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def kind_of(path: Path) -> Kind | None:
    """What a file holds, by its name; None for kinds that are not read (data, images, archives, binaries)."""
    suffix = path.suffix.lower()
    if suffix in _CODE:
        return "code"
    if suffix in _PROSE or (not suffix and path.name.lower() in _PROSE_NAMES):
        return "prose"
    return None


def read_text(path: Path) -> tuple[str, bytes]:
    """(text, the file's bytes). Raises Unreadable with the reason, whatever is wrong with the file."""
    try:
        size_bytes = path.stat().st_size
        if size_bytes > MOST_FILE_BYTES:
            raise Unreadable(f"{size_bytes:,} bytes, more than {MOST_FILE_BYTES:,}")
        data = path.read_bytes()
    except OSError as problem:
        raise Unreadable(problem.strerror or str(problem)) from problem
    suffix = path.suffix.lower()
    if suffix == ".pdf":
        text = pdf_text(data)
    else:
        text = decode(data, suffix)
        if suffix in (".html", ".htm", ".xhtml"):
            text = html_text(text)
    if not text.strip():
        raise Unreadable("empty")
    return text, data


def decode(data: bytes, suffix: str = "") -> str:
    """Bytes as text: by byte order mark, as UTF-8, by the coding line of Python source, else by what is likely.

    Raises Unreadable for binary data.
    """
    if data.startswith(_WIDE_BOMS):
        text = _decoded(data, "utf-32" if data.startswith(_WIDE_BOMS[:2]) else "utf-16")
    elif b"\0" in data[:_SAMPLE_BYTES]:
        raise Unreadable("binary")
    else:
        text = _decoded(data, _encoding(data, suffix))
    sample = text[:_SAMPLE_BYTES]
    if len(_CONTROLS.findall(sample)) > _MOST_CONTROLS * len(sample):
        raise Unreadable("binary")
    return text


def _encoding(data: bytes, suffix: str) -> str:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        pass
    else:
        return "utf-8-sig"
    if suffix in (".py", ".pyi"):
        try:
            declared, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        except SyntaxError:
            declared = "utf-8"
        if not declared.startswith("utf-8"):
            return declared
    found = from_bytes(data[:_SAMPLE_BYTES])
    likely = found.best()
    if likely is None:
        raise Unreadable("in no known encoding")
    as_good = [match.encoding for match in found if (match.chaos, match.coherence) == (likely.chaos, likely.coherence)]
    return _COMMONEST if _COMMONEST in as_good else likely.encoding


def _decoded(data: bytes, encoding: str) -> str:
    try:
        return data.decode(encoding)
    except (UnicodeDecodeError, LookupError) as problem:
        raise Unreadable(f"not readable as {encoding}") from problem
