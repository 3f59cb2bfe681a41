"""Our own parsers under any bytes: what fuzzers found before, mutations of what is well-formed, and plain noise."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from seeds import SEEDS
from targets import CORPUS, TARGETS

FOUND = sorted(path for path in CORPUS.glob("*/*") if path.is_file())
_FAST = settings(deadline=None, max_examples=25, suppress_health_check=list(HealthCheck))


def test_every_target_has_seeds_when_it_is_fuzzed() -> None:
    assert set(SEEDS) == set(TARGETS)
    assert {path.parent.name for path in FOUND} <= set(TARGETS)


@pytest.mark.parametrize("path", FOUND, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_what_once_broke_a_parser_breaks_it_no_more(path: Path) -> None:
    TARGETS[path.parent.name](path.read_bytes())


@pytest.mark.parametrize("name", TARGETS)
def test_a_parser_returns_or_refuses_when_its_input_was_changed(name: str) -> None:
    run = TARGETS[name]
    for seed in SEEDS[name]:
        run(seed)

    @_FAST
    @given(st.data())
    def changed(data: st.DataObject) -> None:
        seed = data.draw(st.sampled_from(SEEDS[name]))
        for _ in range(data.draw(st.integers(1, 3))):
            start = data.draw(st.integers(0, len(seed)))
            end = data.draw(st.integers(start, min(len(seed), start + 24)))
            new = data.draw(st.binary(max_size=9) | st.just(seed[start:end] * 3) | st.just(b"\xff" * (end - start)))
            seed = seed[:start] + new + seed[end:]
        run(seed)

    @_FAST
    @given(st.binary(max_size=200) | st.text(max_size=100).map(lambda text: text.encode("utf-8", "replace")))
    def noise(data: bytes) -> None:
        run(data)

    changed()
    noise()
