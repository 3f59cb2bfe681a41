"""What is read from conversations: what later turns cost, and caches that keep nothing or lose it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from longproof.claim.derive import claim_of
from longproof.claim.findings.conversation import read
from longproof.claim.gate import gate
from longproof.claim.statements import Finding, Severity, Standing, Statement
from longproof.claim.view import EvidenceView
from longproof.domain.measure import Measured, reported
from longproof.evidence.records import Body, NoteBody, WindowBody
from longproof.testing.builders import (
    build_deployment,
    build_header,
    build_refusal,
    build_request,
    build_timeline,
    build_view,
)

MS = 1_000_000
S = 1_000_000_000
SHARED: tuple[str, Body] = (
    "conversation/shared",
    NoteBody(probe="conversation", what="shared_prefix", detail={"tokens": 30}),
)
Entries = list[tuple[str, Body]]
Turned = Callable[[int], tuple[float, int | None]]


def length(turn: int) -> int:
    """1,000 tokens first, then 100 more with every turn."""
    return 1000 + 100 * (turn - 1)


def warm(turn: int) -> tuple[float, int | None]:
    """100 ms, then 15 ms a turn: all of the prompt before was cached."""
    return (100, 0) if turn == 1 else (15, length(turn - 1))


def cold(turn: int) -> tuple[float, int | None]:
    """0.1 ms per token of the whole prompt, every time."""
    return 0.1 * length(turn), 0


def talks(
    turned: Turned, *, concurrency: int = 1, repeats: int = 4, turns: int = 3, jitter: float = 0.0, seed: int = 0
) -> Entries:
    rng = np.random.default_rng(seed)
    entries: Entries = []
    for repeat in range(repeats):
        for turn in range(1, turns + 1):
            key = f"conversation/c{concurrency}/{repeat}/1/turn{turn}"
            cell: dict[str, int | float | str | bool] = {
                "concurrency": concurrency, "repeat": repeat, "attempt": 1, "turn": turn,
            }  # fmt: skip
            for index in range(concurrency):
                ttft_ms, cached = turned(turn)
                noise = float(np.exp(rng.normal(0, jitter))) if jitter else 1.0
                timeline = build_timeline(
                    prompt_tokens=length(turn),
                    ttft_ns=round(ttft_ms * noise * MS),
                    cached_tokens=cached,  # type: ignore[arg-type] - None: not reported
                )
                body = build_request("conversation", {**cell, "conversation": index}, timeline, planned_ns=S)
                entries.append((f"{key}#1/{index}", body))
            window = WindowBody(
                probe="conversation",
                cell=cell,
                prefix=f"{key}#1/",
                load={"conversations": concurrency},
                started_ns=S,
                ended_ns=2 * S,
                requests=concurrency,
            )
            entries.append((key, window))
    return entries


def view(*parts: Entries, capacity: int | None = None) -> EvidenceView:
    deployment = build_deployment()
    if capacity is not None:
        deployment = build_deployment(kv_capacity_tokens=reported(capacity, "GET /props"))
    return build_view(SHARED, *(entry for part in parts for entry in part), header=build_header(deployment=deployment))


def statements(seen: EvidenceView) -> dict[str, Statement]:
    return {item.id: item for item in read(seen) if isinstance(item, Statement)}


def findings(seen: EvidenceView) -> dict[str, Finding]:
    return {item.id: item for item in read(seen) if isinstance(item, Finding)}


def value(statement: Statement) -> float:
    assert isinstance(statement.value, Measured)
    return statement.value.value


def test_later_turns_have_their_ratio_and_share_when_they_pay_for_the_new_alone() -> None:
    """15 of 100 ms; turn 3 has 1,200 tokens, 1,100 of them cached: all of the 1,100 of turn 2."""
    seen = view(talks(warm))
    said = statements(seen)
    assert findings(seen) == {}
    assert value(said["conversation.conversation_ttft_ratio.c1.turn3"]) == pytest.approx(0.15)
    assert said["conversation.conversation_cached_fraction.c1.turn3"].samples == (1.0,) * 4
    third = said["conversation.conversation_ttft.c1.turn3"]
    assert third.conditions["prompt_tokens"] == "1,200 (mean)"
    assert third.conditions["uncached_tokens"] == "100 (mean)"
    assert "conversation.conversation_ttft_ratio.c1.turn1" not in said


def test_every_turn_is_cold_when_all_is_computed_again() -> None:
    found = findings(view(talks(cold, jitter=0.05)))
    assert list(found) == ["conversation.every_turn_cold"]
    assert found["conversation.every_turn_cold"].severity is Severity.CAUTION


def test_every_turn_is_cold_by_its_times_when_nothing_is_reported() -> None:
    silent = view(talks(lambda turn: (cold(turn)[0], None), jitter=0.05))
    assert list(findings(silent)) == ["conversation.every_turn_cold"]
    assert statements(silent)["conversation.conversation_cached_fraction.c1.turn2"].standing is Standing.NOT_SHOWN


def test_nobody_is_accused_when_two_conversations_are_all_there_is() -> None:
    assert findings(view(talks(cold, repeats=2))) == {}


def test_a_report_of_nothing_is_not_believed_when_the_times_say_otherwise() -> None:
    """What hides its cache is no server without one; that lie has a finding of its own (warmth)."""
    assert findings(view(talks(lambda turn: (warm(turn)[0], 0), jitter=0.05))) == {}


def test_a_cache_is_lost_when_many_talk_at_once() -> None:
    """1 of 1: eight later turns, all kept. Eight at once: 64 later turns, none kept; each 1,200 tokens at the end."""
    seen = view(talks(warm), talks(cold, concurrency=8), capacity=20_000)
    found = findings(seen)
    assert list(found) == ["conversation.cache_lost"]
    assert "64 of 64 later turns found less than half of it, before 0 of 8" in found["conversation.cache_lost"].text
    assert "9,600 tokens; the KV pool of 20,000 would hold them" in found["conversation.cache_lost"].text


def test_a_cache_is_lost_by_the_times_when_nothing_is_reported() -> None:
    few = talks(lambda turn: (warm(turn)[0], None), repeats=8, jitter=0.1)
    many = talks(lambda turn: (cold(turn)[0], None), concurrency=4, jitter=0.1)
    assert list(findings(view(few, many))) == ["conversation.cache_lost"]


def test_a_cache_that_is_kept_is_no_finding_when_all_is_slower_together() -> None:
    busy = talks(lambda turn: (warm(turn)[0] * 6, warm(turn)[1]), concurrency=8, jitter=0.3)
    assert findings(view(talks(warm, jitter=0.3), busy)) == {}


def test_a_conversation_ends_with_its_first_failed_turn() -> None:
    entries = talks(warm, repeats=2)
    at = [key for key, _ in entries].index("conversation/c1/0/1/turn2#1/0")
    cell: dict[str, int | float | str | bool] = {
        "concurrency": 1, "repeat": 0, "attempt": 1, "turn": 2, "conversation": 0,
    }  # fmt: skip
    entries[at] = (entries[at][0], build_request("conversation", cell, build_refusal(), planned_ns=S))
    said = statements(view(entries))
    assert said["conversation.conversation_ttft.c1.turn1"].n == 2
    assert said["conversation.conversation_ttft.c1.turn3"].n == 1


def test_an_honest_jittery_engine_is_accused_on_at_most_one_seed_of_twenty() -> None:
    accused = [
        seed
        for seed in range(20)
        if findings(view(talks(warm, jitter=0.4, seed=seed), talks(warm, concurrency=4, jitter=0.4, seed=seed + 50)))
    ]
    assert len(accused) <= 1


def test_a_requirement_speaks_of_one_turn_when_it_names_it() -> None:
    claim = claim_of(view(talks(warm)))
    report = gate(claim, ["conversation_ttft_ratio{turn=3,concurrency=1} <= 0.2", "conversation_ttft{turn=1} <= 50ms"])
    assert [type(verdict).__name__ for verdict in report.verdicts] == ["Pass", "Fail"]
