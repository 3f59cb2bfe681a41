"""What changed when the same prompts were asked again at once: by chance, or because the prefix cache served them.

asked again ─┬─ the server took most of it from its cache   cold against warm
             ├─ it says that it did not                      not warm: tells only whether answers repeat
             └─ it does not say                              taken as warm where no server says otherwise
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from longproof.claim.cached import cached_reports
from longproof.claim.quality_replies import PROBE, FamilyReplies, Reply
from longproof.claim.statements import Finding, NotShown, Severity, Standing, Statement
from longproof.domain.measure import Measured, Provenance
from longproof.stats.agreement import count_pairs, flip_rate, paired_difference, worse

LEVEL = 0.01
_WARM_SHARE = 0.5
"""Of its own prompt: the template alone, which all prompts share, is far below."""

Again = tuple[Reply, Reply]
"""The same item cold, and again at once; both have a score."""


def asked_again(families: Sequence[FamilyReplies]) -> Iterator[Statement | Finding | NotShown]:
    """Nothing where nobody was asked twice."""
    pairs = _pairs(families)
    if not pairs:
        return
    yield _flips(pairs)
    told = [(pair, _from_cache(pair[1])) for pair in pairs]
    hits = [pair for pair, warm in told if warm]
    untold = [pair for pair, warm in told if warm is None]
    missed = len(pairs) - len(hits) - len(untold)
    warm = hits or untold
    if not warm or (missed and not hits):
        yield NotShown(
            topic=f"{PROBE}.warm",
            text=(
                f"Whether a prefix hit changes what is right: {missed} of {len(pairs)} prompts that were asked again at"
                " once were not served from the cache, by the server's own count."
            ),
            how="switch prefix caching on, or ask fewer questions at a time, so that a prompt is still in the cache",
        )
        return
    yield from _warm(warm, missed, by_its_count=bool(hits))


def _pairs(families: Sequence[FamilyReplies]) -> list[Again]:
    pairs: list[Again] = []
    for family in families:
        for length, warm in family.warm.items():
            cold = {reply.item.index: reply for reply in family.full[length].replies}
            pairs += [(cold[r.item.index], r) for r in warm.replies if r.item.index in cold]
    return [(a, b) for a, b in pairs if a.right is not None and b.right is not None]


def _from_cache(reply: Reply) -> bool | None:
    """Whether most of the prompt came from the cache, by the server's own count. None = it does not say."""
    cached, sent = cached_reports(reply.body).most, reply.body.timeline.prompt_tokens_sent
    return None if cached is None or not sent else cached >= _WARM_SHARE * sent


def _flips(pairs: Sequence[Again]) -> Statement:
    found = flip_rate([a.right for a, _ in pairs], [b.right for _, b in pairs])
    low, high = 100 * found.interval.low, 100 * found.interval.high
    return Statement(
        id=f"{PROBE}.flip_rate",
        metric="flip_rate",
        text=(
            f"Asked again at once, {found.flipped} of {found.n} answers changed between right and wrong"
            f" ({low:.0f} to {high:.0f} %, {found.interval.method})."
        ),
        standing=Standing.SHOWN,
        unit="fraction",
        value=Measured(value=found.rate, provenance=Provenance.MEASURED, source="changed / asked again"),
        n=found.n,
        interval=found.interval,
        evidence=_keys(pairs),
    )


def _warm(pairs: Sequence[Again], missed: int, *, by_its_count: bool) -> Iterator[Statement | Finding]:
    counted = count_pairs([a.right for a, _ in pairs], [b.right for _, b in pairs])
    served = "from the cache, by the server's own count" if by_its_count else "perhaps from the cache: it does not say"
    apart = f"; {missed} more were not, and are left out" if missed and by_its_count else ""
    yield Statement(
        id=f"{PROBE}.warm_difference",
        metric="warm_difference",
        text=(
            f"Of {counted.n} prompts served again {served}{apart}, {counted.only_first} were answered right only cold,"
            f" {counted.only_second} only warm."
        ),
        standing=Standing.SHOWN,
        unit="ratio",
        value=Measured(value=counted.difference, provenance=Provenance.MEASURED, source="share warm - share cold"),
        n=counted.n,
        interval=paired_difference(counted),
        conditions={"warm": "by the server's cached tokens" if by_its_count else "asked again at once; untold"},
        evidence=_keys(pairs),
    )
    if worse(counted) < LEVEL:
        yield Finding(
            id="quality.warm_damage",
            severity=Severity.FAULT,
            text=(
                f"The same prompts are answered worse from the prefix cache: {counted.only_first} of {counted.n} were"
                f" right only cold, {counted.only_second} only warm (p = {worse(counted):.2g})."
            ),
            evidence=_keys(pairs),
        )


def _keys(pairs: Sequence[Again]) -> tuple[str, ...]:
    return tuple(reply.key for pair in pairs for reply in pair)
