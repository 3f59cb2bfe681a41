"""What may be said from accounting's records, and what may not."""

from __future__ import annotations

from dataclasses import replace

from longproof.claim.findings.accounting import read
from longproof.claim.statements import Finding, NotShown, Standing, Statement
from longproof.claim.view import EvidenceView
from longproof.domain.events import RequestTimeline, TopLogprobs, Usage
from longproof.domain.request import CountSource
from longproof.testing.builders import build_header, build_refusal, build_request, build_timeline, build_view

PROBE = "accounting"


def findings(view: EvidenceView) -> dict[str, Finding]:
    return {item.id: item for item in read(view) if isinstance(item, Finding)}


def statements(view: EvidenceView) -> dict[str, Statement]:
    return {item.id: item for item in read(view) if isinstance(item, Statement)}


def topics(view: EvidenceView) -> set[str]:
    return {item.topic for item in read(view) if isinstance(item, NotShown)}


def length_request(timeline: RequestTimeline) -> object:
    return build_request(PROBE, {"arm": "length", "length": timeline.prompt_tokens_sent or 0}, timeline=timeline)


def canary(length: int, variant: str, *, text: str, logprob: float | None) -> object:
    """A canary request: codes 4821, 7360, 1177; `logprob` stands for the whole first-token distribution."""
    top = None if logprob is None else TopLogprobs(tokens=("4",), logprobs=(logprob,))
    timeline = build_timeline(prompt_tokens=length, max_tokens=24, text=text, first_logprobs=top)
    cell = {"arm": "canary", "length": length, "variant": variant, "head": "4821", "middle": "7360", "tail": "1177"}
    return build_request(PROBE, cell, timeline=timeline)


EVERYWHERE = ("head", "middle", "tail")


def canaries(
    *,
    full_text: str,
    moved: tuple[str, ...],
    logprobs: bool = True,
    control_text: str = "4821 7360 1177",
    control_moved: tuple[str, ...] = EVERYWHERE,
) -> EvidenceView:
    """A control at 256 tokens and a full length at 4,000; only the `moved` places change the distribution."""
    bodies = []
    for length, text, moving in ((256, control_text, control_moved), (4000, full_text, moved)):
        bodies.append(canary(length, "base", text=text, logprob=-1.0 if logprobs else None))
        if logprobs:
            for at, place in enumerate(("head", "middle", "tail")):
                shift = 0.25 * (at + 1) if place in moving else 0.0
                bodies.append(canary(length, place, text=text, logprob=-1.0 - shift))
    return build_view(*bodies)


def test_agreement_is_shown_when_usage_equals_the_count() -> None:
    view = build_view(
        length_request(build_timeline(prompt_tokens=97)), length_request(build_timeline(prompt_tokens=389))
    )
    said = statements(view)["accounting.usage_agreement"]
    assert (said.standing, said.n) == (Standing.SHOWN, 2)
    assert findings(view) == {}


def test_usage_is_wrong_when_all_places_were_read() -> None:
    # 500 of 389 tokens "used": more than was sent cannot be truncation.
    wrong = build_timeline(prompt_tokens=389, usage=Usage(prompt_tokens=500, completion_tokens=16))
    view = build_view(length_request(wrong))
    assert set(findings(view)) == {"accounting.usage_wrong"}
    assert statements(view)["accounting.usage_agreement"].standing is Standing.REFUTED


def test_truncation_is_suspected_when_usage_is_short_and_no_canary_speaks() -> None:
    short = build_timeline(prompt_tokens=3000, usage=Usage(prompt_tokens=2048, completion_tokens=16))
    assert set(findings(build_view(length_request(short)))) == {"accounting.input_truncated"}


def test_a_count_that_is_only_the_servers_own_proves_nothing() -> None:
    own = build_timeline(prompt_tokens=97, count_source=CountSource.USAGE)
    view = build_view(length_request(own))
    assert "independent_count" in topics(view)
    assert "accounting.usage_agreement" not in statements(view)


def test_missing_usage_is_found_when_an_answer_is_complete() -> None:
    view = build_view(length_request(build_timeline(prompt_tokens=97, usage=None)))
    assert set(findings(view)) == {"accounting.usage_missing"}


def test_an_output_clamp_is_found_when_the_window_had_room() -> None:
    clamped = build_timeline(prompt_tokens=97, max_tokens=16, output_tokens=2)
    assert set(findings(build_view(length_request(clamped)))) == {"accounting.output_clamped"}


def test_a_clamp_at_the_edge_is_no_finding() -> None:
    # 8,190 + 16 > 8,192: two tokens is all there is room for, on vLLM 0.32 and llama.cpp alike.
    edge = build_timeline(prompt_tokens=8190, max_tokens=16, output_tokens=2)
    body = build_request(PROBE, {"arm": "edge", "position": "limit-2", "prompt": 8190, "output": 16}, timeline=edge)
    view = build_view(body)
    assert findings(view) == {}
    said = statements(view)["accounting.edge.limit-2"]
    assert "only 2 of 16" in said.text


def test_the_edge_quotes_the_server_when_it_refuses() -> None:
    refusal = build_refusal(prompt_tokens=8193, limit_tokens=8192)
    body = build_request(PROBE, {"arm": "edge", "position": "limit+1", "prompt": 8193, "output": 16}, timeline=refusal)
    said = statements(build_view(body))["accounting.edge.limit+1"]
    assert "HTTP 400" in said.text
    assert "exceeds the available context size" in said.text


def test_read_whole_is_shown_when_every_place_moves_the_distribution() -> None:
    # The model answers nothing useful: its ability is not needed.
    view = canaries(full_text="no idea", moved=("head", "middle", "tail"))
    assert findings(view) == {}
    assert statements(view)["accounting.read_whole"].standing is Standing.SHOWN


def test_a_frozen_head_is_truncation_when_the_tail_moves() -> None:
    view = canaries(full_text="7360 1177", moved=("middle", "tail"))
    assert set(findings(view)) == {"accounting.input_truncated_head"}
    assert statements(view)["accounting.read_whole"].standing is Standing.REFUTED


def test_everything_was_cut_when_only_the_control_moves() -> None:
    view = canaries(full_text="no idea", moved=())
    assert set(findings(view)) == {f"accounting.input_truncated_{place}" for place in EVERYWHERE}


def test_frozen_log_probabilities_tell_nothing_when_the_control_is_frozen_too() -> None:
    view = canaries(full_text="no idea", moved=(), control_text="no idea", control_moved=())
    assert findings(view) == {}
    assert statements(view)["accounting.read_whole"].standing is Standing.NOT_SHOWN


def test_a_missed_code_is_a_finding_when_there_are_no_log_probabilities_and_the_control_passed() -> None:
    view = canaries(full_text="7360 1177", moved=(), logprobs=False)
    assert set(findings(view)) == {"accounting.input_truncated_head"}
    assert "not found by the model" in findings(view)["accounting.input_truncated_head"].text


def test_a_missed_code_is_no_finding_when_the_distribution_shows_that_it_was_read() -> None:
    view = canaries(full_text="7360 1177", moved=("head", "middle", "tail"))
    assert findings(view) == {}


def test_short_usage_is_bookkeeping_when_all_places_were_read() -> None:
    honest = canaries(full_text="4821 7360 1177", moved=("head", "middle", "tail"))
    short = build_timeline(prompt_tokens=3000, usage=Usage(prompt_tokens=2048, completion_tokens=16))
    bodies = [record.body for record in honest.records]
    view = replace(build_view(*bodies, length_request(short)), header=build_header())
    assert set(findings(view)) == {"accounting.usage_wrong"}
