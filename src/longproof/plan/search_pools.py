"""Candidates from servers: replicas of one that does everything, or a prefill pool that feeds a decode pool.

Pools are tried among the best server of each size on either side, so that the work grows with the number of layouts,
not its square.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from longproof.domain.measure import Measured, Reading, derived
from longproof.plan.capacity import Layout, PlanEngine
from longproof.plan.layout_pools import check_pools
from longproof.plan.layouts import Arrangement
from longproof.plan.perf_estimate import TimeEstimate
from longproof.plan.perf_transfer import pd_transfer_time
from longproof.plan.search_question import Candidate, SearchQuestion
from longproof.plan.search_server import Server

_MILLION = 1_000_000


def mixed_candidates(question: SearchQuestion, server: Server) -> Iterator[Candidate]:
    """Replicas of one server: all that fit on the devices, or the few that a given number of sessions may want."""
    most = question.hardware.count // server.devices
    wanted = question.workload.sessions
    for replicas in _replicas(most, wanted, server.holds):
        asked = server.most_sessions(prefills=True) if wanted is None else -(-wanted // replicas)
        batch = max(1, min(asked, server.holds))
        rate = replicas / (server.busy_seconds + server.decode_seconds(batch))
        yield _candidate(
            question,
            Arrangement(layout=server.layout, replicas=replicas),
            _Load(
                devices=replicas * server.devices, holds=replicas * server.holds, batch=batch, replicas=replicas,
                first_token=server.prefill, step=server.step(batch),
                token_seconds=server.token_seconds(batch, prefills=True), rate=rate,
            ),
        )  # fmt: skip


def pool_candidates(question: SearchQuestion, servers: Sequence[Server]) -> Iterator[Candidate]:
    """A prefill pool and a decode pool, over every split of the devices between them."""
    if question.engine not in (PlanEngine.VLLM, PlanEngine.SGLANG):
        return
    decoding = _decode_side(servers)
    for first in _prefill_side(question, servers):
        for second in decoding:
            if first.devices + second.devices > question.hardware.count:
                continue
            if check_pools(question.geometry, question.engine, first.layout, second.layout):
                continue
            yield from _splits(question, first, second)


def _splits(question: SearchQuestion, first: Server, second: Server) -> Iterator[Candidate]:
    count, wanted = question.hardware.count, question.workload.sessions
    waited = _with_transfer(question, first)
    for prefills in range(1, (count - second.devices) // first.devices + 1):
        decodes = (count - prefills * first.devices) // second.devices
        if wanted is not None:
            decodes = min(decodes, -(-wanted // second.holds))
        asked = second.most_sessions(prefills=False) if wanted is None else -(-wanted // decodes)
        batch = max(1, min(asked, second.holds))
        rate = min(prefills / first.busy_seconds, decodes / second.decode_seconds(batch))
        yield _candidate(
            question,
            Arrangement(layout=first.layout, replicas=prefills, decode=second.layout, decode_replicas=decodes),
            _Load(
                devices=prefills * first.devices + decodes * second.devices, holds=decodes * second.holds, batch=batch,
                replicas=decodes, first_token=waited, step=second.step(batch),
                token_seconds=second.token_seconds(batch, prefills=False), rate=rate,
            ),
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class _Load:
    """What an arrangement does under load. `batch`: sessions of one decoding server, `replicas` of them."""

    devices: int
    holds: int
    batch: int
    replicas: int
    first_token: TimeEstimate
    step: TimeEstimate
    token_seconds: float
    rate: float


def _candidate(question: SearchQuestion, arrangement: Arrangement, load: _Load) -> Candidate:
    wanted = question.workload.sessions
    sessions = load.replicas * load.batch
    if wanted is not None:
        sessions = min(sessions, wanted)
    device_seconds = load.devices / load.rate
    misses, overrun = _misses(question, load)
    return Candidate(
        arrangement=arrangement,
        devices=load.devices,
        sessions=sessions,
        holds=load.holds,
        first_token=load.first_token,
        step=load.step,
        token_seconds=load.token_seconds,
        requests_per_second=load.rate,
        device_seconds=device_seconds,
        usd_per_request=_usd(question, device_seconds, 1.0),
        usd_per_million_output=_usd(question, device_seconds, _MILLION / question.workload.output_tokens),
        misses=misses,
        overrun=overrun,
    )


def _misses(question: SearchQuestion, load: _Load) -> tuple[tuple[str, ...], float]:
    slo, wanted = question.slo, question.workload.sessions
    found: list[tuple[str, float]] = []
    if slo.first_token_seconds is not None and load.first_token.seconds > slo.first_token_seconds:
        text = f"first token after {load.first_token.seconds:.3g} s, {slo.first_token_seconds:g} s asked"
        found.append((text, load.first_token.seconds / slo.first_token_seconds))
    if slo.token_seconds is not None and load.token_seconds > slo.token_seconds:
        text = f"{1e3 * load.token_seconds:.3g} ms between tokens, {1e3 * slo.token_seconds:g} ms asked"
        found.append((text, load.token_seconds / slo.token_seconds))
    if wanted is not None and load.holds < wanted:
        found.append((f"it holds {load.holds} of {wanted} sessions", wanted / load.holds))
    return tuple(text for text, _ in found), max((ratio for _, ratio in found), default=1.0)


def _usd(question: SearchQuestion, device_seconds: float, factor: float) -> Reading[float]:
    price = question.hardware.usd_per_hour
    if not isinstance(price, Measured):
        return price
    return derived(price.value / 3600 * device_seconds * factor, f"{price.value:g} USD per device and hour")


def _replicas(most: int, wanted: int | None, holds: int) -> tuple[int, ...]:
    if wanted is None:
        return (most,)
    most = min(most, wanted)
    enough = min(most, -(-wanted // holds))
    doubled = (1 << n for n in range(most.bit_length()))
    return tuple(sorted({enough, most, *(r for r in doubled if enough < r < most)}))


def _prefill_side(question: SearchQuestion, servers: Sequence[Server]) -> list[Server]:
    """Of each size the server with the least device time per prompt, those within the SLO first."""
    bound = question.slo.first_token_seconds

    def cost(server: Server) -> tuple[bool, float]:
        return bound is not None and server.prefill.seconds > bound, server.devices * server.busy_seconds

    return _best_by_size(servers, cost)


def _decode_side(servers: Sequence[Server]) -> list[Server]:
    """Of each size the server with the least device time for a request's output, at the largest batch that keeps the
    SLO, those that keep it first. Prefill context parallelism has no place there."""

    def cost(server: Server) -> tuple[bool, float]:
        batch = server.most_sessions(prefills=False)
        bound = server.question.slo.token_seconds
        late = bound is not None and server.token_seconds(batch, prefills=False) > bound
        return late, server.devices * server.decode_seconds(batch)

    return _best_by_size([s for s in servers if s.layout.pcp == 1], cost)


def _best_by_size(servers: Sequence[Server], cost: Callable[[Server], tuple[bool, float]]) -> list[Server]:
    best: dict[int, tuple[tuple[bool, float], Server]] = {}
    for server in servers:
        asked = cost(server)
        if server.devices not in best or asked < best[server.devices][0]:
            best[server.devices] = (asked, server)
    return [server for _, server in best.values()]


def _with_transfer(question: SearchQuestion, first: Server) -> TimeEstimate:
    """The prompt, and its cache's way over the prefill server's own network cards."""
    rate = question.hardware.device.scale_out_bytes_per_second
    if not isinstance(rate, Measured):
        notes = (*first.prefill.notes, "the transfer to the decode pool is not counted: no network rate is known")
        return TimeEstimate(parts=first.prefill.parts, band=first.prefill.band, notes=notes)
    cache = question.work.sequence_bytes(question.workload.input_tokens)
    sent = pd_transfer_time(cache, rate.value * _senders(first.layout))
    return TimeEstimate(
        parts=(*first.prefill.parts, *sent.parts),
        band=max(first.prefill.band, sent.band),
        notes=first.prefill.notes,
    )


def _senders(layout: Layout) -> int:
    """Ranks that hold distinct parts of one request's cache at least: its pipeline stages and tensor-parallel ranks."""
    return max(1, layout.tp // (layout.dp if layout.dp_attention else 1)) * layout.pp
