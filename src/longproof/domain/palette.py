"""One palette for every page and plot, light and dark, chosen to stay apart for colour-blind readers; colour never
speaks alone."""

from __future__ import annotations

from enum import StrEnum


class Role(StrEnum):
    """What a colour is for. Text roles (all but PAPER, SURFACE, RULE, GRID) keep 4.5 : 1 against paper and surface
    in both themes."""

    PAPER = "paper"
    SURFACE = "surface"
    INK = "ink"
    MUTED = "muted"
    RULE = "rule"
    GRID = "grid"
    COLD = "cold"
    WARM = "warm"
    TAIL = "tail"
    GOOD = "good"
    REFUSED = "refused"
    CAUTION = "caution"
    BAD = "bad"


LIGHT: dict[Role, str] = {
    Role.PAPER: "#fbfaf8",
    Role.SURFACE: "#ffffff",
    Role.INK: "#1b1d21",
    Role.MUTED: "#5a6068",
    Role.RULE: "#dad7d1",
    Role.GRID: "#ebe8e3",
    Role.COLD: "#1c5d9f",
    Role.WARM: "#b1500b",
    Role.TAIL: "#0b7560",
    Role.GOOD: "#0b7560",
    Role.REFUSED: "#4a5a86",
    Role.CAUTION: "#8a5a00",
    Role.BAD: "#b3203c",
}
DARK: dict[Role, str] = {
    Role.PAPER: "#131518",
    Role.SURFACE: "#1a1d21",
    Role.INK: "#e8e8e6",
    Role.MUTED: "#a4a9b0",
    Role.RULE: "#363b42",
    Role.GRID: "#262a30",
    Role.COLD: "#78b4f2",
    Role.WARM: "#f2a461",
    Role.TAIL: "#58cbb0",
    Role.GOOD: "#58cbb0",
    Role.REFUSED: "#a6b4de",
    Role.CAUTION: "#e2b552",
    Role.BAD: "#ff8f9b",
}


def css_variables() -> str:
    """Custom properties for both themes: the reader's system decides, ``data-theme`` on the root element overrides
    it."""
    light, dark = _block(LIGHT), _block(DARK)
    return (
        f":root{{color-scheme:light;{light}}}\n"
        f"@media (prefers-color-scheme:dark){{:root:not([data-theme=light]){{color-scheme:dark;{dark}}}}}\n"
        f":root[data-theme=dark]{{color-scheme:dark;{dark}}}\n"
        f"@media print{{:root:root:root{{color-scheme:light;{light}}}}}"
    )


def _block(palette: dict[Role, str]) -> str:
    return "".join(f"--{role.value}:{colour};" for role, colour in palette.items())
