"""`longproof plan` and `longproof inspect MODEL`: exit codes, JSON, the picture, and what bad input gets."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from longproof.claim.timed_points import timed_points
from longproof.cli.inspect import names_model
from longproof.cli.main import run
from longproof.errors import EXIT_GATE_FAILED, EXIT_OK, EXIT_UNDECIDED, EXIT_USER_ERROR
from longproof.testing import HONEST, LyingEngine

LLAMA_8B = {
    "model_type": "llama", "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    "hidden_size": 4096, "vocab_size": 128_256, "intermediate_size": 14_336, "torch_dtype": "bfloat16",
    "max_position_embeddings": 131_072,
}  # fmt: skip


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA_8B))
    return str(path)


def planned(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = EXIT_OK) -> str:
    """What the command says on stdout."""
    assert run(("plan", *arguments)) == code
    out, err = capsys.readouterr()
    assert err == ""
    return out


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What a command that cannot be meant says on stderr."""
    assert run(arguments) == EXIT_USER_ERROR
    out, err = capsys.readouterr()
    assert out == ""
    assert "Traceback" not in err
    assert "next:" in err
    return err


def test_the_card_has_every_part_when_the_device_is_known(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    out = planned(capsys, model, "--device", "h100-sxm", "--engine-version", "0.32.0", "--load", "2x32k")
    for part in ("fits", "Memory of one rank", "Capacity:", "Now:", "What the engine will print", "Prefill", "USD per"):
        assert part in out


def test_json_says_the_same_when_asked_for(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    out = planned(
        capsys, model, "--available-kv-gib", "16", "--engine-version", "0.32.0", "--json", code=EXIT_GATE_FAILED
    )
    document = json.loads(out)
    # 16 GiB / (131,072 B x 16) = 8,192 blocks = 131,072 tokens; one block is the null block, so one request less
    assert document["capacity"]["report"]["tokens"] == 131_072
    assert document["judgement"]["value"]["verdict"]["kind"] == "reject"
    assert document["speeds"] == {"unknown": "no device is named"}


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (["--available-kv-gib", "17"], EXIT_OK),
        (["--available-kv-gib", "17", "--load", "1x64k"], EXIT_GATE_FAILED),  # it would wait
        (["--available-kv-gib", "4"], EXIT_GATE_FAILED),  # the engine would not start
        ([], EXIT_UNDECIDED),
    ],
)
def test_the_exit_code_says_whether_it_may_enter(
    model: str, options: list[str], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert planned(capsys, model, *options, code=code)


def test_the_picture_is_one_whole_svg_when_drawn(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "plan.svg"
    planned(capsys, model, "--device", "h100-sxm", "--tp", "2", "--pp", "2", "--picture", str(picture))
    root = ET.fromstring(picture.read_text(encoding="utf-8"))
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    text = picture.read_text(encoding="utf-8")
    assert "Memory of one rank by stage" in text
    assert "Requests at once by length" in text
    assert "#fd" not in text  # every colour became one of the theme's


def test_the_best_layout_is_explained_when_searching(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    out = planned(capsys, model, "--device", "h100-sxm", "--search", "--devices", "4", "--input", "100k")
    assert "Best of" in out
    assert "layouts" in out


@pytest.mark.parametrize(
    ("engine", "target", "words"),
    [
        ("vllm", "vllm", ["vllm serve", "--tensor-parallel-size 2", "--max-model-len 65536"]),
        ("sglang", "sglang", ["sglang", "--context-length 65536"]),
        ("vllm", "k8s", ["kind: LeaderWorkerSet"]),
    ],
)
def test_the_launch_is_printed_alone_when_emitted(
    model: str, engine: str, target: str, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--engine", engine, "--device", "h100-sxm", "--tp", "2", "--context", "64Ki", "--emit", target)
    out = planned(capsys, model, *options)
    assert [word for word in words if word not in out] == []
    assert "Memory of one rank" not in out


def test_geometry_is_shown_when_a_model_is_inspected(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(("inspect", model)) == EXIT_OK
    out = capsys.readouterr().out
    assert "32 full" in out
    assert "8,030,261,248" in out
    assert "131,072 B per token" in out


def test_speeds_come_from_a_proof_when_calibrating(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evidence = str(tmp_path / "evidence")
    # 51, 102 and 205 ms of prefill: what a busy machine adds is no more than what the lengths differ by
    with LyingEngine(HONEST.but(prefill_tokens_per_s=10_000.0)) as url:
        proof = ("prove", url, "--only", "speed", "--lengths", "512,1024,2048", "--repeats", "2", "--out", evidence)
        assert run(proof) == EXIT_OK
    capsys.readouterr()
    options = (model, "--device", "h100-sxm", "--context", "8Ki", "--json")
    published = json.loads(planned(capsys, *options))["speeds"]["value"]
    own = json.loads(planned(capsys, *options, "--calibrate", evidence))["speeds"]["value"]
    assert any("calibrated on" in note for note in own["prefill"]["notes"])
    assert own["prefill"]["seconds"] != published["prefill"]["seconds"]
    assert [point.tokens for point in timed_points(Path(evidence)).prefill] == [512, 1024, 2048]


@pytest.mark.parametrize(
    ("target", "is_model"),
    [
        ("meta-llama/Llama-3.1-8B", True),
        ("model.gguf", True),
        ("http://127.0.0.1:8000", False),
        ("localhost:8000", False),
        ("127.0.0.1:8000/v1", False),
        ("api.example.org/v1", False),
        ("localhost/v1", False),
    ],
)
def test_a_model_is_told_from_a_server_by_its_name(target: str, is_model: bool) -> None:
    assert names_model(target) is is_model


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--device", "h1000"], "h100-sxm"),
        (["--tp", "5"], "32"),
        (["--partition", "20,10"], "32 layers"),
        (["--context", "100", "--output", "200"], "leaves no room"),
        (["--load", "many"], "3x64k"),
        (["--available-kv-gib", "much"], "GiB"),
        (["--available-kv-gib", "1,2,3"], "3 amounts"),
        (["--kv-dtype", "fp3", "--available-kv-gib", "4"], "fp3"),
        (["--speculate", "mtp"], "mtp:1"),
        (["--pool-tokens", "5000"], "--engine sglang"),
        (["--engine", "sglang", "--emit", "vllm", "--pool-tokens", "500k"], "sglang"),
        (["--calibrate", "."], "--device"),
        (["--search"], "--device"),
        (["--picture", "gone/plan.svg"], "--device or --available-kv-gib"),
    ],
)
def test_what_to_change_is_said_when_options_cannot_be_meant(
    model: str, options: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert words in refused(capsys, "plan", model, *options)


def test_the_amount_per_rank_is_said_when_weights_exceed_memory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**LLAMA_8B, "num_hidden_layers": 160}))
    err = refused(capsys, "plan", str(path), "--device", "rtx-4090", "--tp", "2")
    assert "on each of 2 ranks" in err
    assert "too much" in err


def test_the_missing_field_is_named_when_an_architecture_is_unknown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "something_new", "hidden_size": 4096}))
    assert "num_hidden_layers" in refused(capsys, "plan", str(path))
    assert "num_hidden_layers" in refused(capsys, "inspect", str(path))


def test_evidence_without_times_is_refused_when_calibrating(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evidence = str(tmp_path / "evidence")
    with LyingEngine(HONEST) as url:
        run(("prove", url, "--only", "accounting", "--out", evidence))
    capsys.readouterr()
    options = ("--device", "h100-sxm", "--calibrate", evidence)
    assert "no timed prompts" in refused(capsys, "plan", model, *options)


def test_a_file_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert "gone.json" in refused(capsys, "plan", "gone.json")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--available-kv-gib", "inf"], "no amount of memory"),
        (["--available-kv-gib", "-1"], "no amount of memory"),
        (["--weights-gib", "nan"], "cannot be"),
        (["--watermark", "nan"], "no share"),
        (["--risk", "2"], "not a probability"),
        (["--usd-per-hour", "-2"], "cannot be"),
        (["--context", "0"], "leaves nothing to plan"),
        (["--input", "9" * 400], "more tokens than can be meant"),
    ],
)
def test_numbers_no_launch_can_have_are_refused_when_given(
    model: str, options: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert words in refused(capsys, "plan", model, "--device", "h100-sxm", *options)


@pytest.mark.parametrize(
    ("field", "value"), [("num_attention_heads", 0), ("num_hidden_layers", 99_999_999), ("head_dim", -8)]
)
def test_sizes_no_model_has_are_refused_when_inspected(
    field: str, value: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**LLAMA_8B, field: value}))
    assert "missing" in (err := refused(capsys, "inspect", str(path))) or field in err
