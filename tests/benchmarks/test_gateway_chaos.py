"""The laws of the chaos benchmark can break: each of them is silent about sound accounts, and says what is wrong with
those in which something is."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from longproof.gateway.ledger_rows import Intent, Timing, settlement
from longproof.policy.actions import Dispatch
from longproof.policy.arrivals import Arrival, Ended, EndKind
from longproof.policy.decision_record import Arrived, DecisionRecord, EngineRefused, Finished, FirstToken
from longproof.policy.metering import CacheSource, Ending, PriceBook, RequestUsage, UsageSource, bill

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
S = 1_000_000_000


@pytest.fixture
def laws(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield importlib.import_module("chaos.laws")
    for name in [name for name in sys.modules if name.partition(".")[0] == "chaos"]:
        sys.modules.pop(name)


def row(*, ending: Ending = Ending.COMPLETED, output: int = 9, replica: str = "r0", entry: str = "g-1-1") -> Any:
    intent = Intent(
        entry=entry,
        gateway="gateway",
        request_id="lp-1",
        tenant="",
        key="",
        model="m",
        replica=replica,
        pool="",
        input_tokens=30,
        allowance_tokens=9,
        at_unix_ns=0,
    )
    usage = RequestUsage(
        input_tokens=30,
        output_tokens=output,
        cached_tokens=10,
        cached_from=CacheSource.ENGINE,
        kv_token_ms=1,
        counted_by=UsageSource.ENGINE,
    )
    priced = bill(usage, model="m", pool="", ending=ending, book=PriceBook())
    return intent, settlement(entry, ending, 200, Timing(at_unix_ns=1, ran_ns=1), usage, priced)


def arrival() -> Arrival:
    return Arrival(id="lp-1", tenant="", model="m", input_tokens=30, exact=True, output_tokens=9)


def records(*told: tuple[int, Any, tuple[Any, ...]]) -> list[DecisionRecord]:
    return [DecisionRecord(number=i, at_ns=at_ns, input=one, actions=a) for i, (at_ns, one, a) in enumerate(told)]


def sent(replica: str = "r0", attempt: int = 1) -> Dispatch:
    return Dispatch(id="lp-1", replica=replica, reason="", attempt=attempt)


FINISHED = Finished(id="lp-1", end=Ended(kind=EndKind.COMPLETED))
SOUND = records(
    (0, Arrived(arrival=arrival()), (sent(),)),
    (S, EngineRefused(id="lp-1", retry_after_ns=2 * S), (sent("r1", 2),)),
    (2 * S, FirstToken(id="lp-1"), ()),
    (3 * S, FINISHED, ()),
)


def books(laws: ModuleType, **changes: Any) -> Any:
    """One request that r1 refused and r0 answered with nine tokens."""
    truth = sys.modules["chaos.truth"]
    asked = {
        "number": 1,
        "episode": 0,
        "streamed": True,
        "kind": "stream",
        "reused": False,
        "began_ns": 0,
        "ended_ns": 4 * S,
        "outcome": "completed",
        "ends": 1,
        "status": 200,
        "gateway_id": "lp-1",
        "tokens": 9,
    }
    generation = {
        "engine": "r0",
        "life": 1,
        "number": 1,
        "gateway_id": "lp-1",
        "began_ns": 0,
        "ended_ns": 1,
        "ending": "completed",
        "status": 200,
        "prompt_tokens": 30,
        "cached_tokens": 16,
        "output_tokens": 9,
    }
    refused = {**generation, "engine": "r1", "ending": "refused", "output_tokens": 0, "status": 503}
    made = [generation | changes.get("generation", {}), refused | changes.get("refused", {})]
    told = truth.Truth(
        asked=[truth.Asked(**(asked | changes.get("asked", {})))],
        generations=[truth.Generation(**one) for one in made],
    )
    settled = changes.get("settled", [row(ending=Ending.REJECTED, output=0, replica="r1", entry="g-1-0"), row()])
    feed = {
        "what": "topic",
        "engine": "r2",
        "at_ns": 0,
        "words": "(kv_topic)",
        "told_ns": S,
        "mended_ns": S,
        "well_ns": S,
    }
    told.feeds.append(truth.Feed(**(feed | changes.get("feed", {}))))
    told.kills.append(truth.Kill(what="r2", at_ns=0, back_ns=S))
    credit = {"gateway_id": "lp-1", "replica": "r0", "tokens": 16, "at_ns": 0, "fed": True}
    log = laws.Log(
        path=Path("decisions.jsonl"),
        records=changes.get("records", SOUND),
        credits=[laws.Credit(**(credit | changes.get("credit", {})))],
    )
    return laws.joined(told, settled, changes.get("unsettled", 0), [log])


def found(laws: ModuleType, given: Any) -> set[str]:
    told = (law for law in laws.LAWS if law is not laws.decisions_replay)  # which reads files; replay has its own tests
    return {law.__name__ for law in told if list(law(given))}


def test_no_law_complains_when_the_accounts_agree(laws: ModuleType) -> None:
    assert found(laws, books(laws)) == set()


REJECTED = row(ending=Ending.REJECTED, output=0, replica="r1", entry="g-1-0")


@pytest.mark.parametrize(
    ("law", "changes"),
    [
        ("each_client_has_one_end", {"asked": {"ends": 2}}),
        ("each_client_has_one_end", {"asked": {"outcome": "silent"}}),
        ("each_client_has_one_end", {"asked": {"outcome": "garbled"}}),
        ("connections_break_with_the_gateway_alone", {"asked": {"outcome": "broken"}}),
        ("connections_break_with_the_gateway_alone", {"asked": {"outcome": "unreached"}}),
        ("waiting_is_told_where_it_helps", {"asked": {"status": 503}}),
        ("waiting_is_told_where_it_helps", {"asked": {"status": 400, "retry_after": "1"}}),
        ("one_generation_each", {"refused": {"ending": "cut", "output_tokens": 3}}),
        ("one_generation_each", {"refused": {"ending": None}}),
        ("what_is_whole_was_computed", {"generation": {"ending": "cut"}}),
        ("what_is_whole_was_computed", {"asked": {"tokens": 8}}),
        ("no_usage_is_lost", {"settled": [REJECTED]}),
        ("no_usage_is_lost", {"unsettled": 1}),
        ("no_usage_is_doubled", {"settled": [REJECTED, row(), row(entry="g-1-2")]}),
        ("no_usage_is_doubled", {"settled": [row(ending=Ending.REJECTED, output=1, replica="r1"), row()]}),
        ("usage_is_the_engines", {"settled": [REJECTED, row(output=8)]}),
        ("usage_is_the_engines", {"settled": [REJECTED, row(ending=Ending.CANCELLED, output=10)]}),
        ("usage_is_the_engines", {"settled": [REJECTED, row(ending=Ending.FAILED, output=8)]}),
        ("usage_is_the_engines", {"generation": {"prompt_tokens": 31}}),
        ("each_arrival_has_one_end", {"records": SOUND[:-1]}),
        ("each_arrival_has_one_end", {"records": [*SOUND, replace(SOUND[-1], number=4)]}),
        (
            "sent_again_only_after_a_refusal",
            {"records": [SOUND[0], replace(SOUND[2], number=1, actions=(sent("r1", 2),)), *SOUND[3:]]},
        ),
        (
            "a_replicas_time_is_kept",
            {"records": [*SOUND[:2], replace(SOUND[1], at_ns=2 * S, actions=(sent("r0", 3),)), *SOUND[2:]]},
        ),
        ("wrong_events_are_told", {"feed": {"told_ns": None}}),
        ("wrong_events_are_told", {"feed": {"told_ns": 11 * S}}),
        ("right_events_are_believed_again", {"feed": {"well_ns": None}}),
        ("right_events_are_believed_again", {"feed": {"well_ns": 12 * S}}),
        ("credit_is_the_engines", {"generation": {"cached_tokens": 0}}),
        ("credit_is_the_engines", {"generation": {"cached_tokens": 64}}),
    ],
)
def test_a_law_complains_when_the_accounts_do_not_agree(laws: ModuleType, law: str, changes: dict[str, Any]) -> None:
    assert law in found(laws, books(laws, **changes))


def test_credit_is_judged_where_an_index_follows_events_and_its_engine_is_known(laws: ModuleType) -> None:
    sound = books(laws, generation={"cached_tokens": 0}, credit={"fed": False})
    assert laws.credited(sound, fed=True) == (0, 0, 0)
    assert laws.credited(sound, fed=False) == (16, 16, 0)
    sound.truth.kills[0].what = "r0"  # the engine came back a moment ago: it may be taken for the one it was
    assert laws.credited(sound, fed=False) == (0, 0, 0)
