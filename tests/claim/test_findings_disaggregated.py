"""What is read from requests through two sides: whose time, whose tokens, whose fault, and whose text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from longproof.claim.findings.disaggregated import read
from longproof.claim.statements import Finding, Severity, Statement
from longproof.claim.view import EvidenceView
from longproof.domain.events import EndedBy, RequestTimeline, ServerError
from longproof.domain.measure import Measured
from longproof.evidence.records import RequestBody
from longproof.testing.builders import build_request, build_sample, build_timeline, build_view

MS = 1_000_000
SOURCE = "decode.vllm:prompt_tokens_by_source_total"
Entry = tuple[str, RequestBody]


def timeline(*, prefill_ms: float = 800, decode_ms: float = 100, text: str | None = None) -> RequestTimeline:
    return build_timeline(
        prompt_tokens=1000,
        ttft_ns=round((prefill_ms + decode_ms) * MS),
        text=text,
        engine_timings={"pd_prefill_ns": prefill_ms * MS, "pd_handover_ns": 0.0, "pd_decode_ttft_ns": decode_ms * MS},
    )


def metrics(external: float, computed: float, moved: float | None = None) -> dict[str, float]:
    found = {
        f'{SOURCE}{{engine="0",source="external_kv_transfer"}}': external,
        f'{SOURCE}{{engine="0",source="local_compute"}}': computed,
        f'{SOURCE}{{engine="0",source="local_cache_hit"}}': 0.0,
    }
    if moved is None:
        return found
    return found | {
        "decode.vllm:nixl_bytes_transferred_sum": moved,
        "decode.vllm:nixl_xfer_time_seconds_sum": moved / 1e9,
    }


def asked(
    repeat: int, of: RequestTimeline, *, arm: str = "pair", counted: tuple[float, float, float] | None = None
) -> Entry:
    body = build_request("disaggregated", {"arm": arm, "length": 1000, "repeat": repeat}, of)
    if counted is not None:
        body = replace(
            body,
            before=build_sample(values=metrics(50, 70, 0)),
            after=build_sample(values=metrics(50 + counted[0], 70 + counted[1], counted[2])),
        )
    return f"disaggregated/{arm}/1000/{repeat}", body


def failed(type_: str, message: str = "Internal server error", *, prefilled: bool = True) -> RequestTimeline:
    return replace(
        build_timeline(prompt_tokens=1000),
        first_token_ns=None,
        chunks=(),
        finish_reason=None,
        usage=None,
        error=ServerError(message=message, type=type_, in_stream=prefilled),
        ended_by=EndedBy.DONE if prefilled else EndedBy.HTTP_ERROR,
        status=200 if prefilled else 500,
        engine_timings={"pd_prefill_ns": 5.0} if prefilled else {},
    )


def view(*entries: Entry) -> EvidenceView:
    return build_view(*entries)


def said(found: EvidenceView) -> dict[str, Statement]:
    return {item.id: item for item in read(found) if isinstance(item, Statement)}


def findings(found: EvidenceView) -> dict[str, Finding]:
    return {item.id: item for item in read(found) if isinstance(item, Finding)}


def value(statement: Statement) -> float:
    assert isinstance(statement.value, Measured)
    return statement.value.value


def test_time_and_tokens_are_told_apart_when_a_request_goes_through_both() -> None:
    """992 of 1,000 tokens taken over, the last 8 computed: a partial block."""
    found = said(view(*(asked(i, timeline(), counted=(992, 8, 22_000_000)) for i in range(3))))
    assert value(found["disaggregated.pd_prefill_time.1000"]) == pytest.approx(0.8)
    assert value(found["disaggregated.pd_decode_ttft.1000"]) == pytest.approx(0.1)
    moved = found["disaggregated.pd_transferred.1000"]
    assert value(moved) == pytest.approx(0.992)
    assert moved.conditions["transferred"] == "20.98 MiB a request"
    assert moved.conditions["transfer_time"] == "22 ms"
    assert value(found["disaggregated.pd_success.1000"]) == 1


def test_nothing_is_found_when_all_went_well() -> None:
    entries = [asked(i, timeline(text="a b c"), counted=(1000, 0, 1)) for i in range(3)]
    computed = build_timeline(prompt_tokens=1000, ttft_ns=900 * MS, text="a b c")
    alone = [asked(i, computed, arm="alone") for i in range(3)]
    assert findings(view(*entries, *alone)) == {}


def test_a_prompt_computed_again_is_a_fault_when_the_decode_side_counts_it() -> None:
    found = findings(view(asked(0, timeline(), counted=(1000, 0, 1)), asked(1, timeline(), counted=(0, 1000, 0))))
    assert list(found) == ["disaggregated.recomputed"]
    assert "1 of 2" in found["disaggregated.recomputed"].text


@pytest.mark.parametrize(
    ("timeline_", "moved", "finding"),
    [
        (failed("pd_decode"), 0, "disaggregated.bootstrap_failed"),
        (failed("pd_decode"), 5e6, "disaggregated.transfer_failed"),
        (failed("pd_bootstrap", prefilled=False), 0, "disaggregated.bootstrap_failed"),
        (failed("pd_prefill", prefilled=False), 0, "disaggregated.prefill_failed"),
    ],
)
def test_a_failure_is_named_by_its_stage_when_it_happens(
    timeline_: RequestTimeline, moved: float, finding: str
) -> None:
    found = findings(view(asked(0, timeline(), counted=(1000, 0, 1)), asked(1, timeline_, counted=(0, 0, moved))))
    assert list(found) == [finding]
    assert found[finding].severity is Severity.FAULT
    assert found[finding].details["number"] == "2"


def compared(through: Sequence[str], alone: Sequence[str], again: Sequence[str]) -> EvidenceView:
    entries = [asked(i, timeline(text=text)) for i, text in enumerate(through)]
    for arm, texts in (("alone", alone), ("control", again)):
        entries += [
            asked(i, build_timeline(prompt_tokens=1000, ttft_ns=900 * MS, text=text), arm=arm)
            for i, text in enumerate(texts)
        ]
    return view(*entries)


ANSWERS = ["the harbour lay quiet", "ships came home", "salt and letters"]


@pytest.mark.parametrize(
    ("through", "again", "severity"),
    [
        (["%% 0 0 0 0 0", ")) 1 1 1", "zz 9 9 9 9"], ANSWERS, Severity.FAULT),
        (["the harbour lay still", "ships came hope", "salt and litters"], ANSWERS, Severity.CAUTION),
        ([ANSWERS[0], "ships came hope", ANSWERS[2]], ANSWERS, None),  # one of three at a near tie
        (["%% 0 0", ")) 1", "zz 9"], ["the harbour was loud", *ANSWERS[1:]], None),  # it does not repeat itself either
    ],
)
def test_texts_are_held_against_the_decode_side_alone_when_it_repeats_itself(
    through: list[str], again: list[str], severity: Severity | None
) -> None:
    found = findings(compared(through, ANSWERS, again))
    assert ([item.severity for item in found.values()] or [None]) == [severity]


def test_a_transfer_is_slow_when_computing_would_have_been_sooner() -> None:
    """900 ms against 500 ms of computing: 1.8 times; against 800 ms it is within a quarter."""
    through = [asked(i, timeline(decode_ms=900 + i)) for i in range(3)]

    def alone(ms: float) -> list[Entry]:
        return [asked(i, build_timeline(prompt_tokens=1000, ttft_ns=round(ms * MS)), arm="alone") for i in range(3)]

    slow = findings(view(*through, *alone(500)))
    assert list(slow) == ["disaggregated.transfer_slow"]
    assert slow["disaggregated.transfer_slow"].severity is Severity.CAUTION
    assert findings(view(*through, *alone(800))) == {}


def test_nothing_is_said_when_nothing_was_asked() -> None:
    assert list(read(build_view())) == []
