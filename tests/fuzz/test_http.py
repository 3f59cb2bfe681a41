"""The gateway's HTTP surface under requests that nobody would write: generated from its own description."""

from __future__ import annotations

from pathlib import Path

from http_fuzz import fuzz, running, shown


def test_every_answer_is_in_order_when_requests_are_generated_from_the_description(tmp_path: Path) -> None:
    with running(tmp_path) as (one, engine):
        before_bytes = one.rss_bytes
        seen = fuzz(one, examples=5, base=2_026, routes=("/tokenize",))
        one.require_well()
        grown_bytes = one.rss_bytes - before_bytes
        served = engine.log.requests
    print(shown(seen))
    assert seen["200"] > 0  # it reached what is behind the checks
    assert seen["400"] > 0  # and the checks
    assert any(request.prompt_tokens for request in served)
    assert grown_bytes < 200 << 20
