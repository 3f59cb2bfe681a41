"""Prompts that were cut without an error: by usage far from the prediction, and what that leaves of the boundary."""

from __future__ import annotations

import pytest

from longproof.claim.findings import accounting, boundary
from longproof.claim.findings.reading import far_apart
from longproof.claim.statements import Finding, NotShown, Standing, Statement
from longproof.claim.view import EvidenceView
from longproof.domain.deployment import EngineKind
from longproof.domain.events import EndedBy, RequestTimeline, ServerError, Usage
from longproof.domain.measure import Unknown
from longproof.domain.request import CountSource
from longproof.testing.builders import (
    build_deployment,
    build_header,
    build_refusal,
    build_request,
    build_timeline,
    build_view,
)

OUTPUT = 16
UNTOLD = build_header(
    deployment=build_deployment(
        engine=EngineKind.OPENAI,
        configured_limit_tokens=Unknown(reason="not reported"),
        slot_limit_tokens=Unknown(reason="not reported"),
    )
)


def used(sent: int, read: int, source: CountSource = CountSource.SERVER, **overrides: object) -> RequestTimeline:
    usage = Usage(prompt_tokens=read, completion_tokens=OUTPUT, cached_tokens=0)
    return build_timeline(prompt_tokens=sent, max_tokens=OUTPUT, usage=usage, count_source=source, **overrides)


def asked(total: int, timeline: RequestTimeline) -> object:
    cell = {"total": total, "prompt": total - OUTPUT, "output": OUTPUT, "repeat": 0}
    return build_request("boundary", cell, timeline=timeline)


def findings(view: EvidenceView) -> dict[str, Finding]:
    return {item.id: item for item in accounting.read(view) if isinstance(item, Finding)}


def boundaries(view: EvidenceView) -> tuple[dict[str, Statement], set[str]]:
    said = list(boundary.read(view))
    return (
        {item.id: item for item in said if isinstance(item, Statement)},
        {item.topic for item in said if isinstance(item, NotShown)},
    )


@pytest.mark.parametrize(
    ("sent", "read", "far"), [(3000, 2048, True), (3000, 2701, False), (200, 137, False), (200, 135, True)]
)
def test_counts_are_far_apart_beyond_a_tenth_and_64_tokens(sent: int, read: int, far: bool) -> None:
    # a tenth of 3,000 is 300: 2,701 differs by 299; of 200 it is 20, so 64 decides: 137 differs by 63, 135 by 65
    assert far_apart(sent, read) is far


def test_a_predicted_count_far_above_usage_is_a_cut_prompt() -> None:
    body = build_request("accounting", {"arm": "length", "length": 3000}, timeline=used(3000, 2048, CountSource.USAGE))
    found = findings(build_view(body, header=UNTOLD))
    assert set(found) == {"accounting.input_truncated"}
    assert "about 3,000" in found["accounting.input_truncated"].text


def test_a_predicted_count_near_usage_is_no_finding() -> None:
    body = build_request("accounting", {"arm": "length", "length": 3000}, timeline=used(3000, 2990, CountSource.USAGE))
    assert findings(build_view(body, header=UNTOLD)) == {}


def test_a_clamp_is_found_without_a_told_limit_when_a_longer_prompt_was_answered() -> None:
    short = build_timeline(prompt_tokens=100, max_tokens=OUTPUT, output_tokens=2)
    longer = build_timeline(prompt_tokens=2000, max_tokens=OUTPUT, output_tokens=2)
    bodies = [
        build_request("accounting", {"arm": "length", "length": item.prompt_tokens_sent or 0}, timeline=item)
        for item in (short, longer)
    ]
    found = findings(build_view(*bodies, header=UNTOLD))
    # 2,000 + 2 tokens were held at once, so 100 + 16 had room; 2,000 + 16 may not have had

    assert found["accounting.output_clamped"].text.startswith("1 answers ended early")


def test_a_total_whose_prompt_was_cut_is_not_shown_as_served() -> None:
    view = build_view(asked(1016, used(1000, 1000)), asked(4096, used(4080, 1024)))
    statements, topics = boundaries(view)
    context = statements["boundary.context"]
    assert not isinstance(context.value, Unknown)
    assert (context.value.value, context.standing) == (1016.0, Standing.SHOWN)
    assert "boundary_doubted" in topics


def test_no_context_is_claimed_when_every_answered_total_was_cut() -> None:
    statements, topics = boundaries(build_view(asked(4096, used(4080, 1024))))
    assert "boundary.context" not in statements
    assert "boundary_doubted" in topics


def test_a_total_above_the_limit_is_not_shown_when_no_usage_counts_its_output() -> None:
    silent = [asked(total, build_timeline(prompt_tokens=total - OUTPUT, usage=None)) for total in (8192, 8193)]
    statements, topics = boundaries(build_view(*silent))
    context = statements["boundary.context"]
    assert not isinstance(context.value, Unknown)
    assert context.value.value == 8192.0
    assert "boundary_doubted" in topics


def test_a_rate_limit_refutes_no_length() -> None:
    busy = build_refusal(prompt_tokens=4080, status=429, error=ServerError(message="slow down"))
    view = build_view(asked(1016, used(1000, 1000)), asked(4096, busy))
    statements, topics = boundaries(view)
    assert "boundary.refused" not in statements
    assert "boundary_busy" in topics
    statements, _ = boundaries(build_view(asked(4096, busy)))
    assert statements["boundary.context"].standing is Standing.NOT_SHOWN


def test_a_gateway_time_out_is_no_refusal_for_length() -> None:
    late = build_refusal(
        prompt_tokens=4080,
        status=504,
        ended_by=EndedBy.HTTP_ERROR,
        error=ServerError(message="context deadline exceeded"),
    )
    found = {item.id for item in boundary.read(build_view(asked(4096, late))) if isinstance(item, Finding)}
    assert "boundary.server_error" in found


def test_wrong_usage_leaves_the_boundary_alone_when_all_places_were_read() -> None:
    codes = {"head": "4821", "middle": "7360", "tail": "1177"}
    answer = build_timeline(prompt_tokens=4000, max_tokens=24, text="4821 7360 1177")
    canary = build_request("accounting", {"arm": "canary", "length": 4000, "variant": "base", **codes}, timeline=answer)
    statements, _ = boundaries(build_view(canary, asked(4096, used(4080, 4073))))
    assert statements["boundary.context"].standing is Standing.SHOWN
