"""Two engines, one for prompts and one for answers, and the KV that goes between them as NixlConnector does it."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from longproof.testing import VLLM, Behaviour
from longproof.testing.engine_log import Ending
from longproof.testing.lies_of_load import PdBootstrapFail, PdRecompute, PdTransferSlow
from longproof.testing.lying_engine import lying_engine
from longproof.testing.pd_pair import PdPair

PLAIN = Behaviour(dialect=VLLM)
SHARED = PLAIN.but(compute="shared")
PROMPT = list(range(300, 400))
BOTH = pytest.mark.parametrize("behaviour", [PLAIN, SHARED], ids=["apart", "shared"])


def prefill(url: str, prompt: list[int] = PROMPT) -> dict[str, Any]:
    """What a router asks the prefill side; the kv_transfer_params it gets."""
    body = {"prompt": prompt, "max_tokens": 1, "kv_transfer_params": {"do_remote_decode": True}}
    return httpx.post(f"{url}/v1/completions", json=body).json()["kv_transfer_params"]


def sources(metric: Any, url: str) -> list[float]:
    """Prompt tokens: computed here, from the cache here, from the other engine."""
    names = ("local_compute", "local_cache_hit", "external_kv_transfer")
    return [metric(url, "vllm:prompt_tokens_by_source_total", source=name) for name in names]


@BOTH
def test_prompt_is_not_computed_again_when_its_kv_is_handed_on(behaviour, complete, metric, eventually) -> None:
    pair = PdPair(behaviour, behaviour)
    with lying_engine(behaviour) as alone:
        text = complete(alone, PROMPT).text
    with pair as (prefill_url, decode_url):
        handed_on = prefill(prefill_url)
        assert handed_on["remote_request_id"].startswith("cmpl-")
        known = {"do_remote_prefill": True, "do_remote_decode": False, "remote_num_tokens": 100, "tp_size": 1}
        assert known.items() <= handed_on.items()
        assert handed_on["remote_block_ids"] == [[1, 2, 3, 4, 5, 6, 7]]  # 100 tokens in blocks of 16
        assert metric(prefill_url, "vllm:kv_cache_usage_perc") == 7 * 16 / pair.prefill.behaviour.pool_tokens
        assert metric(prefill_url, "vllm:num_requests_running") == 0
        seen = complete(decode_url, PROMPT, kv_transfer_params=handed_on, stream_options={"include_usage": True})
        eventually(lambda: metric(prefill_url, "vllm:kv_cache_usage_perc") == 0)
        assert sources(metric, prefill_url) == [100, 0, 0]
        assert sources(metric, decode_url) == [0, 0, 100]
        assert metric(decode_url, "vllm:external_prefix_cache_hits_total") == 100
        assert metric(decode_url, "vllm:nixl_xfer_time_seconds_count") == 1
        # whole blocks of 23,040 bytes a token
        assert metric(decode_url, "vllm:nixl_bytes_transferred_sum") == 7 * 16 * 23_040
        assert metric(decode_url, "vllm:nixl_num_failed_transfers_total") == 0
    assert (seen.text, seen.cached) == (text, 100)
    assert pair.decode.log.last.transferred_tokens == 100


def test_stream_does_not_carry_the_parameters(complete) -> None:
    with PdPair() as (prefill_url, _):
        seen = complete(prefill_url, PROMPT, max_tokens=1, kv_transfer_params={"do_remote_decode": True})
    assert seen.done
    assert b"kv_transfer_params" not in seen.raw


def test_parameters_mean_nothing_without_a_connector(complete) -> None:
    with lying_engine(PLAIN) as url:
        seen = complete(url, PROMPT, stream=False, kv_transfer_params={"do_remote_decode": True})
        assert "kv_transfer_params" not in seen.json
        assert complete(url, PROMPT, kv_transfer_params={"do_remote_prefill": True}).done
        assert "nixl" not in httpx.get(f"{url}/metrics").text


def test_request_ends_with_an_error_when_the_kv_is_gone(complete, metric) -> None:
    pair = PdPair()
    with pair as (prefill_url, decode_url):
        handed_on = prefill(prefill_url)
        pair.prefill.restart()
        seen = complete(decode_url, PROMPT, kv_transfer_params=handed_on)
        whole = complete(decode_url, PROMPT, kv_transfer_params=handed_on, stream=False)
        assert metric(decode_url, "vllm:nixl_num_failed_transfers_total") == 2
        assert metric(decode_url, "vllm:num_requests_waiting") == 0
        assert complete(decode_url, PROMPT).done  # without the other side it computes
    assert (seen.status, seen.done, seen.deltas) == (200, True, [])
    assert seen.events == [
        {"error": {"message": "Internal server error", "type": "InternalServerError", "param": None, "code": 500}}
    ]
    assert (whole.status, whole.json) == (500, seen.events[0])
    assert pair.decode.log.requests[0].ending is Ending.ERROR


def test_second_long_request_fails_when_bootstrap_does(complete) -> None:
    lie = PdBootstrapFail(above_tokens=50, skip=1, after_s=0.05)
    pair = PdPair(PLAIN, PLAIN.lying(lie))
    with pair as (prefill_url, decode_url):
        for length in (100, 20, 100, 20):
            prompt = [300 + length] * length
            complete(decode_url, prompt, kv_transfer_params=prefill(prefill_url, prompt))
    assert [entry.ending for entry in pair.decode.log.requests] == [
        Ending.COMPLETED,
        Ending.COMPLETED,
        Ending.ERROR,
        Ending.COMPLETED,
    ]
    failed = pair.decode.log.requests[2]
    assert failed.finished_ns - failed.received_ns >= 45_000_000


def test_request_is_deferred_while_its_kv_comes_slowly(hold, metric, eventually) -> None:
    pair = PdPair(PLAIN, PLAIN.lying(PdTransferSlow(least_s=600.0)))
    with pair as (prefill_url, decode_url):
        held = hold(decode_url, {"prompt": PROMPT, "max_tokens": 4, "kv_transfer_params": prefill(prefill_url)})
        eventually(lambda: metric(decode_url, "vllm:num_requests_waiting_by_reason", reason="deferred") == 1)
        assert metric(decode_url, "vllm:num_requests_running") == 0
        held.close()
        eventually(lambda: metric(decode_url, "vllm:num_requests_waiting_by_reason", reason="deferred") == 0)
        eventually(lambda: metric(prefill_url, "vllm:kv_cache_usage_perc") == 0)


def test_transfer_takes_as_long_as_the_lie_says(complete, metric) -> None:
    with PdPair(PLAIN, PLAIN.lying(PdTransferSlow(factor=1.0, least_s=0.1))) as (prefill_url, decode_url):
        assert len(complete(decode_url, PROMPT, kv_transfer_params=prefill(prefill_url)).deltas) == 8
        assert metric(decode_url, "vllm:nixl_xfer_time_seconds_sum") == 0.1


@BOTH
def test_usage_claims_a_transfer_when_the_prompt_is_computed_again(behaviour, complete, metric) -> None:
    pair = PdPair(behaviour, behaviour.lying(PdRecompute()))
    with pair as (prefill_url, decode_url):
        usage = {"stream_options": {"include_usage": True}}
        seen = complete(decode_url, PROMPT, kv_transfer_params=prefill(prefill_url), **usage)
        assert seen.cached == 100
        assert sources(metric, decode_url) == [100, 0, 0]
    assert pair.decode.log.last.transferred_tokens == 0
