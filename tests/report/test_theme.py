"""The palette: readable in both themes, and one drawing for both."""

from __future__ import annotations

import re

import pytest

from longproof.report.theme import DARK, LIGHT, Role, css_variables, sentinel, with_variables

_NOT_TEXT = {Role.PAPER, Role.SURFACE, Role.RULE, Role.GRID}


def _luminance(colour: str) -> float:
    """Relative luminance of ``#rrggbb``: WCAG 2.2, definition of relative luminance."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _contrast(one: str, other: str) -> float:
    light, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("palette", [LIGHT, DARK], ids=["light", "dark"])
@pytest.mark.parametrize("role", sorted(set(Role) - _NOT_TEXT))
def test_text_has_contrast_when_it_stands_on_paper_or_surface(palette: dict[Role, str], role: Role) -> None:
    assert _contrast(palette[role], palette[Role.PAPER]) >= 4.5  # WCAG 2.2, success criterion 1.4.3 (AA)
    assert _contrast(palette[role], palette[Role.SURFACE]) >= 4.5


def test_sentinels_become_variables_when_embedded() -> None:
    drawn = " ".join(sentinel(role) for role in Role)
    assert with_variables(drawn) == " ".join(f"var(--{role.value})" for role in Role)


def test_both_themes_define_every_role_when_written_as_css() -> None:
    blocks = re.findall(r"color-scheme:(light|dark);([^}]*)}", css_variables())
    assert [theme for theme, _ in blocks] == ["light", "dark", "dark", "light"]  # root, system, toggle, print
    for _, block in blocks:
        assert re.findall(r"--([a-z]+):", block) == [role.value for role in Role]
