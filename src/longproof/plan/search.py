"""Which layout serves a workload best on the devices at hand: tries, keeps what fits, ranks, explains.

    possible_layouts ─▶ capacity, prefill, decode of each ─▶ replicas and pools ─▶ ranked

Ranked by: SLO kept (else how far it is missed), then device time per request (price is that times $/hour), then the
first token. One plan per layout, a bounded number of pool splits: the work grows linearly with the layouts.
Drafting takes memory here, its gain in time is not counted (`perf_speculative` has it).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from longproof.domain.measure import Measured, Reading
from longproof.domain.units import format_tokens
from longproof.errors import UsageError
from longproof.plan.capacity import Layout
from longproof.plan.layouts import describe_arrangement, describe_layout, possible_layouts
from longproof.plan.search_pools import mixed_candidates, pool_candidates
from longproof.plan.search_question import Candidate, CapacityOf, SearchQuestion, SearchResult, Slo, Unfit
from longproof.plan.search_server import Server, try_server


def search_layouts(
    question: SearchQuestion, capacity_of: CapacityOf, *, layouts: Iterable[Layout] | None = None
) -> SearchResult:
    """Every possible layout on the devices, or those given, ranked for the workload.

    Nothing fitting is an answer (`ranked` empty, the explanation says by how much). Raises UsageError for no devices or
    a figure of the device nobody knows.
    """
    if question.hardware.count < 1:
        raise UsageError(f"{question.hardware.count} devices", advice="give at least one device")
    tried = tuple(
        possible_layouts(
            question.geometry,
            question.engine,
            question.hardware.count,
            space=question.space,
            speculation=question.speculation,
        )
        if layouts is None
        else layouts
    )
    servers: list[Server] = []
    unfit: list[Unfit] = []
    for layout in tried:
        found = try_server(question, layout, capacity_of)
        if isinstance(found, Server):
            servers.append(found)
        else:
            unfit.append(found)
    candidates = [one for server in servers for one in mixed_candidates(question, server)]
    if question.space.pools:
        candidates += pool_candidates(question, servers)
    ranked = tuple(sorted(candidates, key=_rank))
    return SearchResult(
        tried=len(tried), ranked=ranked, unfit=tuple(unfit), explanation=_explained(question, ranked, tried, unfit)
    )


def _rank(candidate: Candidate) -> tuple[float, float, float, int, str]:
    return (
        candidate.overrun,
        candidate.device_seconds,
        candidate.first_token.seconds,
        candidate.devices,
        describe_arrangement(candidate.arrangement),
    )


def _explained(
    question: SearchQuestion, ranked: Sequence[Candidate], tried: Sequence[Layout], unfit: Sequence[Unfit]
) -> tuple[str, ...]:
    if not ranked:
        return _nothing_fits(question, tried, unfit)
    best = ranked[0]
    return _winner(question, best), _reached(question, best), _comparison(ranked, tried, unfit)


def _winner(question: SearchQuestion, best: Candidate) -> str:
    asked = question.slo != Slo() or question.workload.sessions is not None
    met = "meets all that was asked" if asked else "takes the least device time per request"
    if best.misses:
        met = f"comes nearest, but misses: {'; '.join(best.misses)}"
    return (
        f"{describe_arrangement(best.arrangement)} on {best.devices} of {question.hardware.count} "
        f"{question.hardware.device.title} {met}; it holds {format_tokens(best.holds)} sessions of "
        f"{format_tokens(question.workload.total_tokens)} tokens and runs {format_tokens(best.sessions)} at once."
    )


def _reached(question: SearchQuestion, best: Candidate) -> str:
    first, step = best.first_token, best.step
    text = (
        f"The first token of {format_tokens(question.workload.input_tokens)} comes after {first.seconds:.3g} s "
        f"(±{first.band:.0%}, alone), the next ones every {1e3 * best.token_seconds:.3g} ms (±{step.band:.0%}) under "
        f"that load, {best.requests_per_second:.3g} requests per second in all"
    )
    price = best.usd_per_million_output
    if isinstance(price, Measured):
        return f"{text}, at {_dollars(best.usd_per_request)} a request."
    return f"{text}, for {best.device_seconds:.3g} device-seconds a request."


def _dollars(reading: Reading[float]) -> str:
    return f"${reading.value:.3g}" if isinstance(reading, Measured) else "an unknown price"


def _comparison(ranked: Sequence[Candidate], tried: Sequence[Layout], unfit: Sequence[Unfit]) -> str:
    counted = f"Of {format_tokens(len(tried))} layouts {format_tokens(len(tried) - len(unfit))} fit"
    best = ranked[0]
    other = next((c for c in ranked[1:] if c.arrangement.layout != best.arrangement.layout), None)
    if other is None:
        return f"{counted}, none of another kind."
    name = describe_arrangement(other.arrangement)
    if other.overrun > best.overrun:
        return f"{counted}; the next kind, {name}, misses more: {'; '.join(other.misses)}."
    dearer = other.device_seconds / best.device_seconds - 1
    band = max(best.first_token.band, best.step.band)
    within = f", within the error of ±{band:.0%}: measure both" if dearer <= band else ""
    return f"{counted}; the next kind, {name}, takes {dearer:.1%} more device time per request{within}."


def _nothing_fits(question: SearchQuestion, tried: Sequence[Layout], unfit: Sequence[Unfit]) -> tuple[str, ...]:
    count, title = question.hardware.count, question.hardware.device.title
    tokens = format_tokens(question.workload.total_tokens)
    if not unfit:
        return (f"No layout of {question.engine.value} is possible on {count} {title}.",)
    last = unfit[-1]
    return (
        f"None of {len(tried)} layouts on {count} {title} holds one request of {tokens} tokens.",
        f"The widest, {describe_layout(last.layout)}: {last.reason}.",
        "Give more or larger devices, a narrower KV cache dtype or smaller weights, or a shorter request.",
    )
