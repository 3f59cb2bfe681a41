"""The text of a PDF, as far as it has any: pages of scanned paper hold pictures."""

from __future__ import annotations

import io
import logging
import re

from pypdf import PdfReader

from longproof.quality.corpora.unreadable import Unreadable

_HYPHEN = re.compile(r"(?<=[a-z\u00df-\u00ff])-\n(?=[a-z\u00df-\u00ff])")
_PAGE_NUMBER = re.compile(r"^\s*(page\s+)?\d{1,4}(\s*(/|of)\s*\d{1,4})?\s*$", re.IGNORECASE)
_ENDS_PARAGRAPH = re.compile(r"[.!?:][\"')\]]?$")
_SHORT_LINE = 0.75


def pdf_text(data: bytes) -> str:
    """Pages in order, lines joined into paragraphs, words cut at a line's end put together again.

    Raises Unreadable for a damaged or locked file and for one without a text layer.
    """
    logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # it tells of every oddity that it gets over
    try:
        reader = PdfReader(io.BytesIO(data))
        if reader.is_encrypted and not reader.decrypt(""):
            raise Unreadable("locked with a password")
        pages = [page.extract_text() or "" for page in reader.pages]
    except Unreadable:
        raise
    except Exception as problem:  # pypdf meets damaged files with exceptions of every kind, of Python's own as well
        raise Unreadable(f"not a PDF that can be read ({type(problem).__name__})") from problem
    text = "\n\n".join(filter(None, map(_paragraphs, pages)))
    if not text.strip():
        raise Unreadable("a PDF without text, as scanned pages are")
    return text


def _paragraphs(page: str) -> str:
    """A PDF knows lines, not paragraphs: one ends where a sentence ends on a line that is short for its page."""
    lines = [line.strip() for line in _HYPHEN.sub("", page).split("\n")]
    lines = [line for line in lines if not _PAGE_NUMBER.match(line) or not line]
    full = max(map(len, lines), default=0)
    written: list[str] = []
    for line in lines:
        written.append(line)
        if not line or (_ENDS_PARAGRAPH.search(line) and len(line) < _SHORT_LINE * full):
            written.append("")
    return re.sub(r"\n{3,}", "\n\n", "\n".join(written)).strip()
