"""The parts a terminal card is made of: headings, tables, pairs, items that wrap beside their label."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from longproof.report.untrusted import one_line


def heading(words: str) -> Text:
    """Words that begin a part, after an empty line."""
    return Text(f"\n{words}", style="bold")


def item(label: str, words: str, *, style: str = "", above: str = "") -> Table:
    """A label that stands out, and text that wraps beside it."""
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(no_wrap=True)
    if label:
        grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    body = Text(f"{one_line(above)}\n" if above else "", style="bold")
    body.append(one_line(words), style="not bold" if label else style)
    grid.add_row(*([""] + ([Text(label, style=style)] if label else []) + [body]))
    return grid


def table(*heads: str, right: bool = False) -> Table:
    """A plain table with these heads; `right`: numbers, aligned at the right."""
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for head in heads:
        grid.add_column(head, justify="right" if right else "left", overflow="fold")
    return grid


def pairs(rows: Sequence[tuple[str, str]]) -> Table:
    """Names and values in two columns."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True, style="dim")
    grid.add_column(overflow="fold")
    for name, value in rows:
        grid.add_row(Text(name), clean(value))
    return grid


def clean(words: str) -> Text:
    """Text from elsewhere: one line, nothing read as markup."""
    return Text(one_line(words))
