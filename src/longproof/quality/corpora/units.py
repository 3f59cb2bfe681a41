"""Documents in pieces between which a needle may stand: lines of prose, top-level blocks of code.

A unit never begins or ends with white space. Prose: a paragraph becomes one line, a long one several, cut after
sentences; lists, tables, literal and fenced blocks keep their lines. Code: one top-level definition, or a group of
other statements up to a blank line.
"""

from __future__ import annotations

import ast
import re
import textwrap
import warnings
from collections.abc import Iterator
from typing import Literal

MOST_CHARS = {"prose": 4_000, "code": 8_000}
"""A larger piece is left out of the filler (never cut): the needle's depth is only as fine as the pieces."""

_MARKER = re.compile(r"<[|｜][^|｜\s<>]{1,60}[|｜]>|<(start|end)_of_turn>|\[/?INST\]")
"""What chat templates end a message with. A server reads it as that wherever it stands, so such a piece is left out."""

_LINE_CHARS = 320
_GROUP_CHARS = 800
_FENCE = re.compile(r"^(```|~~~)")
_SENTENCE_END = re.compile(r"(?<=[.!?])[\"')\]]?\s+(?=[\"'(\[]?[A-Z0-9\u0080-\uffff])|(?<=[。！？])")
_KEEPS_LINES = re.compile(r"^(\s|[-*+•|>#]|\d+[.)]\s|\.\. |:\w)", re.M)
_RULE = re.compile(r"^[^\w\s]{3,}$")
_BEGINS_BLOCK = re.compile(r"[^\W\d]|[@#/\"'<\[(*.\\]")


def split_units(name: str, text: str, kind: Literal["prose", "code"]) -> list[str]:
    """The units of a document, in order; `name` tells the language of code by its suffix."""
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "")
    if kind == "prose":
        found = _prose(text)
    elif name.endswith((".py", ".pyi")):
        found = _python(text)
    else:
        found = _code(text)
    units = (piece.strip() for piece in found)
    return [unit for unit in units if unit and len(unit) <= MOST_CHARS[kind] and not _MARKER.search(unit)]


# -- prose ------------------------------------------------------------------------------------------------------------


def _prose(text: str) -> Iterator[str]:
    for written in _blocks(text):
        block = "\n".join(line.rstrip() for line in written.splitlines() if not _RULE.match(line.strip()))
        if _FENCE.match(written):
            yield written
        elif _KEEPS_LINES.search(block):
            yield textwrap.dedent(block)
        else:
            yield from _lines(" ".join(block.split()))


def _blocks(text: str) -> Iterator[str]:
    """Paragraphs; a fenced block is one whatever stands in it."""
    waiting: list[str] = []
    fence: str | None = None
    for line in text.split("\n"):
        mark = _FENCE.match(line)
        if fence is None and mark:
            yield from _paragraph(waiting)
            waiting, fence = [line], mark.group(1)
        elif fence is not None:
            waiting.append(line)
            if line.startswith(fence):
                yield from _paragraph(waiting)
                waiting, fence = [], None
        elif line.strip():
            waiting.append(line)
        else:
            yield from _paragraph(waiting)
            waiting = []
    yield from _paragraph(waiting)


def _paragraph(lines: list[str]) -> Iterator[str]:
    if lines:
        yield "\n".join(lines)


def _lines(paragraph: str) -> Iterator[str]:
    """A paragraph as lines of whole sentences, none longer than `_LINE_CHARS` unless one sentence is."""
    line = ""
    for sentence in _SENTENCE_END.split(paragraph):
        if line and len(line) + len(sentence) >= _LINE_CHARS:
            yield line
            line = sentence
        else:
            line = f"{line} {sentence}" if line else sentence
    if line:
        yield line


# -- code -------------------------------------------------------------------------------------------------------------


def _python(text: str) -> Iterator[str]:
    try:
        with warnings.catch_warnings(action="ignore"):  # invalid escapes in files that are not ours
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        yield from _code(text)
        return
    lines = text.split("\n")
    group: list[str] = []
    for first, last, alone in _statements(tree, lines):
        piece = "\n".join(lines[first:last])
        if alone or (group and (not lines[first - 1].strip() or sum(map(len, group)) >= _GROUP_CHARS)):
            yield from _paragraph(group)
            group = []
        if alone:
            yield piece
        else:
            group.append(piece)
    yield from _paragraph(group)


def _statements(tree: ast.Module, lines: list[str]) -> Iterator[tuple[int, int, bool]]:
    """(first line, line after the last, stands alone?) of each top-level statement with the comments before it."""
    end = 0
    for node in tree.body:
        decorators = getattr(node, "decorator_list", None) or [node]
        first = min(decorators[0].lineno, node.lineno) - 1
        last = node.end_lineno or node.lineno
        if first < end:  # a second statement on the line of the one before
            end = max(end, last)
            continue
        while first > end and lines[first - 1].startswith("#"):
            first -= 1
        yield first, last, isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        end = last


def _code(text: str) -> Iterator[str]:
    """Other languages: a blank line, then a line at the margin that begins something."""
    block: list[str] = []
    for line in text.split("\n"):
        begins = bool(_BEGINS_BLOCK.match(line)) and bool(block) and not block[-1].strip()
        if begins:
            yield "\n".join(block)
            block = []
        block.append(line.rstrip())
    yield "\n".join(block)
