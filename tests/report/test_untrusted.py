"""Text from a server, made safe to look at."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from longproof.report.untrusted import one_line, shortened, visible


@given(st.text())
def test_visible_leaves_no_control_sign_when_given_any_text(text: str) -> None:
    shown = visible(text)
    assert len(shown) == len(text)
    assert not any(ord(sign) < 32 and sign not in "\n\t" for sign in shown)
    assert not any(0x7F <= ord(sign) <= 0x9F or 0x202A <= ord(sign) <= 0x202E for sign in shown)
    shown.encode()  # lone surrogates would raise


def test_visible_keeps_words_when_they_are_plain() -> None:
    assert visible("Kontext zu lang: 8,192 → 4,096\n\tnext") == "Kontext zu lang: 8,192 → 4,096\n\tnext"


def test_visible_disarms_when_text_holds_terminal_escapes() -> None:
    assert visible("\x1b[31mred\x1b[0m \u202eexe.txt") == "\ufffd[31mred\ufffd[0m \ufffdexe.txt"


def test_shortened_says_how_much_is_missing_when_it_cuts() -> None:
    assert shortened("x" * 2_500) == "x" * 2_000 + " … (500 more characters in the evidence)"


def test_one_line_joins_when_text_has_lines() -> None:
    assert one_line(" a\n\n  b\tc ") == "a b c"
