"""What a model is called when only a file says so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from longproof.geometry.hf import read_hf

CONFIG = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 256,
    "max_position_embeddings": 2048,
}


@pytest.mark.parametrize(
    ("file", "name"), [("Tiny-Llama/config.json", "Tiny-Llama"), ("somewhere/Tiny-Llama.json", "Tiny-Llama")]
)
def test_a_model_is_called_after_its_directory_or_its_own_file(file: str, name: str, tmp_path: Path) -> None:
    path = tmp_path / file
    path.parent.mkdir()
    path.write_text(json.dumps(CONFIG))
    assert read_hf(path).name == name
