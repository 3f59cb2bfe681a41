"""vLLM releases and defaults: what changes with the version, the device and the usage."""

from __future__ import annotations

import pytest

from longproof.plan.capacity import Device, Launch, Layout, PlanEngine, Speculation
from longproof.plan.vllm_defaults import concurrent_batches, default_batched_tokens, default_block_tokens
from longproof.plan.vllm_release import NEWEST, LogLine, parse_release, rules_for
from longproof.testing import geometries as models

GIB = 1 << 30


@pytest.mark.parametrize(
    ("text", "release"),
    [
        ("0.20.2rc1.dev249 (community build)", (0, 20)),
        ("v0.32.0+cpu", (0, 32)),
        ("0.1.dev20073+g8e685d198", None),  # a build that knows no tag
        ("not recorded", None),
        ("", None),
    ],
)
def test_a_release_is_read_when_the_text_names_one(text: str, release: tuple[int, int] | None) -> None:
    assert parse_release(text) == release


def test_the_newest_rules_are_taken_when_no_release_is_given() -> None:
    assert rules_for("").release == NEWEST
    assert not rules_for("").known


def test_both_token_lines_are_possible_when_the_release_is_0_20() -> None:
    assert rules_for("0.19.1").log_lines == (LogLine.PER_GROUP,)
    assert set(rules_for("0.20.1").log_lines) == set(LogLine)
    assert rules_for("0.21.0").log_lines == (LogLine.PER_LENGTH,)


def launch(**changes: object) -> Launch:
    return Launch(engine=PlanEngine.VLLM, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "version", "tokens"),
    [
        (launch(device_memory_bytes=80 * GIB, device_name="H100-80GB"), "0.32", 8192),
        (launch(device_memory_bytes=80 * GIB, device_name="H100-80GB", offline=True), "0.32", 16_384),
        (launch(device_memory_bytes=80 * GIB, device_name="A100-80GB"), "0.32", 2048),
        (launch(device_memory_bytes=192 * GIB, device_name="MI300X"), "0.32", 16_384),
        (launch(device_memory_bytes=192 * GIB, device_name="MI300X"), "0.27", 8192),  # before the largest doubled
        (launch(device_memory_bytes=24 * GIB, device_name="RTX 4090", offline=True), "0.32", 8192),
        (launch(device=Device.CPU, layout=Layout(tp=2, pp=2)), "0.32", 8192),  # 2,048 x 4 workers
        (launch(device=Device.TPU, device_name="TPU v5e"), "0.32", 512),
        (launch(max_num_batched_tokens=777), "0.32", 777),
        (launch(max_num_seqs=2, max_model_len_tokens=512), "0.32", 1024),  # two requests cannot fill more
    ],
)
def test_batched_tokens_follow_device_and_usage_when_not_given(given: Launch, version: str, tokens: int) -> None:
    assert default_batched_tokens(given, rules_for(version)) == tokens


@pytest.mark.parametrize(
    ("given", "version", "batches"),
    [
        (launch(), "0.19.0", 1),  # earlier releases reserved one batch
        (launch(), "0.32.0", 2),
        (launch(async_scheduling=False), "0.32.0", 1),
        (launch(device=Device.CPU), "0.32.0", 1),
        (launch(speculation=Speculation(method="ngram", tokens=4)), "0.32.0", 1),
        (launch(layout=Layout(pp=4)), "0.32.0", 5),
        (launch(layout=Layout(pp=4), async_scheduling=False), "0.32.0", 4),
    ],
)
def test_batches_in_flight_follow_the_scheduler(given: Launch, version: str, batches: int) -> None:
    assert concurrent_batches(given, rules_for(version)) == batches


def test_the_block_follows_the_backend_when_not_given() -> None:
    assert default_block_tokens(models.uniform(2, 8, 128), launch()) == 16
    assert default_block_tokens(models.uniform(2, 8, 128), launch(device=Device.CPU)) == 128
    assert default_block_tokens(models.glm5(), launch(device_name="RTX PRO 6000")) == 64
    assert default_block_tokens(models.deepseek_r1(), launch(device_name="H200")) == 64
    assert default_block_tokens(models.deepseek_r1(), launch(device_name="RTX PRO 6000")) == 16
    assert default_block_tokens(models.deepseek_r1(), launch(block_size_tokens=32)) == 32
    # a sixteenth of the window, at most 256
    tpu = launch(device=Device.TPU, max_model_len_tokens=2048)
    assert default_block_tokens(models.uniform(2, 8, 128), tpu) == 128
