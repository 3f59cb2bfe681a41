"""GGUF file → Hugging Face directory: safetensors in bfloat16, tokenizer, chat template.

    python scripts/gguf_to_hf.py GGUF DIR

Runs in the environment of scripts/setup_vllm_cpu.py, which has torch and transformers but not longproof; called
by scripts/export_smollm2.py. transformers 5.19 unpacks a GGUF with `GgufConfig(dequantize=True)`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig


def convert(gguf: Path, target: Path) -> None:
    """Writes the directory. The weights are the file's own, so the quantization's error stays in them."""
    folder = str(gguf.parent)
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=gguf.name)
    if not tokenizer.chat_template:
        raise SystemExit(f"{gguf} carries no chat template")
    model = AutoModelForCausalLM.from_pretrained(
        folder, gguf_file=gguf.name, quantization_config=GgufConfig(dequantize=True), dtype=torch.bfloat16
    )
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
