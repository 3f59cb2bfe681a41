"""The gateway's HTTP surface under requests that nobody would write: generated from its own description."""

from __future__ import annotations

from pathlib import Path

import requests
from http_fuzz import ADMIN, Running, fuzz, running, shown


def scrape(one: Running) -> list[str]:
    headers = {"Authorization": f"Bearer {ADMIN}"}
    lines = requests.get(f"{one.url}/metrics", headers=headers, timeout=30).text.splitlines()
    return [line for line in lines if not line.startswith("#")]


def ask(one: Running, model: str) -> int:
    headers = {"Authorization": f"Bearer {ADMIN}"}
    body = {"model": model, "messages": [{"role": "user", "content": "Hi"}]}
    return requests.post(f"{one.url}/v1/chat/completions", headers=headers, json=body, timeout=30).status_code


def test_every_answer_is_in_order_when_requests_are_generated_from_the_description(tmp_path: Path) -> None:
    with running(tmp_path) as (one, engine):
        before_bytes = one.rss_bytes
        seen = fuzz(one, examples=5, base=2_026, routes=("/tokenize",))
        one.require_well()
        lines = scrape(one)
        for name in ("a", 'b"} 1\nfake 2', "<script>", "../../x", "ü" * 100, "x" * 512):
            assert ask(one, name) == 404
        assert [line for line in scrape(one) if "script" in line or "fake 2" in line] == []
        assert len(scrape(one)) <= len(lines) + 2  # a refusal's code may be new; a name never makes a label
        grown_bytes = one.rss_bytes - before_bytes
        served = engine.log.requests
    print(shown(seen))
    assert seen["200"] > 0  # it reached what is behind the checks
    assert seen["400"] > 0  # and the checks
    assert any(request.prompt_tokens for request in served)
    assert grown_bytes < 200 << 20
