"""The laws, held against three independent accounts of one run: clients, engines, and the gateway's own books.

Every law is a function of `Books` that yields what breaks it. Counts of tokens are tokens; an answer's events are one
token each, but for the one that says whose turn it is and the one that says why it ended.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from chaos.truth import Asked, Generation, Truth
from longproof.domain.fleet import ReplicaState
from longproof.gateway.decision_codec import FollowedReplica, decode_entry
from longproof.gateway.decisions import replay_log
from longproof.gateway.ledger_sql import Settled
from longproof.gateway.ledger_store import open_ledger
from longproof.policy.actions import Dispatch, Refusal
from longproof.policy.decision_record import (
    Arrived,
    DecisionRecord,
    EngineRefused,
    Finished,
    FirstToken,
    Produced,
    ReplicaChanged,
)

REPORT_TOKENS = 16
"""Progress is on the books every so many tokens: what a kill -9 of the gateway leaves unknown, per stream."""
MOST_IDLE = 3 * 2 * 32
"""Engines, connection pools for each besides the one for requests, connections that a pool keeps."""
TOLD_WITHIN_S = 10.0
"""So soon it is known that events are wrong, or right again."""
OVER_SHARE = 0.05
"""Of the tokens that an index which follows events took as cached, so many may not have been."""
RESTART_S = 3.0
"""So long after its return an engine may be taken for the one it was: its metrics are read once a second."""
_NS_PER_S = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Credit:
    """What a request was thought to have in a replica's cache when it was sent there. `fed`: by an index that follows
    events, and not by a guess from our own traffic."""

    gateway_id: str
    replica: str
    tokens: int
    at_ns: int
    fed: bool


@dataclass(slots=True, kw_only=True)
class Log:
    """One life's decision log. `whole`: no records are missing."""

    path: Path
    records: list[DecisionRecord] = field(default_factory=list[DecisionRecord])
    credits: list[Credit] = field(default_factory=list[Credit])
    whole: bool = True


@dataclass(slots=True, kw_only=True)
class Books:
    """All accounts, and how they hang together: a request's number is its client's, its gateway id the gateway's."""

    truth: Truth
    settled: list[Settled]
    unsettled: int
    logs: list[Log]
    of_number: dict[int, list[Generation]] = field(default_factory=dict[int, list[Generation]])
    rows_of: dict[str, list[Settled]] = field(default_factory=dict[str, list[Settled]])
    ids_of: dict[int, set[str]] = field(default_factory=dict[int, set[str]])

    def rows(self, asked: Asked) -> list[Settled]:
        """All rows about a request, whichever id it had."""
        return [row for gateway_id in self.ids_of[asked.number] for row in self.rows_of.get(gateway_id, ())]


def read_books(truth: Truth, state: Path) -> Books:
    """Reads what the gateway wrote, after its end, and joins it all."""
    ledger = open_ledger(state / "usage" / "ledger.sqlite", must_exist=True)
    try:
        settled, unsettled = list(ledger.settled()), len(ledger.unsettled("gateway"))
    finally:
        ledger.close()
    logs = [_read_log(path) for path in sorted(state.glob("decisions*.jsonl"), key=lambda p: p.stat().st_mtime_ns)]
    return joined(truth, settled, unsettled, logs)


def joined(truth: Truth, settled: list[Settled], unsettled: int, logs: list[Log]) -> Books:
    """All accounts, by request."""
    books = Books(truth=truth, settled=settled, unsettled=unsettled, logs=logs)
    books.ids_of = {asked.number: {asked.gateway_id} - {None} for asked in truth.asked}  # type: ignore[misc]
    for made in truth.generations:
        books.of_number.setdefault(made.number, []).append(made)
        books.ids_of[made.number].add(made.gateway_id)
    for row in settled:
        books.rows_of.setdefault(row[0].request_id, []).append(row)
    return books


def _read_log(path: Path) -> Log:
    log, number, fed = Log(path=path), 0, dict[str, bool]()
    with path.open("rb") as source:
        next(source, b"")
        for place, line in enumerate(source, 2):
            if not line.endswith(b"\n"):
                break  # the life ended in the middle of a line
            entry = decode_entry(line, where=f"{path}:{place}")
            if isinstance(entry, FollowedReplica):
                fed[entry.replica] = entry.events
                continue
            log.credits += [
                Credit(
                    gateway_id=one.id,
                    replica=one.replica,
                    tokens=one.cached_tokens,
                    at_ns=entry.at_ns,
                    fed=fed.get(one.replica, False),
                )
                for one in entry.actions
                if isinstance(one, Dispatch)
            ]
            log.whole &= entry.number == number
            number = entry.number + 1
            log.records.append(entry)
    return log


def killed_meanwhile(truth: Truth, asked: Asked) -> bool:
    """Whether the gateway was killed while a request was open."""
    end_ns = asked.ended_ns or asked.began_ns
    return any(
        kill.what == "gateway" and asked.began_ns <= kill.at_ns and (kill.at_ns <= end_ns) for kill in truth.kills
    )


# ── clients ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def each_client_has_one_end(books: Books) -> Iterator[str]:
    """Every client's request ended once, none hung, and all that came could be read."""
    for asked in books.truth.asked:
        if asked.ends != 1 or asked.outcome in ("silent", "garbled"):
            yield f"request {asked.number} ({asked.kind}) ended {asked.ends} times: {asked.outcome}"


def connections_break_with_the_gateway_alone(books: Books) -> Iterator[str]:
    """A client's connection broke only where the gateway was killed, where the client itself took nothing for longer
    than it may, or where it sent a request on a kept connection in the moment in which a draining gateway closed that:
    nothing of such a request has begun."""
    for asked in books.truth.asked:
        excused = asked.kind == "stalled reader" or killed_meanwhile(books.truth, asked)
        if asked.outcome == "broken" and not excused and not _sent_into_a_drain(books, asked):
            yield f"request {asked.number} ({asked.kind}, status {asked.status}): its connection broke"
        if asked.outcome == "unreached" and not _away(books.truth, asked):
            yield f"request {asked.number} ({asked.kind}): the gateway could not be reached, and it was there"


def _sent_into_a_drain(books: Books, asked: Asked) -> bool:
    begun = asked.status is not None or bool(books.of_number.get(asked.number))
    return asked.reused and not begun and _away(books.truth, asked)


def _away(truth: Truth, asked: Asked) -> bool:
    end_ns = asked.ended_ns or asked.began_ns
    away = [kill for kill in truth.kills if kill.what in ("gateway", "drain")]
    return any(kill.at_ns <= end_ns and (kill.back_ns is None or asked.began_ns <= kill.back_ns) for kill in away)


def waiting_is_told_where_it_helps(books: Books) -> Iterator[str]:
    """429 and 503 carry a Retry-After of at least a second, nothing else carries one."""
    for asked in books.truth.asked:
        told = asked.retry_after
        if asked.status in (429, 503) and (told is None or int(told) < 1):
            yield f"request {asked.number}: {asked.status} {asked.code} with Retry-After {told}"
        if asked.status not in (429, 503) and told is not None:
            yield f"request {asked.number}: {asked.status} {asked.code} with Retry-After {told}"


# ── engines ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def one_generation_each(books: Books) -> Iterator[str]:
    """At most one engine began to compute a request: the others had refused it."""
    for number, made in books.of_number.items():
        begun = [one for one in made if not one.refused]
        if len(begun) > 1:
            yield f"request {number} was begun by {', '.join(f'{g.engine} ({g.ending})' for g in begun)}"


def what_is_whole_was_computed(books: Books) -> Iterator[str]:
    """A client that got a whole answer got exactly what one engine made."""
    for asked in books.truth.asked:
        if asked.outcome != "completed" or any(intent.replica == "embedded" for intent, _ in books.rows(asked)):
            continue
        made = [one for one in books.of_number.get(asked.number, ()) if one.ending == "completed"]
        if len(made) != 1:
            yield f"request {asked.number} was answered and completed by {len(made)} engines"
        elif asked.streamed and asked.tokens != made[0].output_tokens:
            yield f"request {asked.number} got {asked.tokens} tokens of {made[0].output_tokens}"


# ── usage ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def no_usage_is_lost(books: Books) -> Iterator[str]:
    """Whatever an engine was sent is on the books, once per engine it was sent to, and settled."""
    if books.unsettled:
        yield f"{books.unsettled} intents have no settlement"
    for made in books.truth.generations:
        rows = [row for row in books.rows_of.get(made.gateway_id, ()) if row[0].replica == made.engine]
        same = [g for g in books.of_number[made.number] if (g.gateway_id, g.engine) == (made.gateway_id, made.engine)]
        if len(rows) < len(same):
            yield f"request {made.number} reached {made.engine} {len(same)} times and is on the books {len(rows)} times"


def no_usage_is_doubled(books: Books) -> Iterator[str]:
    """A request has one row that is not a refusal; and output is on the books only where an engine made it."""
    for asked in books.truth.asked:
        rows = books.rows(asked)
        served = [end for _, end in rows if end.ending != "rejected"]
        if len(served) > 1:
            yield f"request {asked.number} is on the books {len(served)} times: {[end.ending for end in served]}"
        for intent, end in rows:
            if end.ending == "rejected" and end.output_tokens:
                yield f"request {asked.number} was refused and has {end.output_tokens} tokens on the books"
            seen = any(made.engine == intent.replica for made in books.of_number.get(asked.number, ()))
            if not seen and intent.replica != "embedded" and end.output_tokens:
                yield f"request {asked.number} never reached {intent.replica} and has {end.output_tokens} tokens there"


def usage_is_the_engines(books: Books) -> Iterator[str]:
    """Of whole answers the books hold what the engine made, exactly; of others what passed, within its bounds."""
    for asked in books.truth.asked:
        for intent, end in books.rows(asked):
            made = [g for g in books.of_number.get(asked.number, ()) if g.engine == intent.replica and not g.refused]
            if intent.replica == "embedded":
                told = asked.used_output is not None and end.ending == "completed"
                if told and end.output_tokens != asked.used_output:
                    yield f"request {asked.number}: {end.output_tokens} tokens, llama.cpp told {asked.used_output}"
                continue
            if end.ending == "rejected" or len(made) != 1:
                continue
            yield from _bounds(asked, end.ending, end.output_tokens, made[0])
            if end.ending == "completed" and end.input_cold_tokens + (end.input_cached_tokens or 0) != (
                made[0].prompt_tokens
            ):
                yield f"request {asked.number}: input of {made[0].prompt_tokens} is on the books otherwise"


def _bounds(asked: Asked, ending: str, booked: int, made: Generation) -> Iterator[str]:
    exact = ending == "completed"
    if exact and (made.ending != "completed" or booked != made.output_tokens):
        yield f"request {asked.number}: {booked} tokens on the books, {made.output_tokens} made ({made.ending})"
    if exact or made.ending is None:
        return
    if booked > made.output_tokens:
        yield f"request {asked.number} ({ending}): {booked} tokens on the books, {made.output_tokens} made"
    least = asked.tokens - (REPORT_TOKENS if ending == "interrupted" else 0)
    if asked.streamed and booked < least:
        yield f"request {asked.number} ({ending}): {booked} tokens on the books, {asked.tokens} received"


# ── decisions ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def each_arrival_has_one_end(books: Books) -> Iterator[str]:
    """In every life that ended by itself each arrival has an end; where it was killed, those that were open have
    none."""
    killed = sum(kill.what == "gateway" for kill in books.truth.kills)
    without = 0
    for log in (log for log in books.logs if log.whole):
        arrived = {r.input.arrival.id for r in log.records if isinstance(r.input, Arrived)}
        ended = collections.Counter(r.input.id for r in log.records if isinstance(r.input, Finished))
        refused = {a.id for r in log.records for a in r.actions if isinstance(a, Refusal)}
        twice = [one for one, count in ended.items() if count > 1]
        if twice:
            yield f"{log.path.name}: {len(twice)} requests ended twice, {twice[0]} first"
        without += bool(arrived - set(ended) - refused)
    if without > killed:
        yield f"{without} lives of the gateway have requests without an end, {killed} were killed"


def sent_again_only_after_a_refusal(books: Books) -> Iterator[str]:
    """A request is sent once, and once more for each refusal; never after its first token."""
    for log in (log for log in books.logs if log.whole):
        sent: collections.Counter[str] = collections.Counter()
        refused: collections.Counter[str] = collections.Counter()
        answered: set[str] = set()
        for record in log.records:
            told = record.input
            if isinstance(told, EngineRefused):
                refused[told.id] += 1
            elif isinstance(told, FirstToken | Produced):
                answered.add(told.id)
            for action in record.actions:
                if isinstance(action, Dispatch):
                    sent[action.id] += 1
                    if action.id in answered:
                        yield f"{log.path.name}: {action.id} was sent again after its first token"
                    if sent[action.id] > 1 + refused[action.id]:
                        yield f"{log.path.name}: {action.id} was sent again without a refusal"


def a_replicas_time_is_kept(books: Books) -> Iterator[str]:
    """Nothing is sent to a replica before the time it named when it refused, unless it was restarted since."""
    for log in (log for log in books.logs if log.whole):
        at: dict[str, str] = {}
        closed_until_ns: dict[str, int] = {}
        for record in log.records:
            told = record.input
            if isinstance(told, EngineRefused) and told.id in at:
                pause_ns = _NS_PER_S if told.retry_after_ns is None else told.retry_after_ns
                replica = at[told.id]
                closed_until_ns[replica] = max(closed_until_ns.get(replica, 0), record.at_ns + pause_ns)
            if isinstance(told, ReplicaChanged) and told.state is ReplicaState.RESTARTED:
                closed_until_ns.pop(told.replica, None)
            for action in record.actions:
                if isinstance(action, Dispatch):
                    at[action.id] = action.replica
                    if record.at_ns < closed_until_ns.get(action.replica, 0):
                        yield f"{log.path.name}: {action.id} was sent to {action.replica} before its time"


def decisions_replay(books: Books) -> Iterator[str]:
    """A fresh controller decides the same again."""
    for log in (log for log in books.logs if log.whole):
        replayed = replay_log(log.path)
        if replayed.differing:
            yield f"{log.path.name}: {replayed.differing} of {replayed.inputs} inputs are decided otherwise"


# ── KV events ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def wrong_events_are_told(books: Books) -> Iterator[str]:
    """Events that say nothing about our prompts show as a degraded index, with the reason, within ten seconds; a seed
    of the hashes makes no difference."""
    for feed in books.truth.feeds:
        took_s = None if feed.told_ns is None else (feed.told_ns - feed.at_ns) / _NS_PER_S
        if took_s is None or took_s > TOLD_WITHIN_S:
            when = "was never told" if took_s is None else f"was told after {took_s:.1f} s"
            yield f"{feed.engine} came back with another {feed.what}: '{feed.words}' {when}"


def right_events_are_believed_again(books: Books) -> Iterator[str]:
    """As soon as events are right again the index follows them again."""
    for feed in books.truth.feeds:
        took_s = None if feed.well_ns is None or feed.mended_ns is None else (feed.well_ns - feed.mended_ns) / _NS_PER_S
        if took_s is None or took_s > TOLD_WITHIN_S:
            when = "never" if took_s is None else f"after {took_s:.1f} s"
            yield f"{feed.engine} came back as it was before its other {feed.what}, and its index was well {when}"


def credited(books: Books, *, fed: bool) -> tuple[int, int, int]:
    """Tokens that were taken as cached, those of them that were not, by the engines' own account, and those that were
    cached and not known of; where an index followed events, or did not. An engine that was killed a moment ago is left
    out: nobody can know yet that it is another one."""
    served = {(made.gateway_id, made.engine): made for made in books.truth.generations if not made.refused}
    known = over = under = 0
    for credit in (credit for log in books.logs for credit in log.credits if credit.fed == fed):
        made = served.get((credit.gateway_id, credit.replica))
        if made is None or made.ending is None or _new(books.truth, made):
            continue
        known += credit.tokens
        over += max(0, credit.tokens - made.cached_tokens)
        under += max(0, made.cached_tokens - credit.tokens)
    return known, over, under


def _new(truth: Truth, made: Generation) -> bool:
    """Whether its engine had come back a moment before."""
    mine = (kill for kill in truth.kills if kill.what == made.engine and kill.back_ns is not None)
    return any(kill.at_ns <= made.began_ns <= (kill.back_ns or 0) + RESTART_S * _NS_PER_S for kill in mine)


def credit_is_the_engines(books: Books) -> Iterator[str]:
    """What an index that follows events takes as cached is cached, but for a share of it; and it takes something as
    cached."""
    known, over, under = credited(books, fed=True)
    if over > OVER_SHARE * known:
        yield f"{over} of {known} tokens that were taken as cached were not"
    if under > known + over:
        yield f"{under} tokens were cached and not known of, {known} were known"


LAWS: tuple[Callable[[Books], Iterator[str]], ...] = (
    each_client_has_one_end,
    connections_break_with_the_gateway_alone,
    waiting_is_told_where_it_helps,
    one_generation_each,
    what_is_whole_was_computed,
    no_usage_is_lost,
    no_usage_is_doubled,
    usage_is_the_engines,
    each_arrival_has_one_end,
    sent_again_only_after_a_refusal,
    a_replicas_time_is_kept,
    decisions_replay,
    wrong_events_are_told,
    right_events_are_believed_again,
    credit_is_the_engines,
)

_ZERO = (
    "running_requests",
    "waiting_requests",
    "counting_requests",
    "replica_prefilling",
    "replica_decoding",
    "replica_pending_prefill_tokens",
    "tenant_running",
    "tenant_waiting",
    "tenant_held_tokens",
    "meter_unwritten_requests",
)


def leaks(figures: dict[str, float], clients: int, half_closed: int, cached: dict[str, int]) -> Iterator[str]:
    """What a gateway at rest still holds: /metrics, open connections of clients (ours for the metrics is one), and
    connections to engines that the engine has closed: those kept for the next call of watch and count are, after a
    while. And what it believes of the engines' caches, which hold `cached` blocks: never more than is there."""
    for name, value in figures.items():
        bare = name.removeprefix("longproof_").partition("{")[0]
        ours = bare == "kv_held_blocks" and 'by="foreign"' not in name
        if (bare in _ZERO or ours) and value:
            yield f"{name} is {value:g}"
    for engine, blocks in cached.items():
        believed = figures.get(f'longproof_index_blocks{{replica="{engine}",source="events"}}', 0)
        if believed > blocks:
            yield f"{engine} holds {blocks} blocks and is believed to hold {believed:g}"
        if figures.get(f'longproof_index_degraded{{replica="{engine}"}}', 0):
            yield f"the index of {engine} is degraded"
    if figures.get("longproof_meter_ok") != 1:
        yield "usage cannot be written down"
    if clients > 1:
        yield f"{clients} connections of clients are open"
    if half_closed > MOST_IDLE:
        yield f"{half_closed} connections to engines are half closed"
