"""What the difference of two samples says about the request between them."""

from __future__ import annotations

import pytest

from longproof.domain.engine_metrics import engine_cached_tokens, engine_ttft_ns, growth
from longproof.domain.events import EngineSample


def sample(**values: float) -> EngineSample:
    return EngineSample(at_ns=0, values={name.replace("__", ":"): value for name, value in values.items()})


def ttft(seconds: float, requests: float, engine: str = "0") -> dict[str, float]:
    name = "vllm:time_to_first_token_seconds"
    return {f'{name}_sum{{engine="{engine}"}}': seconds, f'{name}_count{{engine="{engine}"}}': requests}


def test_engine_ttft_is_the_growth_of_the_sum_when_one_request_ran():
    before, after = EngineSample(at_ns=0, values=ttft(13.5, 3)), EngineSample(at_ns=9, values=ttft(13.75, 4))
    assert engine_ttft_ns(before, after) == 250_000_000  # 0.25 s


def test_engine_ttft_is_the_same_when_another_engine_of_the_group_stood_idle():
    before = EngineSample(at_ns=0, values=ttft(1.0, 2) | ttft(4.0, 5, engine="1"))
    after = EngineSample(at_ns=9, values=ttft(1.5, 3) | ttft(4.0, 5, engine="1"))
    assert engine_ttft_ns(before, after) == 500_000_000


@pytest.mark.parametrize("requests_after", [3, 5, 2])
def test_engine_ttft_is_none_when_not_exactly_one_request_got_its_first_token(requests_after: int):
    before, after = EngineSample(at_ns=0, values=ttft(1.0, 3)), EngineSample(at_ns=9, values=ttft(2.0, requests_after))
    assert engine_ttft_ns(before, after) is None


def test_engine_ttft_is_none_when_the_engine_restarted_in_between():
    before, after = EngineSample(at_ns=0, values=ttft(9.0, 0)), EngineSample(at_ns=9, values=ttft(0.5, 1))
    assert engine_ttft_ns(before, after) is None


def test_engine_ttft_is_none_when_the_engine_has_no_histogram():
    assert engine_ttft_ns(sample(llamacpp__n=1), sample(llamacpp__n=2)) is None


def test_engine_ttft_is_read_of_sglang_when_its_first_request_created_the_histogram():
    after = sample(sglang__time_to_first_token_seconds_sum=0.125, sglang__time_to_first_token_seconds_count=1)
    assert engine_ttft_ns(sample(), after) == 125_000_000


def test_cached_tokens_are_the_growth_of_the_hits_when_a_prefix_was_warm():
    before, after = sample(vllm__prefix_cache_hits_total=128), sample(vllm__prefix_cache_hits_total=1024)
    assert engine_cached_tokens(before, after) == 896


def test_cached_tokens_are_zero_when_the_counter_stood_still():
    same = sample(vllm__prefix_cache_hits_total=128)
    assert engine_cached_tokens(same, same) == 0


def test_cached_tokens_are_none_when_nobody_counts_them():
    assert engine_cached_tokens(sample(), sample()) is None


def test_growth_is_none_when_the_counter_vanished():
    assert growth(sample(x=1), sample(), "x") is None


def test_growth_leaves_longer_names_alone_when_they_begin_the_same():
    assert growth(sample(x=1, x_total=5), sample(x=3, x_total=50), "x") == 2
