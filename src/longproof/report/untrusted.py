"""Text from a server, made safe to look at: it may hold terminal escapes, direction overrides and megabytes.

The page escapes markup by itself (jinja autoescape) and the card never reads markup (rich Text); this removes what
is left.
"""

from __future__ import annotations

import unicodedata

LONGEST_WORDS = 2_000
_KEPT = "\n\t"
_DIRECTION = frozenset("\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u061c")


def visible(text: str) -> str:
    """The text with every control character and direction override replaced by U+FFFD; newline and tab stay."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        "\ufffd" if (unicodedata.category(sign) in ("Cc", "Cs") and sign not in _KEPT) or sign in _DIRECTION else sign
        for sign in text
    )


def shortened(text: str, longest: int = LONGEST_WORDS) -> str:
    """At most `longest` characters; what was left out is named, since the evidence still holds it."""
    if len(text) <= longest:
        return text
    return f"{text[:longest]} … ({len(text) - longest:,} more characters in the evidence)"


def one_line(text: str) -> str:
    """`visible`, with all white space runs as single spaces."""
    return " ".join(visible(text).split())
