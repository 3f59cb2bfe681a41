"""What the records say of single requests."""

from __future__ import annotations

from itertools import pairwise

from longproof.claim.view import EvidenceView
from longproof.domain.events import EndedBy, ServerError, Usage
from longproof.domain.outcome import Outcome
from longproof.report import drawings, requests
from longproof.testing.builders import build_hang, build_refusal, build_request, build_timeline, build_view
from longproof.testing.scenarios import full


def test_stages_lose_no_request_when_any_run_is_counted(view: EvidenceView) -> None:
    stages = requests.stages(view)
    sent = sum(1 for _ in view.all_requests())
    assert stages[0].reached == sent
    for stage, after in pairwise(stages):
        assert stage.reached - sum(count for _, count in stage.left) == after.reached


def test_stage_is_the_last_one_reached_when_requests_end_differently() -> None:
    cut = build_timeline(ended_by=EndedBy.CUT, finish_reason=None)
    error = build_timeline(
        output_tokens=0, error=ServerError(message="boom", in_stream=True), finish_reason=None, usage=None
    )
    view = build_view(
        *(
            build_request("speed", {}, timeline)
            for timeline in (build_timeline(), cut, error, build_refusal(), build_hang())
        )
    )
    submitted, answered, first, completed = requests.stages(view)
    assert [stage.reached for stage in (submitted, answered, first, completed)] == [5, 3, 2, 1]
    assert set(submitted.left) == {(Outcome.REFUSED_LENGTH, 1), (Outcome.HUNG, 1)}
    assert answered.left == ((Outcome.ERROR_IN_STREAM, 1),)
    assert first.left == ((Outcome.CUT, 1),)
    assert completed.left == ()


def test_edges_come_in_order_of_length_when_read() -> None:
    edges = requests.edges(full())
    assert [(edge.position, edge.prompt_tokens) for edge in edges] == [
        ("limit-2", 8190),
        ("limit-1", 8191),
        ("limit", 8192),
        ("limit+1", 8193),
        ("far", 16_384),
    ]
    assert [edge.outcome for edge in edges] == [Outcome.SHORT, Outcome.SHORT, *[Outcome.REFUSED_LENGTH] * 3]
    assert edges[0].produced_tokens == 2
    assert edges[2].words == "request (8192 tokens) exceeds the available context size (8192 tokens), try increasing it"


def test_edge_line_tells_status_and_tokens_when_the_output_was_clamped() -> None:
    cell = {"arm": "edge", "position": "limit-2", "prompt": 8190, "output": 16}
    timeline = build_timeline(prompt_tokens=8190, output_tokens=2)
    (edge,) = requests.edges(build_view(build_request("accounting", dict(cell), timeline)))
    # first token after 100 ms, the second 10 ms later, the end 1 ms after that
    assert requests.describe_edge(edge) == "HTTP 200, 2 of 16 tokens, finish_reason length, after 111 ms"


def test_edge_line_says_so_when_nothing_answered() -> None:
    (edge,) = requests.edges(build_view(build_request("accounting", {"arm": "edge", "prompt": 9000}, build_hang())))
    assert requests.describe_edge(edge) == "no HTTP answer, after 60.0 s"


def test_search_keeps_the_order_asked_when_totals_jump() -> None:
    asked = [8192, 4096, 6144, 8192]
    view = build_view(
        *(
            build_request("boundary", {"total": t, "prompt": t - 16, "output": 16, "repeat": i})
            for i, t in enumerate(asked)
        )
    )
    assert [item.total_tokens for item in requests.search(view)] == [8192, 4096, 6144]
    assert [total for total, _ in requests.trials(view)] == asked
    assert requests.search(view)[0].tally == [(Outcome.COMPLETED, 2)]


def test_counts_skip_requests_when_either_side_is_missing() -> None:
    view = build_view(
        build_request("speed", {}, build_timeline(prompt_tokens=100)),
        build_request("speed", {}, build_timeline(prompt_tokens=200, usage=None)),
        build_request("speed", {}, build_timeline(prompt_tokens=300, prompt_tokens_sent=None)),
        build_request("warmth", {}, build_timeline(prompt_tokens=400, usage=Usage(prompt_tokens=390))),
    )
    counts = requests.counts(view)
    assert [(count.probe, count.sent, count.used) for count in counts] == [("speed", 100, 100), ("warmth", 400, 390)]
    assert requests.counts_by_probe(counts) == [("speed", 1, 1, 100, 100), ("warmth", 1, 0, 400, 400)]


def test_representative_is_the_lower_median_when_repeats_are_even() -> None:
    times = [400, 100, 300, 200]  # sorted 100 200 300 400: the lower of the two in the middle is 200
    view = build_view(
        *(
            build_request("speed", {"arm": "cold", "length": 512, "repeat": i}, build_timeline(ttft_ns=ms * 1_000_000))
            for i, ms in enumerate(times)
        )
    )
    ((length, _, timeline),) = requests.representatives(view)
    assert (length, timeline.ttft_ns) == (512, 200_000_000)


def test_bar_covers_its_request_when_all_happened() -> None:
    # 111 ms in all: headers at 2, first token at 100
    bar = drawings.bar(512, "k", build_timeline(prompt_tokens=512, output_tokens=2))
    assert [piece.role for piece in bar.segments] == ["headers", "wait", "tokens"]
    assert sum(piece.width for piece in bar.segments) == 100
    assert bar.segments[0].width == round(2 / 111 * 100, 3)
    assert dict(bar.stamps)["first token"] == "100 ms"


def test_bar_draws_no_token_when_none_came() -> None:
    bar = drawings.bar(512, "k", build_hang())
    assert [piece.role for piece in bar.segments] == ["wait"]
    assert [name for name, _ in bar.stamps] == ["finished"]
