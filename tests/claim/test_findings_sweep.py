"""What is read from a sweep: numbers per cell worked out by hand, coldness checked, and requirements about a cell."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from longproof.claim.derive import claim_of
from longproof.claim.findings.sweep import read
from longproof.claim.gate import gate
from longproof.claim.statements import Finding, NotShown, Standing, Statement
from longproof.claim.view import EvidenceView
from longproof.domain.measure import Measured
from longproof.errors import UsageError
from longproof.evidence.records import Body, NoteBody, WindowBody
from longproof.testing.builders import build_hang, build_request, build_timeline, build_view

MS = 1_000_000
S = 1_000_000_000
SHARED: tuple[str, Body] = ("sweep/shared", NoteBody(probe="sweep", what="shared_prefix", detail={"tokens": 30}))
Entries = list[tuple[str, Body]]


def cell(
    ttfts_ms: Sequence[float],
    *,
    length: int = 4096,
    concurrency: int = 2,
    cache: str = "cold",
    cached: int | None = 0,
    round_: int = 0,
    slo: dict[str, float] | None = None,
    hung: int = 0,
) -> Entries:
    """One round of a cell: requests one after the other, a second apart; 16 tokens, 10 ms each."""
    key = f"sweep/{length}/c{concurrency}/{cache}/{round_}"
    at: dict[str, int | float | str | bool] = {
        "length": length, "concurrency": concurrency, "cache": cache, "round": round_,
    }  # fmt: skip
    begun = 100 * S * (round_ + 1)
    timelines = [
        build_timeline(
            prompt_tokens=length,
            ttft_ns=round(ttft * MS),
            submitted_ns=begun + i * S,
            cached_tokens=cached,  # type: ignore[arg-type] - None: not reported
        )
        for i, ttft in enumerate(ttfts_ms)
    ] + [build_hang(prompt_tokens=length)] * hung
    entries: Entries = [
        (f"{key}#1/{i}", build_request("sweep", at, timeline, planned_ns=begun)) for i, timeline in enumerate(timelines)
    ]
    body = WindowBody(
        probe="sweep",
        cell=at,
        prefix=f"{key}#1/",
        load={"concurrency": concurrency, "requests": len(timelines), **(slo or {})},
        started_ns=begun,
        ended_ns=begun + 60 * S,
        requests=len(timelines),
    )
    return [*entries, (key, body)]


def view(*parts: Entries) -> EvidenceView:
    return build_view(SHARED, *(entry for part in parts for entry in part))


def statements(seen: EvidenceView) -> dict[str, Statement]:
    return {item.id: item for item in read(seen) if isinstance(item, Statement)}


def findings(seen: EvidenceView) -> list[str]:
    return [item.id for item in read(seen) if isinstance(item, Finding)]


def value(statement: Statement) -> float:
    assert isinstance(statement.value, Measured)
    return statement.value.value


def test_times_and_rates_are_those_of_the_cell_when_it_was_asked() -> None:
    """TTFT 100 and 300 ms; 16 tokens 10 ms apart. The round lasts from the first start to the end of the last: 1 s +
    300 ms + 15 × 10 ms + 1 ms = 1.451 s, and has 32 tokens out and 8,192 in."""
    said = statements(view(cell([100, 300])))
    ttft = said["sweep.sweep_ttft.4096.c2.cold"]
    assert ttft.samples == (0.1, 0.3)
    assert (ttft.at_tokens, ttft.conditions["concurrency"], ttft.conditions["cache"]) == (4096, "2", "cold")
    assert value(said["sweep.sweep_tpot.4096.c2.cold"]) == pytest.approx(0.01)
    assert value(said["sweep.sweep_request_rate.4096.c2.cold"]) == pytest.approx(100)
    assert value(said["sweep.sweep_itl_p99.4096.c2.cold"]) == pytest.approx(0.01)
    assert said["sweep.sweep_itl_p99.4096.c2.cold"].interval is None  # two answers
    assert value(said["sweep.sweep_output_rate.4096.c2.cold"]) == pytest.approx(32 / 1.451)
    assert value(said["sweep.sweep_prompt_rate.4096.c2.cold"]) == pytest.approx(8192 / 1.451)
    assert value(said["sweep.sweep_success_rate.4096.c2.cold"]) == 1.0


def test_rounds_are_the_samples_of_rates_when_there_are_several() -> None:
    said = statements(view(cell([100, 100]), cell([100, 100], round_=1), cell([100, 100], round_=2)))
    rate = said["sweep.sweep_output_rate.4096.c2.cold"]
    assert rate.n == 3
    assert said["sweep.sweep_ttft.4096.c2.cold"].n == 6


def test_goodput_counts_what_met_the_slo_when_one_was_given() -> None:
    """Of 100, 300 and 500 ms two are at most 300 ms; one hung. The round ends with the hung one, 61 s after its start,
    which was 99 s before the round's: its 60 s of waiting end at second 61, the answers at 102.651."""
    said = statements(view(cell([100, 300, 500], slo={"slo_ttft_s": 0.3}, hung=1)))
    attained = said["sweep.sweep_slo_attainment.4096.c2.cold"]
    assert (value(attained), attained.n) == (0.5, 4)
    assert value(said["sweep.sweep_goodput.4096.c2.cold"]) == pytest.approx(2 / 101.651)
    assert attained.conditions["slo"] == "ttft <= 300 ms"
    assert attained.conditions["left_out"] == "1 hung without a token"


def test_nobody_guesses_a_goodput_when_no_slo_was_given() -> None:
    seen = view(cell([100, 300]))
    assert not [id_ for id_ in statements(seen) if "goodput" in id_ or "slo" in id_]
    assert "sweep_goodput" in [item.topic for item in read(seen) if isinstance(item, NotShown)]


def test_a_prompt_that_was_not_cold_is_a_fault_and_enters_no_number() -> None:
    seen = view(cell([100, 300]), cell([1], cached=4000, round_=1))
    assert findings(seen) == ["sweep.cached_while_cold"]
    assert statements(seen)["sweep.sweep_ttft.4096.c2.cold"].samples == (0.1, 0.3)
    assert statements(seen)["sweep.sweep_ttft.4096.c2.cold"].conditions["left_out"] == "1 not cold"


def test_a_known_prefix_has_its_cached_share_when_the_server_tells() -> None:
    said = statements(view(cell([10, 10], cache="hit", cached=3686)))
    assert value(said["sweep.sweep_cached_fraction.4096.c2.hit"]) == pytest.approx(3686 / 4096)
    assert said["sweep.sweep_ttft.4096.c2.hit"].conditions["cached"] == "90 % by the server's word"
    silent = statements(view(cell([10, 10], cache="hit", cached=None)))
    assert silent["sweep.sweep_cached_fraction.4096.c2.hit"].standing is Standing.NOT_SHOWN
    assert silent["sweep.sweep_ttft.4096.c2.hit"].conditions["cached"] == "not reported"


def test_a_prefix_that_is_lost_is_named_when_more_run_at_once() -> None:
    kept = cell([10] * 3, cache="hit", concurrency=1, cached=3800)
    assert findings(view(kept, cell([90] * 3, cache="hit", concurrency=8, cached=128))) == ["sweep.cache_lost"]
    assert findings(view(kept, cell([20] * 3, cache="hit", concurrency=8, cached=3700))) == []


def test_a_cell_that_does_not_fit_is_said_when_the_pool_is_small() -> None:
    detail: dict[str, int | float | str | bool] = {
        "length": 4096, "concurrency": 8, "cache": "cold", "needs_tokens": 32_896, "capacity_tokens": 16_384,
    }  # fmt: skip
    note: Entries = [("sweep/does_not_fit/x", NoteBody(probe="sweep", what="does_not_fit", detail=detail))]
    lines = [item for item in read(view(cell([100]), note)) if isinstance(item, NotShown)]
    assert lines[0].topic == "sweep_4096_c8_cold"
    assert "need 32,896 KV tokens and the engine has 16,384" in lines[0].text


def test_a_requirement_speaks_of_one_cell_when_it_names_it() -> None:
    """Cold: 100 ms with 1 at once and 400 with 4. Hit: 20 ms. 59 samples carry a p95."""
    claim = claim_of(
        view(
            cell([100.0] * 59, concurrency=1),
            cell([400.0] * 59, concurrency=4),
            cell([20.0] * 59, concurrency=4, cache="hit", cached=3800),
        )
    )
    asked = {
        "sweep_ttft_p95_s{concurrency=1,cache=cold}@4096 <= 0.2": "Pass",
        "sweep_ttft_p95_s{concurrency=4, cache=cold}@4096 <= 0.2": "Fail",
        "sweep_ttft_p95_s{cache=hit}@4096 <= 0.2": "Pass",
        "sweep_ttft_p95_s@4096 <= 0.2": "Fail",  # it must hold in every cell
        "sweep_ttft_p95_s{concurrency=64}@4096 <= 0.2": "Undecided",
        "sweep_itl_p99{concurrency=4,cache=cold} <= 11ms": "Pass",
    }
    report = gate(claim, list(asked))
    assert [type(verdict).__name__ for verdict in report.verdicts] == list(asked.values())
    assert "with concurrency 4, cache cold" in report.verdicts[1].sentence
    assert "measured were concurrency=1|4" in report.verdicts[4].sentence


@pytest.mark.parametrize("text", ["ttft{cold} <= 1", "ttft{=4} <= 1", "ttft{cache=} <= 1"])
def test_a_condition_without_name_or_value_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="condition"):
        gate(claim_of(view(cell([100]))), [text])
