"""What is decided before the first request."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longproof.domain.measure import Unknown, derived
from longproof.domain.request import Route
from longproof.engines.base import Capabilities
from longproof.errors import UsageError
from longproof.prove.cost import cost_of, smallest_unit_tokens
from longproof.prove.options import IDLE_PROBES, LOAD_PROBES, LoadOptions, ProveOptions
from longproof.prove.protocol import default_lengths, plan_protocol, usual_probes
from longproof.testing.builders import build_deployment

ALL = Capabilities(token_ids=True, counts=True, exact_output=True, cold=True, logprobs=True, metrics=True)
UNKNOWN = Unknown(reason="the server does not tell")


def step(options: ProveOptions, probe: str, **deployment: object) -> dict[str, object]:
    protocol = plan_protocol(build_deployment(**deployment), ALL, options)
    return dict(next(item.parameters for item in protocol.steps if item.probe == probe))


def test_lengths_are_powers_of_two_and_the_round_ones_whose_power_does_not_fit() -> None:
    # 8,192 - 16 = 8,176: 8,192 itself leaves no room for an answer, 8,000 does.
    assert default_lengths(8192, 16) == (512, 1024, 2048, 4096, 8000)
    # 40,000: 8,192 and 32,768 fit and stand for 8k and 32k; 65,536 does not fit.
    assert default_lengths(40_000, 16) == (512, 1024, 2048, 4096, 8192, 16384, 32768)
    assert default_lengths(1_048_576, 16)[-2:] == (524288, 1_000_000)


def test_a_window_below_the_shortest_length_still_gets_one_cell() -> None:
    assert default_lengths(300, 16) == (284,)


@given(window=st.integers(20, 5_000_000), output=st.integers(2, 19))
def test_default_lengths_always_leave_room_for_the_answer(window: int, output: int) -> None:
    lengths = default_lengths(window, output)
    assert lengths
    assert all(0 < length <= window - output for length in lengths)
    assert list(lengths) == sorted(set(lengths))


def test_the_edge_is_asked_only_when_the_whole_window_is_proved() -> None:
    assert step(ProveOptions(), "accounting")["limit_tokens"] == 8192
    assert "limit_tokens" not in step(ProveOptions(context_tokens=4096), "accounting")


def test_a_context_above_the_servers_limit_is_refused_with_both_numbers() -> None:
    with pytest.raises(UsageError, match=r"16,384 tokens; the server's own limit is 8,192"):
        plan_protocol(build_deployment(), ALL, ProveOptions(context_tokens=16384))


def test_cells_stay_within_the_kv_capacity_when_it_is_below_the_limit() -> None:
    # A pool of 2,048 under a limit of 8,192: a cell of 4,096 tokens could only hang or be refused.
    capacity = derived(2048, "blocks x block size")
    assert step(ProveOptions(), "speed", kv_capacity_tokens=capacity)["lengths"] == [512, 1024]
    boundary = step(ProveOptions(), "boundary", kv_capacity_tokens=capacity)
    assert (boundary["top_tokens"], boundary["hint_tokens"]) == (8192, 2048)


def test_an_untold_limit_is_not_searched_for_without_being_asked() -> None:
    # Nobody wants to pay for a search up to millions of tokens that was not asked for: 8,192, or what --context says.
    untold = {"configured_limit_tokens": UNKNOWN, "slot_limit_tokens": UNKNOWN}
    assert step(ProveOptions(), "boundary", **untold)["top_tokens"] == 8192
    assert step(ProveOptions(context_tokens=131072), "boundary", **untold)["top_tokens"] == 131072
    assert "limit_tokens" not in step(ProveOptions(), "boundary", **untold)


def test_lengths_outside_the_window_are_refused() -> None:
    with pytest.raises(UsageError, match="8,192 does not fit"):
        plan_protocol(build_deployment(), ALL, ProveOptions(lengths=(512, 8192)))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (ProveOptions(repeats=0), "measures nothing"),
        (ProveOptions(output_tokens=1), "leaves no time per output token"),
        (ProveOptions(only=("speed", "sped")), "names no probe: sped"),
    ],
)
def test_choices_that_cannot_be_meant_are_refused(options: ProveOptions, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        plan_protocol(build_deployment(), ALL, options)


def test_only_leaves_the_others_out_and_says_so() -> None:
    protocol = plan_protocol(build_deployment(), ALL, ProveOptions(only=("speed",)))
    assert [item.probe for item in protocol.steps] == ["speed"]
    assert set(protocol.not_run) == set(usual_probes(pair=False)) - {"speed"}


def test_the_cost_counts_every_request_of_a_step() -> None:
    # speed alone: (512 + 16 + 1024 + 16) x 2 repeats and one more of the shortest to warm up = 3,664 tokens in 5
    # requests; the cheapest is 528.
    options = ProveOptions(only=("speed",), lengths=(512, 1024), repeats=2)
    protocol = plan_protocol(build_deployment(), ALL, options)
    cost = cost_of(protocol)
    assert (cost.requests, cost.tokens, smallest_unit_tokens(protocol)) == (5, 3664, 528)


def test_completions_is_the_route_when_there_is_no_chat() -> None:
    protocol = plan_protocol(build_deployment(), Capabilities(chat=False, token_ids=True), ProveOptions())
    assert protocol.route is Route.COMPLETIONS


def test_every_probe_is_planned_when_nothing_was_chosen() -> None:
    protocol = plan_protocol(build_deployment(), ALL, ProveOptions())
    assert {item.probe for item in protocol.steps} | set(protocol.not_run) == set(usual_probes(pair=False))
    assert [item.probe for item in protocol.steps][: len(IDLE_PROBES)] == list(IDLE_PROBES)


@pytest.mark.parametrize("window", [600, 2_048, 8_192, 131_072, 1_048_576])
@pytest.mark.parametrize("probe", LOAD_PROBES)
def test_every_length_under_load_fits_when_the_window_is(probe: str, window: int) -> None:
    protocol = plan_protocol(build_deployment(limit_tokens=window), ALL, ProveOptions(only=(probe,)))
    for item in protocol.steps:
        told = {name: value for name, value in item.parameters.items() if name.endswith(("_tokens", "lengths"))}
        lengths = [n for value in told.values() for n in (value if isinstance(value, list) else [value])]
        assert lengths
        assert all(isinstance(n, int) and n < window for n in lengths), told


def test_the_users_load_is_planned_when_it_was_chosen() -> None:
    options = ProveOptions(only=("busy",), load=LoadOptions(concurrency=3))
    assert step(options, "busy")["background.concurrency"] == 3
    options = ProveOptions(only=("busy",), load=LoadOptions(rate_per_s=2.5))
    assert step(options, "busy")["background.rate_per_s"] == 2.5
    assert plan_protocol(build_deployment(), ALL, options).choices == {"rate_per_s": "2.5"}


def test_windows_of_load_are_as_long_as_the_user_wants() -> None:
    """A second of background leaves no two seconds to get going in."""
    options = ProveOptions(load=LoadOptions(window_ns=1_000_000_000))
    busy, overload = step(options, "busy"), step(options, "overload")
    assert [busy[name] for name in ("alone_ns", "lead_ns", "tail_ns")] == [1_000_000_000] * 3
    assert [overload[name] for name in ("step_ns", "idle_ns")] == [1_000_000_000] * 2


def test_a_pair_is_asked_what_goes_between_them_when_there_are_two_servers() -> None:
    pair = replace(ALL, disaggregated=True)
    protocol = plan_protocol(build_deployment(), pair, ProveOptions())
    assert "disaggregated" in [item.probe for item in protocol.steps]
    alone = plan_protocol(build_deployment(), ALL, ProveOptions(only=("disaggregated",)))
    assert "name a pair with --prefill and --decode" in alone.not_run["disaggregated"]
