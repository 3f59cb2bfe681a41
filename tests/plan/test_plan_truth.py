"""benchmarks/plan_truth.py: what it prints and returns for reports that hold, do not hold, mislead, or lack a model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
MODELS = [
    {
        "model": "small",
        "config": {
            "model_type": "llama",
            "num_hidden_layers": 30,
            "num_attention_heads": 9,
            "num_key_value_heads": 3,
            "head_dim": 64,
            "hidden_size": 576,
            "max_position_embeddings": 8192,
            "torch_dtype": "bfloat16",
        },
        "aliases": ["other/small (same dimensions)"],
    }
]
# A server that was really started: 1 GiB, 364 blocks of 128 tokens, 364 / 64 = 5.69 requests of 8,192
STARTED = {
    "id": "started",
    "engine": "vllm",
    "engine_version": "0.32.0",
    "model": "small",
    "gpu": "CPU",
    "kv_cache_dtype": "bfloat16",
    "max_model_len": 8192,
    "block_size": 128,
    "arch": "gqa",
    "test_class": "exact",
    "observed": {"kv_cache_memory_bytes": 1 << 30, "kv_cache_tokens": 46_592, "max_concurrency": 5.69},
}


def run(tmp_path: Path, *cases: dict[str, object]) -> tuple[int, list[str]]:
    rows, models = tmp_path / "cases.jsonl", tmp_path / "models.jsonl"
    rows.write_text("\n".join(json.dumps(case) for case in cases), encoding="utf-8")
    models.write_text("\n".join(json.dumps(model) for model in MODELS), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "plan_truth.py", rows, models],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(ROOT / "src")},
        check=False,
    )
    return done.returncode, done.stdout.splitlines()


def changed(**observed: object) -> dict[str, object]:
    return {**STARTED, "observed": {**STARTED["observed"], **observed}}  # type: ignore[dict-item]


def test_it_agrees_when_the_figures_are_what_the_server_printed(tmp_path: Path) -> None:
    code, lines = run(tmp_path, STARTED, {**STARTED, "id": "alias", "model": "other/small"})

    assert code == 0
    assert lines[-1] == "agree 2 of 2 (exact, exact-ratio, exact-need)"


def test_it_disagrees_when_one_figure_is_a_block_off(tmp_path: Path) -> None:
    code, lines = run(tmp_path, STARTED, changed(kv_cache_tokens=46_592 + 128))

    assert code == 1
    assert lines[-1] == "agree 1 of 2 (exact, exact-ratio, exact-need)"
    assert any(line.startswith("  started: 364 to 364 blocks") for line in lines)


def test_a_logged_gib_allows_its_rounding_when_no_exact_bytes_are_given(tmp_path: Path) -> None:
    # 1.00 GiB stands for 0.995 to 1.005: 362 to 365 blocks. 365 blocks x 128 = 46,720 tokens, 5.70 requests
    rounded = changed(
        kv_cache_memory_bytes=None, available_kv_memory_gib=1.0, kv_cache_tokens=46_720, max_concurrency=5.70
    )
    beyond = changed(
        kv_cache_memory_bytes=None, available_kv_memory_gib=1.0, kv_cache_tokens=46_848, max_concurrency=5.72
    )

    assert run(tmp_path, rounded)[0] == 0
    assert run(tmp_path, beyond)[0] == 1


def test_a_case_is_not_counted_when_its_model_is_not_known(tmp_path: Path) -> None:
    code, lines = run(tmp_path, STARTED, {**STARTED, "id": "strange", "model": "unheard/of"})

    assert code == 0
    assert lines[-1] == "agree 1 of 1 (exact, exact-ratio, exact-need)"
    assert any("strange" in line and "does not list unheard/of" in line for line in lines)


def test_a_refusal_agrees_when_need_and_longest_request_are_what_was_said(tmp_path: Path) -> None:
    # 8,192 tokens take 64 x 2,949,120 B = 0.18 GiB; 0.10 GiB hold 36 blocks, one is the null block: 35 x 128 = 4,480
    observed = {
        "refused": True,
        "needed_kv_gib": 0.18,
        "kv_cache_memory_bytes": 107_374_182,
        "estimated_max_model_len": 4480,
    }
    refused = {**STARTED, "test_class": "exact-need", "observed": observed}
    wrong = {**refused, "observed": {**observed, "needed_kv_gib": 0.20}}

    assert run(tmp_path, refused)[0] == 0
    assert run(tmp_path, wrong)[0] == 1


def test_a_log_line_is_called_misleading_when_it_contradicts_itself(tmp_path: Path) -> None:
    wrong = {**changed(kv_cache_memory_bytes=None, kv_cache_tokens=1000), "test_class": "log-wrong"}

    code, lines = run(tmp_path, STARTED, wrong)

    assert code == 0
    # 5.69 x 8,192 is about 47,000
    assert any("misleading" in line and "about 47000 tokens" in line for line in lines)


def test_a_report_without_a_figure_is_no_agreement_when_counted(tmp_path: Path) -> None:
    code, lines = run(tmp_path, {**STARTED, "observed": {"available_kv_memory_gib": 1.0}})
    assert lines[-1] == "agree 0 of 0 (exact, exact-ratio, exact-need)"
    assert "no figure that a prediction could miss" in "\n".join(lines)
    assert code == 0


def test_blocks_alone_are_compared_when_the_bytes_are_known(tmp_path: Path) -> None:
    # 1 GiB / (30 x 3 heads x 128 values x 2 B x 128 tokens) = 364
    right = {**STARTED, "observed": {"kv_cache_memory_bytes": 1 << 30, "kv_cache_blocks": 364}}
    wrong = {**STARTED, "observed": {"kv_cache_memory_bytes": 1 << 30, "kv_cache_blocks": 365}}
    assert run(tmp_path, right)[0] == 0
    assert run(tmp_path, wrong)[0] == 1


def test_a_line_that_is_no_object_is_named_when_reading_cases(tmp_path: Path) -> None:
    cases, models = tmp_path / "cases.jsonl", tmp_path / "models.jsonl"
    cases.write_text("{}\n[1]\n", encoding="utf-8")
    models.write_text("", encoding="utf-8")
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "plan_truth.py", cases, models],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(ROOT / "src")},
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr == f"error: {cases}, line 2: not an object\n"
