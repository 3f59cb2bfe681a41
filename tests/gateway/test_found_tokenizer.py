"""A tokenizer that lies on this machine already."""

from __future__ import annotations

from pathlib import Path

import pytest

from longproof.domain.deployment import Deployment, EngineKind
from longproof.domain.measure import reported
from longproof.gateway.found_tokenizer import found_tokenizer
from longproof.testing.tokenizer_files import write_tokenizer_files

HERE, ELSEWHERE = "http://127.0.0.1:8000", "http://10.0.0.7:8000"


def vllm(root: str, kind: EngineKind = EngineKind.VLLM) -> Deployment:
    return Deployment(engine=kind, model_file=reported(root, "GET /v1/models root"))


def test_a_directory_is_found_when_the_engine_is_on_this_machine(tmp_path: Path) -> None:
    directory = write_tokenizer_files(tmp_path)
    assert found_tokenizer(vllm(str(directory)), HERE) == directory
    assert found_tokenizer(vllm(str(directory)), ELSEWHERE) is None
    assert found_tokenizer(vllm(str(directory / "not there")), HERE) is None
    assert found_tokenizer(vllm(str(directory), EngineKind.LLAMACPP), HERE) is None
    assert found_tokenizer(Deployment(engine=EngineKind.VLLM), HERE) is None


def test_a_repository_is_found_when_it_is_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = tmp_path / "models--Some--Model" / "snapshots" / "abc"
    write_tokenizer_files(snapshot)
    (tmp_path / "models--Some--Model" / "refs").mkdir()
    (tmp_path / "models--Some--Model" / "refs" / "main").write_text("abc")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    assert found_tokenizer(vllm("Some/Model"), ELSEWHERE) == snapshot
    assert found_tokenizer(vllm("Some/Other"), ELSEWHERE) is None
    assert found_tokenizer(vllm("../../etc/passwd"), HERE) is None
    assert found_tokenizer(vllm("just a name"), HERE) is None
