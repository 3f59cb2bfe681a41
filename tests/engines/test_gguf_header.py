"""The GGUF reader says what a model is and refuses what is not whole."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from longproof.engines.gguf_header import read_gguf_header
from longproof.errors import ModelFileError


def test_the_header_is_read_when_the_file_is_whole(tiny_gguf: Callable[..., Path]) -> None:
    path = tiny_gguf()
    header = read_gguf_header(path)
    assert (header.version, header.architecture, header.name) == (3, "llama", "Tiny")
    assert (header.trained_tokens, header.layers, header.tensors) == (64, 3, 2)
    assert header.parameters == 8 * 8 + 32
    assert header.needed_bytes == path.stat().st_size
    assert header.metadata["general.quantized"] is True
    assert "tokenizer.ggml.tokens" not in header.metadata


def test_the_trained_length_is_unknown_when_the_file_does_not_say(tiny_gguf: Callable[..., Path]) -> None:
    assert read_gguf_header(tiny_gguf(context_length=None)).trained_tokens is None


def test_a_file_is_refused_when_it_is_cut_at_any_byte(tiny_gguf: Callable[..., Path], tmp_path: Path) -> None:
    whole = tiny_gguf().read_bytes()
    cut = tmp_path / "cut.gguf"
    for length in range(len(whole)):
        cut.write_bytes(whole[:length])
        with pytest.raises(ModelFileError) as caught:
            read_gguf_header(cut)
        # below the magic number it is no GGUF at all, from there on it is one that is cut short
        assert ("cut short" in caught.value.problem) == (length >= 4), length


def test_the_missing_bytes_are_named_when_the_data_is_cut(tiny_gguf: Callable[..., Path]) -> None:
    path = tiny_gguf()
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with pytest.raises(ModelFileError, match=f"has {len(whole) - 1:,} bytes of the {len(whole):,}"):
        read_gguf_header(path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "it is empty"),
        (b"PK\x03\x04 a zip file", "begins with b'PK"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "GGUF version 1"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**60, 0), "entries of one kind"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**50), "a text of"),
        (b"GGUF" + struct.pack("<IQQQ1sI", 3, 0, 1, 1, b"k", 99), "unknown type 99"),
    ],
)
def test_a_file_is_refused_with_the_reason_when_it_makes_no_sense(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "odd.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelFileError) as caught:
        read_gguf_header(path)
    assert words in caught.value.problem
    assert "GGUF" in caught.value.advice


def test_a_path_is_refused_when_it_is_missing_or_a_directory(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="there is no model file"):
        read_gguf_header(tmp_path / "missing.gguf")
    with pytest.raises(ModelFileError, match="is a directory"):
        read_gguf_header(tmp_path)


@pytest.mark.engine
def test_the_needed_bytes_are_the_file_size_when_the_model_is_real(demo_model: Path) -> None:
    header = read_gguf_header(demo_model)
    assert header.needed_bytes == demo_model.stat().st_size == 98_362_432
    assert (header.trained_tokens, header.layers, header.tensors) == (8_192, 30, 272)
    assert header.parameters == 134_515_008
