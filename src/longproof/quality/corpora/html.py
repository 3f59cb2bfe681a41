"""The readable text of an HTML page: paragraphs apart, no scripts, styles, navigation or forms."""

from __future__ import annotations

import re

from selectolax.lexbor import LexborHTMLParser, LexborNode

_NOT_TEXT = ["script", "style", "noscript", "template", "nav", "header", "footer", "form", "button", "svg", "head"]
_END_OF_PRE = "pre"
_APART = """address article aside blockquote body caption details div dl figcaption figure h1 h2 h3 h4 h5 h6 hr main ol
p pre section summary table ul"""
_BLOCKS: dict[str, int] = dict.fromkeys(_APART.split(), 2) | dict.fromkeys(
    ["br", "dd", "dt", "li", "td", "th", "tr"], 1
)
"""Tag → line ends that set it apart."""

_SPACES = re.compile(r"[ \t\n\r\f\u00a0]+")
_GAPS = re.compile(r"\n{3,}")


def html_text(page: str) -> str:
    """Text in the order of the page. Blocks are a blank line apart, cells and list items a line; `pre` keeps its lines.

    A page's `main` or `article` is taken where there is one.
    """
    tree = LexborHTMLParser(page)
    tree.strip_tags(_NOT_TEXT)
    root = tree.css_first("main") or tree.css_first("article") or tree.body or tree.root
    if root is None:
        return ""
    parts: list[str] = []
    _write(root, parts)
    lines = (line.rstrip() for line in "".join(parts).split("\n"))
    return _GAPS.sub("\n\n", "\n".join(lines)).strip()


def _write(root: LexborNode, parts: list[str]) -> None:
    """Depth first without recursion: pages nest deeper than Python calls may."""
    waiting: list[LexborNode | str] = [root]
    literal = 0
    while waiting:
        node = waiting.pop()
        if isinstance(node, str):
            literal -= node == _END_OF_PRE
            _break(parts, _BLOCKS.get(node, 0))
        elif node.is_text_node:
            text = node.text_content or ""
            parts.append(text if literal else _inline(text, parts))
        else:
            tag = node.tag or ""
            literal += tag == _END_OF_PRE
            _break(parts, _BLOCKS.get(tag, 0))
            waiting.append(tag)
            waiting.extend(reversed(list(node.iter(include_text=True))))


def _break(parts: list[str], lines: int) -> None:
    """At least so many line ends after what has been written."""
    if not lines or not parts:
        return
    written = "".join(parts[-2:])[-2:]
    there = len(written) - len(written.rstrip("\n"))
    parts.extend(["\n"] * (lines - there))


def _inline(text: str, parts: list[str]) -> str:
    """White space as a browser shows it: one space, none where a line begins."""
    shown = _SPACES.sub(" ", text)
    return shown.lstrip() if not parts or parts[-1].endswith(("\n", " ")) else shown
