"""How much prefill a replica is given at once, where the configuration leaves it open."""

from __future__ import annotations

import pytest

from longproof.domain.measure import reported
from longproof.gateway.config import ServedSection
from longproof.gateway.replica_rules import ruled
from longproof.testing.builders import build_deployment


@pytest.mark.parametrize(
    ("section", "batched", "window"),
    [
        (ServedSection(prefill_rate=9_000), 2_048, 2_048),  # one step of the engine, as it tells
        (ServedSection(prefill_rate=9_000), None, 8_192),
        (ServedSection(prefill_rate=9_000, prefill_window=500), 2_048, 500),
        (ServedSection(prefill_window=500), None, 500),
        (ServedSection(), 2_048, None),  # no rate: nobody could tell when it is open again
    ],
)
def test_one_step_is_in_prefill_at_once_when_the_rate_is_known(
    section: ServedSection, batched: int | None, window: int | None
) -> None:
    tells = {} if batched is None else {"max_batched_tokens": reported(batched, "log")}
    assert ruled("r", ("m",), section, build_deployment(**tells)).rule.prefill_window_tokens == window
