"""What follows from published cells: by the source's own rule, and by ours, which asks how sure one can be.

Ours is the fixed sequence with one-sided Clopper-Pearson bounds (`stats.fixed_sequence`) against the same threshold. It
takes the answers of a cell as independent and the base as known; questions that share needles or haystacks are worth
less, so the bracket is if anything too narrow.
"""

from __future__ import annotations

from dataclasses import dataclass

from longproof.claim.published.tables import PublishedCell, PublishedRow, PublishedTable, nominal_tokens
from longproof.domain.measure import Unknown
from longproof.stats.fixed_sequence import LengthCell, fixed_sequence
from longproof.stats.proportion import clopper_pearson

_ROUNDED = 0.0005
"""Cells are published to a tenth of a percent: 85.6 must count as 85.6."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recomputed:
    """One row recomputed.

    `by_their_rule` is the longest published length up to which every cell reaches the threshold, in their words
    (``<4K`` for none, ``>128K`` for all). `agrees` is None where the source lists no length. `on_the_line` are the
    cells whose 95 % interval holds the threshold: their side is chance. `certified` and `refuted` are the bracket by
    our rule: None where no length is, Unknown where it takes a number of answers that nobody published.
    """

    model: str
    listed: str
    by_their_rule: str
    agrees: bool | None
    on_the_line: tuple[str, ...]
    certified: str | Unknown | None
    refuted: str | Unknown | None

    @property
    def disagreement(self) -> str | None:
        """One sentence where the listed length is not what the source's own rule makes of its cells."""
        if self.agrees is not False:
            return None
        return f"{self.model}: listed {self.listed}, by its own rule {self.by_their_rule}"


def recompute(table: PublishedTable, row: PublishedRow, alpha: float = 0.05) -> Recomputed:
    """Recomputes one row. The bracket is Unknown where the number of answers behind the cells is."""
    bar = table.threshold if table.rule == "mean" else table.threshold * (row.base or 0.0)
    shown = [(cell, cell.share) for cell in row.cells if not isinstance(cell.share, Unknown)]
    held = 0
    while held < len(shown) and shown[held][1] >= bar - _slack(shown[held][0], table):
        held += 1
    theirs = _in_their_words(table, [cell.length for cell, _ in shown], held)
    certified, refuted = _bracket([cell for cell, _ in shown], bar, alpha)
    return Recomputed(
        model=row.model,
        listed=row.listed,
        by_their_rule=theirs,
        agrees=row.listed.upper() == theirs if row.listed else None,
        on_the_line=tuple(cell.length for cell, share in shown if _holds(cell, share, bar)),
        certified=certified,
        refuted=refuted,
    )


def recompute_all(table: PublishedTable) -> tuple[Recomputed, ...]:
    """Every row, in the order of the table."""
    return tuple(recompute(table, row) for row in table.rows)


def _slack(cell: PublishedCell, table: PublishedTable) -> float:
    """Rounded percentages may lie half a tenth below; so may a threshold that is a share of a rounded base."""
    return 0.0 if isinstance(cell.n, int) and table.rule != "mean" else _ROUNDED


def _in_their_words(table: PublishedTable, lengths: list[str], held: int) -> str:
    if held == 0:
        return f"<{lengths[0]}"
    # RULER writes >128K where its longest cell holds; NoLiMa writes the longest cell.
    beyond = held == len(table.rows[0].cells) and table.rule == "mean"
    return f">{lengths[-1]}" if beyond else lengths[held - 1]


def _bracket(cells: list[PublishedCell], bar: float, alpha: float) -> tuple[str | Unknown | None, str | Unknown | None]:
    counted: list[LengthCell] = []
    labels: dict[int, str] = {}
    for cell in cells:
        if isinstance(cell.n, Unknown) or isinstance(cell.share, Unknown):
            reason = Unknown(reason=f"answers per cell: {cell.n.reason}" if isinstance(cell.n, Unknown) else "no cell")
            return reason, reason
        tokens = nominal_tokens(cell.length)
        labels[tokens] = cell.length
        counted.append(LengthCell(length_tokens=tokens, right=round(cell.share * cell.n), n=cell.n))
    found = fixed_sequence(counted, bar, alpha)
    return labels.get(found.certified_tokens or 0), labels.get(found.refuted_tokens or 0)


def _holds(cell: PublishedCell, share: float, bar: float) -> bool:
    if isinstance(cell.n, Unknown):
        return False
    interval = clopper_pearson(round(share * cell.n), cell.n)
    return interval.low <= bar <= interval.high
