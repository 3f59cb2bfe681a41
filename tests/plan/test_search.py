"""The search: what fits, how it ranks, what it says, and that its work grows with the layouts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from longproof.domain.measure import Measured, Unknown, derived, given
from longproof.errors import LayoutError, UsageError
from longproof.geometry.kinds import GroupedAttention, LatentAttention, LayerKind
from longproof.geometry.model import Layer, LayerWeights, Mlp, ModelGeometry, OuterWeights
from longproof.hardware.catalogue import find_device
from longproof.plan.capacity import Capacity, EngineReport, Launch, Layout, PlanEngine, RequestNeed
from longproof.plan.layouts import LayoutSpace, arrangement_devices, possible_layouts
from longproof.plan.perf_decode import Batch, decode_time
from longproof.plan.perf_model import work_of
from longproof.plan.perf_prefill import Prompt, prefill_time
from longproof.plan.search import search_layouts
from longproof.plan.search_fit import search_devices, window_tokens
from longproof.plan.search_question import Hardware, SearchQuestion, Slo, Workload
from longproof.plan.search_server import decode_layout, prefill_layout

VLLM, SGLANG = PlanEngine.VLLM, PlanEngine.SGLANG
DEVICE = find_device("h100-sxm")


def dense(layers: int = 32) -> ModelGeometry:
    attention = GroupedAttention(kind=LayerKind.FULL, query_heads=32, kv_heads=8, k_dim=128, v_dim=128)
    weights = LayerWeights(attention=42_000_000, kv_projection=8_400_000, mlp=176_000_000)
    return ModelGeometry(
        name="dense",
        architecture="llama",
        source="test",
        layers=tuple(
            Layer(index=i, attention=attention, mlp=Mlp(dense_size=14_336), weights=weights) for i in range(layers)
        ),
        hidden_size=given(4096, "test"),
        vocab_size=given(128_256, "test"),
        max_position_tokens=given(131_072, "test"),
        dtype=given("bfloat16", "test"),
        outer=OuterWeights(embedding=525_000_000, lm_head=525_000_000),
    )


def mixture() -> ModelGeometry:
    attention = LatentAttention(query_heads=128, kv_lora_rank=512, rope_dim=64, nope_dim=128, v_dim=128)
    weights = LayerWeights(attention=180_000_000, experts=2_000_000_000, active_experts=62_500_000)
    mlp = Mlp(experts=256, experts_per_token=8, expert_size=2048)
    return replace(
        dense(),
        name="mixture",
        layers=tuple(Layer(index=i, attention=attention, mlp=mlp, weights=weights) for i in range(16)),
    )


def holding(sessions: float) -> Callable[[Layout], Capacity]:
    """Every layout holds so many sessions a device."""

    def of(layout: Layout) -> Capacity:
        held = sessions * layout.tp * layout.pp
        return Capacity(
            engine=VLLM,
            block_tokens=16,
            stages=(),
            binding=None,
            report=EngineReport(),
            need=RequestNeed(request_tokens=1, blocks=1, total_bytes=1),
            concurrency=derived(held, "test"),
            longest_request_tokens=derived(200_000, "test"),
        )

    return of


def question(count: int = 8, **changes: object) -> SearchQuestion:
    geometry = changes.pop("geometry", dense())
    assert isinstance(geometry, ModelGeometry)
    fields: dict[str, object] = {
        "geometry": geometry,
        "work": work_of(geometry),
        "engine": VLLM,
        "hardware": Hardware(device=DEVICE, count=count, usd_per_hour=given(3.0, "test")),
        "workload": Workload(input_tokens=100_000, output_tokens=1000),
        **changes,
    }
    return SearchQuestion(**fields)  # type: ignore[arg-type]


def test_cheapest_arrangement_that_keeps_the_slo_wins_when_several_fit() -> None:
    slo = Slo(first_token_seconds=6.0, token_seconds=0.06)
    found = search_layouts(question(slo=slo), holding(4))
    best = found.winner
    assert best is not None
    assert best.misses == ()
    assert best.first_token.seconds <= 6.0
    assert best.token_seconds <= 0.06
    keeping = [c for c in found.ranked if not c.misses]
    assert best.device_seconds == min(c.device_seconds for c in keeping)
    # those that miss come after all that keep it, the nearest first
    assert [bool(c.misses) for c in found.ranked] == sorted(bool(c.misses) for c in found.ranked)
    overruns = [c.overrun for c in found.ranked]
    assert overruns == sorted(overruns)


def test_price_is_device_time_times_the_hourly_price_when_known() -> None:
    (best, *_) = search_layouts(question(), holding(4)).ranked
    assert isinstance(best.usd_per_request, Measured)
    assert best.usd_per_request.value == pytest.approx(3.0 / 3600 * best.device_seconds)
    # 1,000 output tokens a request: a thousand requests are a million tokens
    assert isinstance(best.usd_per_million_output, Measured)
    assert best.usd_per_million_output.value == pytest.approx(1000 * best.usd_per_request.value)
    assert best.device_seconds == pytest.approx(best.devices / best.requests_per_second)


def test_price_is_unknown_when_nobody_gives_one() -> None:
    best = search_layouts(question(hardware=Hardware(device=DEVICE, count=2)), holding(4)).winner
    assert best is not None
    assert isinstance(best.usd_per_request, Unknown)


def test_one_server_is_timed_as_the_time_model_says_when_it_is_alone() -> None:
    asked = question(1)
    (only,) = search_layouts(asked, holding(1)).ranked
    prefill = prefill_time(asked.work, DEVICE, Prompt(new_tokens=100_000), layout=Layout())
    step = decode_time(asked.work, DEVICE, Batch(sequences=1, context_tokens=100_500), layout=Layout())
    assert only.first_token.seconds == prefill.seconds
    assert only.token_seconds == step.seconds  # nobody else's prefill comes in between
    # one session at a time: a request takes its prefill and 1,000 steps
    assert only.requests_per_second == pytest.approx(1 / (prefill.seconds + 1000 * step.seconds))


def test_batch_is_the_largest_that_keeps_the_token_time_when_sessions_are_free() -> None:
    bound = 0.05
    space = LayoutSpace(sizes=(1,), pools=False)
    asked = question(
        1, slo=Slo(token_seconds=bound), space=space, workload=Workload(input_tokens=4000, output_tokens=1000)
    )
    (only,) = search_layouts(asked, holding(500)).ranked
    prefill = prefill_time(asked.work, DEVICE, Prompt(new_tokens=4000), layout=Layout()).seconds

    def between(batch: int) -> float:
        step = decode_time(asked.work, DEVICE, Batch(sequences=batch, context_tokens=4500), layout=Layout())
        return step.seconds + (batch - 1) * prefill / 1000

    assert 1 < only.sessions < 500
    assert between(only.sessions) <= bound < between(only.sessions + 1)


def test_asked_sessions_are_spread_over_replicas_when_given() -> None:
    asked = question(workload=Workload(input_tokens=50_000, output_tokens=500, sessions=12))
    found = search_layouts(asked, holding(2))
    # TP1 holds 2 sessions: 6 servers and more hold 12, 8 fit on the devices
    alone = [c for c in found.ranked if c.arrangement.layout == Layout() and c.arrangement.decode is None]
    assert {c.arrangement.replicas for c in alone} == {6, 8}
    assert all(c.sessions == 12 for c in alone)
    assert all("sessions" not in " ".join(c.misses) for c in alone)


def test_missing_sessions_are_named_when_the_devices_hold_fewer() -> None:
    asked = question(1, workload=Workload(input_tokens=50_000, output_tokens=500, sessions=12))
    best = search_layouts(asked, holding(3)).winner
    assert best is not None
    assert best.misses == ("it holds 3 of 12 sessions",)
    assert best.overrun == pytest.approx(4.0)


def test_pools_isolate_the_token_time_when_prefills_would_stall_it() -> None:
    slo = Slo(token_seconds=0.025)
    asked = question(slo=slo, workload=Workload(input_tokens=100_000, output_tokens=500, sessions=20))
    found = search_layouts(asked, holding(4))
    best = found.winner
    assert best is not None
    assert best.arrangement.decode is not None
    assert best.misses == ()
    without = search_layouts(replace(asked, space=LayoutSpace(pools=False)), holding(4)).winner
    assert without is not None
    assert without.misses


def test_every_candidate_stays_within_devices_and_capacity_when_ranked() -> None:
    found = search_layouts(question(16, geometry=mixture()), holding(4))
    assert found.ranked
    for one in found.ranked:
        assert one.devices == arrangement_devices(VLLM, one.arrangement) <= 16
        assert 1 <= one.sessions <= one.holds


def test_layouts_that_do_not_fit_are_kept_with_their_reason_when_tried() -> None:
    def small(layout: Layout) -> Capacity:
        if layout.tp == 1:
            raise LayoutError("the weights alone take 90 GiB of 80 on each rank", advice="use more ranks")
        return holding(0.2 if layout.tp == 2 else 4)(layout)

    found = search_layouts(question(space=LayoutSpace(sizes=(1, 2, 4))), small)
    reasons = {one.layout: one.reason for one in found.unfit}
    assert reasons[Layout()] == "the weights alone take 90 GiB of 80 on each rank"
    assert reasons[Layout(tp=2)] == "it holds 0.40 requests of this length"
    assert (
        len(found.unfit) + len({c.arrangement.layout for c in found.ranked if c.arrangement.decode is None})
        == found.tried
    )


def test_a_request_longer_than_the_engine_takes_does_not_fit_when_asked() -> None:
    asked = question(1, workload=Workload(input_tokens=250_000, output_tokens=1))
    found = search_layouts(asked, holding(4))
    assert found.winner is None
    assert found.unfit[0].reason == "its longest request is 200,000 tokens, 250,001 are asked"
    assert len(found.explanation) == 3
    assert "None of 1 layouts" in found.explanation[0]


def test_winner_is_explained_in_three_sentences_when_found() -> None:
    found = search_layouts(question(slo=Slo(first_token_seconds=60)), holding(4))
    assert len(found.explanation) == 3
    winner, reached, comparison = found.explanation
    assert "meets all that was asked" in winner
    assert "H100" in winner
    assert "first token of 100,000" in reached
    assert "$" in reached
    assert f"Of {found.tried} layouts" in comparison
    for sentence in found.explanation:
        assert sentence.endswith(".")


def test_nearest_is_explained_when_nothing_keeps_the_slo() -> None:
    found = search_layouts(question(slo=Slo(first_token_seconds=0.01)), holding(4))
    assert found.winner is not None
    assert "comes nearest, but misses: first token after" in found.explanation[0]


def test_given_layouts_alone_are_tried_when_named() -> None:
    found = search_layouts(question(), holding(4), layouts=[Layout(tp=4)])
    assert found.tried == 1
    assert {c.arrangement.layout for c in found.ranked} == {Layout(tp=4)}


def test_result_is_the_same_when_the_layouts_come_in_another_order() -> None:
    layouts = possible_layouts(dense(), VLLM, 8)
    forward = search_layouts(question(), holding(4), layouts=layouts)
    backward = search_layouts(question(), holding(4), layouts=layouts[::-1])
    assert [c.arrangement for c in forward.ranked] == [c.arrangement for c in backward.ranked]


def test_capacity_is_asked_once_per_layout_when_searching() -> None:
    calls: list[Layout] = []

    def counted(layout: Layout) -> Capacity:
        calls.append(layout)
        return holding(4)(layout)

    found = search_layouts(question(64, geometry=mixture()), counted)
    assert len(calls) == found.tried == len(set(calls))


def test_engine_layouts_are_translated_when_timed() -> None:
    # SGLang's prefill-CP ranks lie inside TP: 8 ranks in groups of 4 are TP 2 beside CP 4
    assert prefill_layout(SGLANG, Layout(tp=8, pcp=4)) == Layout(tp=2, pcp=4)
    # vLLM's DP ranks share the experts of all: attention DP in one group of 8
    spread = Layout(tp=2, dp=4, ep=8)
    assert prefill_layout(VLLM, spread) == Layout(tp=8, dp=4, ep=8, dp_attention=True)
    # vLLM's PCP ranks decode requests of their own, unless DCP shards the cache over them
    assert decode_layout(VLLM, Layout(tp=2, pcp=4)).dp == 4
    assert decode_layout(VLLM, Layout(tp=2, pcp=4, dcp=8)) == Layout(tp=2, dcp=8)
    assert decode_layout(VLLM, Layout(tp=8, dcp=2)) == Layout(tp=8, dcp=2)


def test_real_capacities_decide_when_searching_from_a_launch() -> None:
    # 32 layers x 218 M + 1,050 M = 8.0 G weights = 16 GB in bf16; a session of 101,000 tokens is 13.2 GB of cache
    # (32 x 8 x 256 x 2 B = 131,072 B a token): one 80 GB device holds a few, and no more
    found = search_devices(
        dense(),
        Launch(engine=VLLM, version="0.32.0"),
        Hardware(device=DEVICE, count=1),
        Workload(input_tokens=100_000, output_tokens=1000),
    )
    assert found.winner is not None
    assert found.tried == 1
    assert 3 <= found.winner.holds <= 4


def test_missing_memory_is_told_per_rank_when_no_layout_fits() -> None:
    # 200 layers x 218 M x 2 B = 87 GB of weights on one 80 GB device
    found = search_devices(
        dense(200),
        Launch(engine=VLLM, version="0.32.0"),
        Hardware(device=DEVICE, count=1),
        Workload(input_tokens=120_000, output_tokens=1000),
    )
    assert found.ranked == ()
    (only,) = found.unfit
    assert "stage 0 may use" in only.reason
    assert "too much" in only.reason
    assert found.explanation[1].startswith("The widest, TP1: nothing is left for a KV cache: stage 0 may use")


def test_sglang_gets_one_token_more_of_window_when_launched() -> None:
    assert window_tokens(SGLANG, 101_000) == 101_001
    assert window_tokens(VLLM, 101_000) == 101_000
    found = search_devices(
        dense(),
        Launch(engine=SGLANG, version="0.5.23"),
        Hardware(device=DEVICE, count=2),
        Workload(input_tokens=100_000, output_tokens=1000),
    )
    assert found.winner is not None


@pytest.mark.parametrize(
    "values",
    [{"input_tokens": 10, "output_tokens": 0}, {"input_tokens": 10, "output_tokens": 1, "cached_tokens": 10}],
)
def test_a_workload_that_is_none_is_refused_when_made(values: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="make no workload"):
        Workload(**values)


def test_no_devices_are_refused_when_searching() -> None:
    with pytest.raises(UsageError, match="0 devices"):
        search_layouts(question(hardware=Hardware(device=DEVICE, count=0)), holding(1))
