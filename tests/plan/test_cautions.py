"""What a plan says beside its figures: limits beyond training, unread releases, speculation without drafts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from longproof.geometry.model import RopeScaling
from longproof.geometry.read import read_geometry
from longproof.plan.capacity import Launch, PlanEngine, Speculation
from longproof.plan.cautions import cautions

MODEL = read_geometry(
    {
        "model_type": "llama", "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "hidden_size": 64, "vocab_size": 100, "intermediate_size": 128, "torch_dtype": "bfloat16",
        "max_position_embeddings": 8192,
    }
)  # fmt: skip


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        (PlanEngine.VLLM, "VLLM_ALLOW_LONG_MAX_MODEL_LEN"),
        (PlanEngine.SGLANG, "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"),
        (PlanEngine.LLAMACPP, "not known"),
    ],
)
def test_a_limit_beyond_training_is_said_when_asked_for(engine: PlanEngine, words: str) -> None:
    (said,) = cautions(MODEL, Launch(engine=engine, max_model_len_tokens=8193))
    assert "8,193" in said
    assert words in said
    assert cautions(MODEL, Launch(engine=engine, max_model_len_tokens=8192)) == ()


@pytest.mark.parametrize(("version", "words"), [("banana", "names no vLLM release"), ("99.0", "newer than the rules")])
def test_a_release_nobody_read_is_said_when_named(version: str, words: str) -> None:
    assert words in cautions(MODEL, Launch(engine=PlanEngine.VLLM, version=version))[0]
    assert cautions(MODEL, Launch(engine=PlanEngine.VLLM, version="0.32.0")) == ()


def test_missing_draft_layers_are_said_when_speculating() -> None:
    launch = Launch(engine=PlanEngine.VLLM, speculation=Speculation(method="mtp", tokens=1))
    assert "no draft layers" in cautions(MODEL, launch)[0]


def test_a_block_no_kernel_takes_is_said_when_given() -> None:
    assert "multiple of 16" in cautions(MODEL, Launch(engine=PlanEngine.VLLM, block_size_tokens=7))[0]
    assert cautions(MODEL, Launch(engine=PlanEngine.VLLM, block_size_tokens=48)) == ()


def test_a_stretched_window_is_no_overreach_when_yarn_is_configured() -> None:
    yarn = replace(MODEL, rope=RopeScaling(kind="yarn", factor=4.0, original_tokens=8192))  # 8,192 x 4 = 32,768
    assert cautions(yarn, Launch(engine=PlanEngine.VLLM, max_model_len_tokens=32_768)) == ()
    assert "32,768 positions" in cautions(yarn, Launch(engine=PlanEngine.VLLM, max_model_len_tokens=32_769))[0]
