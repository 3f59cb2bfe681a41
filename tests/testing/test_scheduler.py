"""Which request gets what in a step: the decisions, without a server or a clock."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from longproof.testing import LLAMACPP, VLLM, Behaviour
from longproof.testing.lies_of_load import StarveLong, StarveShort, Thrash
from longproof.testing.scheduler import Scheduler, Seat, Step

NS_PER_S = 1_000_000_000


def scheduler(**changes: object) -> Scheduler:
    return Scheduler(Behaviour(dialect=VLLM, window_tokens=4096).but(**changes), lambda: 0)


def seat(under_test: Scheduler, prompt: int, output: int = 4, **changes: object) -> Seat:
    made = Seat(need_tokens=prompt + output, prompt_tokens=prompt, output_tokens=output, **changes)
    under_test.queue(made)
    return made


def step(under_test: Scheduler, now_ns: int = 0) -> list[tuple[int, int]]:
    """One step: (prompt length, tokens) of each part."""
    planned: Step = under_test.plan(now_ns)
    parts = [(part.prompt_tokens, tokens) for part, tokens in planned.parts]
    under_test.finish(planned)
    return parts


def test_answers_go_on_beside_a_prompt_in_chunks_when_a_step_has_a_budget() -> None:
    under_test = scheduler(step_tokens=100)
    seat(under_test, 40)
    assert step(under_test) == [(40, 40)]
    seat(under_test, 250)
    # one token of the answer, and what is left of 100 for the prompt: 99, 99, 52
    assert [step(under_test) for _ in range(3)] == [[(40, 1), (250, 99)], [(40, 1), (250, 99)], [(40, 1), (250, 52)]]


def test_blocks_grow_with_a_request_when_the_dialect_has_it_so() -> None:
    vllm, llamacpp = scheduler(step_tokens=32), scheduler(dialect=LLAMACPP, step_tokens=32)
    for under_test in (vllm, llamacpp):
        seat(under_test, 64, 16)
        step(under_test)
    assert vllm.gauges.used_tokens == 32  # 2 blocks of 16 for the first chunk
    assert llamacpp.gauges.used_tokens == 80  # prompt + allowance at once
    step(vllm)
    step(vllm)
    assert vllm.gauges.used_tokens == 80  # 64 of the prompt and 1 of the answer: a fifth block


def test_youngest_loses_its_blocks_and_is_next_in_the_queue_when_the_pool_is_full() -> None:
    # 8 blocks of 16: two prompts of 64 take 4 each, and the first token of an answer needs a ninth
    under_test = scheduler(kv_capacity_tokens=128)
    old, young = seat(under_test, 64, 20), seat(under_test, 64, 20)
    later = seat(under_test, 16, 20)
    step(under_test)
    assert (old.produced, young.produced, later.produced) == (1, 1, 0)
    assert step(under_test) == [(64, 1)]
    assert (young.preemptions, young.recomputed_tokens, young.blocks, under_test.preemptions) == (1, 64, 0, 1)
    assert (under_test.running, under_test.waiting) == (1, 2)
    for _ in range(18):
        step(under_test)
    assert old.done
    assert step(under_test)[0] == (64, 65)  # the whole prompt and the token it had, before the later one
    for _ in range(40):
        step(under_test)
    assert (young.done, later.done, under_test.used_tokens) == (True, True, 0)


def test_request_waits_for_room_for_all_of_its_prompt_when_another_is_still_being_read() -> None:
    under_test = scheduler(kv_capacity_tokens=320, step_tokens=64)
    seat(under_test, 256)
    step(under_test)  # holds 64 tokens, and 192 are kept for it: 64 of 320 are left
    seat(under_test, 80)
    assert step(under_test) == [(256, 64)]
    seat(under_test, 16)
    assert step(under_test) == [(256, 64)]  # first come, first served


def test_watermark_stays_free_when_others_run() -> None:
    under_test = scheduler(kv_capacity_tokens=160, watermark=0.3)
    seat(under_test, 64, 1)
    seat(under_test, 64, 1)  # 4 + 4 blocks fit into 10, but 3 must stay free
    assert step(under_test) == [(64, 64)]
    assert step(under_test) == [(64, 64)]


def test_cached_tokens_are_not_computed_unless_the_request_was_preempted() -> None:
    under_test = scheduler()
    warm = seat(under_test, 100, look_up=lambda: 96)
    assert step(under_test) == [(100, 4)]
    assert (warm.cached, warm.produced) == (96, 1)
    all_there = seat(under_test, 100, look_up=lambda: 100)
    assert step(under_test) == [(100, 1), (100, 1)]  # its last token has to be computed for the first one of the answer
    assert all_there.produced == 1


def test_several_tokens_come_in_a_step_when_drafts_are_accepted() -> None:
    under_test = Scheduler(Behaviour(dialect=VLLM, speculation=4), lambda: 3)
    speaking = seat(under_test, 10, 10)
    produced = []
    for _ in range(4):
        step(under_test)
        produced.append(speaking.produced)
    assert produced == [1, 5, 9, 10]  # a first one, 1 + 3 twice, and no more than asked
    assert speaking.done


def test_gauges_show_the_last_step_when_something_changed_since() -> None:
    under_test = scheduler()
    asked = seat(under_test, 10)
    assert (under_test.gauges.running, under_test.gauges.waiting) == (0, 0)
    step(under_test)
    assert under_test.gauges.running == 1
    under_test.leave(asked)
    assert (under_test.running, under_test.gauges.running) == (0, 1)
    step(under_test)
    assert under_test.gauges.running == 0


def test_request_leaves_between_two_steps_when_its_client_goes_in_the_middle_of_one() -> None:
    under_test = scheduler()
    asked = seat(under_test, 10)
    planned = under_test.plan(0)
    under_test.leave(asked)
    assert under_test.used_tokens == 16
    under_test.finish(planned)
    assert (under_test.used_tokens, under_test.running) == (0, 0)


def test_nobody_else_gets_anything_when_a_long_prompt_starves_the_short() -> None:
    lies = (StarveShort(above_tokens=100),)
    under_test = scheduler(step_tokens=100)
    seat(under_test, 10, lies=())
    step(under_test)
    seat(under_test, 250, lies=lies)
    seat(under_test, 10)
    assert [step(under_test) for _ in range(3)] == [[(250, 100)], [(250, 100)], [(250, 50)]]
    assert len(step(under_test)) == 3


def test_long_prompt_waits_until_it_is_calm_when_the_long_starve() -> None:
    under_test = scheduler()
    seat(under_test, 500, lies=(StarveLong(calm_s=1.0),))
    seat(under_test, 10, 1)
    assert step(under_test, 0) == [(10, 10)]
    assert step(under_test, NS_PER_S // 2) == []
    seat(under_test, 20, 1)
    assert step(under_test, NS_PER_S) == [(20, 20)]
    assert step(under_test, 2 * NS_PER_S - 1) == []
    assert step(under_test, 2 * NS_PER_S) == [(500, 500)]


def test_blocks_are_lost_again_and_again_when_it_thrashes() -> None:
    under_test = scheduler()
    lies = (Thrash(every_tokens=4, running=2),)
    first, second = seat(under_test, 50, 12, lies=lies), seat(under_test, 50, 12)
    for _ in range(40):
        step(under_test)
    # it lost them after 4 and after 8 tokens, and could have done so at the end only after the twelfth
    assert (first.done, second.done, first.preemptions, second.preemptions) == (True, True, 2, 0)
    assert first.recomputed_tokens == (50 + 3) + (50 + 7)


@given(
    st.lists(st.tuples(st.integers(1, 300), st.integers(1, 60), st.integers(0, 30)), min_size=1, max_size=12),
    st.booleans(),
)
def test_all_end_and_no_block_is_lost_whatever_comes(requests: list[tuple[int, int, int]], grows: bool) -> None:
    under_test = scheduler(kv_capacity_tokens=400, step_tokens=64, grows=grows, slots=4)
    coming, seats = sorted(requests, key=lambda request: request[2]), []
    for now in range(3000):
        while coming and coming[0][2] <= now:
            prompt, output, _ = coming.pop(0)
            seats.append(seat(under_test, prompt, output))
        step(under_test)
        assert under_test.blocks.taken == sum(one.blocks for one in seats) <= under_test.blocks.capacity
        assert under_test.running <= 4
        if not coming and all(one.done for one in seats):
            break
    assert all(one.done and one.produced == one.output_tokens for one in seats)
    assert under_test.used_tokens == 0
