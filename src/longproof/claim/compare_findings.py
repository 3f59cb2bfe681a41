"""What a reader of a comparison must be told beside its ratios: no effect at all, other answers, other outcomes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from longproof.claim.compare_facts import FactsCompared
from longproof.claim.compare_outputs import OutputsCompared
from longproof.claim.compare_pairs import Pair
from longproof.claim.statements import Finding, Severity
from longproof.domain.measure import Unknown
from longproof.domain.units import format_tokens
from longproof.stats.paired import PairedTest, paired_test


def pooled_of(pairs: Sequence[Pair], confidence: float) -> dict[str, PairedTest]:
    """Ratios over all cells and lengths together, by metric: enough to see whether anything at all changed."""
    found: dict[str, PairedTest] = {}
    for metric in ("ttft_ratio", "tpot_ratio"):
        both = [(pair.b[metric], pair.a[metric]) for pair in pairs if metric in pair.a and metric in pair.b]
        test = paired_test(both, confidence)
        if not isinstance(test, Unknown):
            found[metric] = test
    return found


def findings_of(
    facts: FactsCompared,
    outputs: OutputsCompared,
    *,
    told: bool,
    pooled: Mapping[str, PairedTest],
    differs: bool,
    least_effect: float,
    only: tuple[int, int],
    p_outcomes: float,
    alpha: float,
) -> Iterator[Finding]:
    """All that apply. `told`: the servers themselves show that the factor differs; `differs`: a row showed a
    difference; `only`: pairs completed by A alone and by B alone."""
    if not differs and _unmoved(pooled, least_effect) and outputs.compared >= 3 and outputs.equal == outputs.compared:
        yield _no_effect(facts, outputs, pooled, told=told)
    if outputs.equal < outputs.compared:
        yield _outputs_differ(outputs)
    if p_outcomes <= alpha:
        yield Finding(
            id="compare.outcomes_differ",
            severity=Severity.CAUTION,
            text=(
                f"{only[0]} requests completed on A alone and {only[1]} on B alone (McNemar, p = {p_outcomes:.2g})."
                " Ratios are of what both completed."
            ),
            evidence=(),
        )


def _unmoved(pooled: Mapping[str, PairedTest], least_effect: float) -> bool:
    return bool(pooled) and all(
        test.interval.low >= 1 / least_effect and test.interval.high <= least_effect for test in pooled.values()
    )


def _no_effect(
    facts: FactsCompared, outputs: OutputsCompared, pooled: Mapping[str, PairedTest], *, told: bool
) -> Finding:
    ranges = ", ".join(
        f"{'time to first token' if metric == 'ttft_ratio' else 'time per output token'} {test.interval.low:.3g} to"
        f" {test.interval.high:.3g}"
        for metric, test in pooled.items()
    )
    words = (
        "The servers themselves tell the difference, so it was on, and did nothing here."
        if told
        else "Nothing that the servers tell differs either."
    )
    return Finding(
        id="compare.no_effect",
        severity=Severity.CAUTION,
        text=(
            f"No effect seen: was {facts.factor or 'it'} on? All {outputs.compared} answers are the same, and so are"
            f" the times (B over A, all cells together: {ranges}). {words}"
        ),
        evidence=(),
    )


def _outputs_differ(outputs: OutputsCompared) -> Finding:
    unequal = outputs.compared - outputs.equal
    where = ""
    if outputs.parted is not None:
        length, at, of_a, of_b = outputs.parted
        where = (
            f" The earliest difference is after {at} characters, at {format_tokens(length)} tokens: A goes on"
            f" {of_a!r}, B {of_b!r}."
        )
    if outputs.attributable:
        why = " Each side repeated itself when asked again, so it is the configurations that differ."
    elif outputs.again_a[0] and outputs.again_b[0]:
        why = " A side does not repeat itself either, so it need not be the configurations' doing."
    else:
        why = " Whether each side repeats itself was not asked."
    return Finding(
        id="compare.outputs_differ",
        severity=Severity.CAUTION,
        text=f"{unequal} of {outputs.compared} greedy answers to the same prompts differ.{where}{why}",
        evidence=(),
    )
