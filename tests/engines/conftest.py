"""A GGUF file small enough to be written by hand; test servers of this directory can be imported."""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

MakeGguf = Callable[..., Path]


def _text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


@pytest.fixture
def tiny_gguf(tmp_path: Path) -> MakeGguf:
    """``tiny_gguf("name.gguf", architecture="llama", context_length=64)``: a whole file with two small tensors."""

    def make(name: str = "tiny.gguf", *, architecture: str = "llama", context_length: int | None = 64) -> Path:
        entries = [
            _text("general.architecture") + struct.pack("<I", 8) + _text(architecture),
            _text("general.name") + struct.pack("<I", 8) + _text("Tiny"),
            _text(f"{architecture}.block_count") + struct.pack("<II", 4, 3),
            _text("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, 2) + _text("a") + _text("b"),
            _text("tokenizer.ggml.scores") + struct.pack("<IIQff", 9, 6, 2, 0.0, 1.0),
            _text("general.quantized") + struct.pack("<I?", 7, True),
        ]
        if context_length is not None:
            entries.append(_text(f"{architecture}.context_length") + struct.pack("<II", 4, context_length))
        # f32: 64 × 4 = 256 bytes from 0 on; q8_0 (type 8): 32 elements = one block of 34 bytes, from 256 on
        tensors = [
            _text("token_embd.weight") + struct.pack("<IQQIQ", 2, 8, 8, 0, 0),
            _text("output.weight") + struct.pack("<IQIQ", 1, 32, 8, 256),
        ]
        head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(entries)) + b"".join(entries) + b"".join(tensors)
        path = tmp_path / name
        path.write_bytes(head + bytes(-len(head) % 32) + bytes(256 + 34))
        return path

    return make
