"""The header of a GGUF file: what the model is, and whether the file is whole. Tensor data is never read.

Layout after the GGUF specification (versions 2 and 3): magic, version, counts, metadata pairs, tensor descriptions,
padding to `general.alignment`, tensor data. Block sizes are those of llama.cpp's gguf-py (GGML_QUANT_SIZES, 2026).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeAlias

from longproof.errors import ModelFileError

Scalar: TypeAlias = int | float | bool | str

_MAGIC = b"GGUF"
_STRING, _ARRAY = 8, 9
_FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_LONGEST_TEXT_BYTES = 1 << 26
_MOST_ENTRIES = 1 << 24
# ggml type → (elements per block, bytes per block); a type that is not here makes the size check weaker, not wrong
_BLOCKS = {
    0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34),
    9: (32, 36), 10: (256, 84), 11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210), 15: (256, 292),
    16: (256, 66), 17: (256, 74), 18: (256, 98), 19: (256, 50), 20: (32, 18), 21: (256, 110), 22: (256, 82),
    23: (256, 136), 24: (1, 1), 25: (1, 2), 26: (1, 4), 27: (1, 8), 28: (1, 8), 29: (256, 56),
    30: (1, 2), 34: (256, 54), 35: (256, 66), 39: (32, 17), 40: (64, 36), 41: (128, 18),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufHeader:
    """What a GGUF file says of itself. `trained_tokens`, `layers`: None = the file does not say.

    `needed_bytes` is how long the file must at least be to hold all its tensors. `parameters` counts tensor elements of
    this file. `metadata` has the scalar entries by key; arrays are left out.
    """

    version: int
    architecture: str
    name: str | None
    trained_tokens: int | None
    layers: int | None
    parameters: int
    tensors: int
    needed_bytes: int
    metadata: dict[str, Scalar]


class _BrokenError(Exception):
    """The header makes no sense; the message says why."""


def read_gguf_header(path: Path) -> GgufHeader:
    """Reads and checks the header. Raises ModelFileError: file missing, unreadable, not a GGUF, or cut short."""
    size_bytes = 0
    try:
        with path.open("rb") as file:
            size_bytes = os.fstat(file.fileno()).st_size
            header = _read(file)
    except FileNotFoundError:
        raise ModelFileError(
            f"there is no model file {path}", advice="check the path, or leave it out to use the default model"
        ) from None
    except IsADirectoryError:
        raise ModelFileError(f"{path} is a directory", advice="name the .gguf file inside it") from None
    except OSError as problem:
        raise ModelFileError(f"{path} cannot be read: {problem.strerror}", advice="check its permissions") from problem
    except _BrokenError as problem:
        raise ModelFileError(f"{path} is not a usable model file: {problem}", advice=_ADVICE) from None
    except RecursionError:
        raise ModelFileError(f"{path} is not a usable model file: its arrays nest too deeply", advice=_ADVICE) from None
    except EOFError:
        raise ModelFileError(
            f"{path} is cut short: it ends inside its header, at {size_bytes:,} bytes", advice=_CUT
        ) from None
    if size_bytes < header.needed_bytes:
        raise ModelFileError(
            f"{path} is cut short: it has {size_bytes:,} bytes of the {header.needed_bytes:,} that its tensors need",
            advice=_CUT,
        )
    return header


_ADVICE = "the embedded engine reads little-endian GGUF files, version 2 or 3; name one of those"
_CUT = "download or copy the file again"


def _read(file: BinaryIO) -> GgufHeader:
    magic = file.read(4)
    if magic != _MAGIC:
        raise _BrokenError("it is empty" if not magic else f"it begins with {magic!r}, a GGUF begins with {_MAGIC!r}")
    version = _number(file, "I")
    if version not in (2, 3):
        big_endian = int.from_bytes(struct.pack("<I", version), "big") in (2, 3)
        raise _BrokenError("it is a big-endian GGUF" if big_endian else f"it is GGUF version {version}")
    tensor_count, entry_count = _count(file), _count(file)
    metadata = _metadata(file, entry_count)
    parameters, data_bytes = _tensors(file, tensor_count)
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 1:
        raise _BrokenError(f"its alignment is {alignment}")
    data_start = -(-file.tell() // alignment) * alignment
    architecture = str(metadata.get("general.architecture", ""))
    name = metadata.get("general.name")
    return GgufHeader(
        version=version,
        architecture=architecture,
        name=name if isinstance(name, str) else None,
        trained_tokens=_whole(metadata.get(f"{architecture}.context_length")),
        layers=_whole(metadata.get(f"{architecture}.block_count")),
        parameters=parameters,
        tensors=tensor_count,
        needed_bytes=data_start + data_bytes if tensor_count else file.tell(),
        metadata=metadata,
    )


def _metadata(file: BinaryIO, entries: int) -> dict[str, Scalar]:
    metadata: dict[str, Scalar] = {}
    for _ in range(entries):
        key = _text(file)
        kind = _number(file, "I")
        if kind == _ARRAY:
            _skip_array(file)
        elif kind == _STRING:
            metadata[key] = _text(file)
        elif kind in _FORMATS:
            metadata[key] = _scalar(file, _FORMATS[kind])
        else:
            raise _BrokenError(f"its entry {key!r} has the unknown type {kind}")
    return metadata


def _tensors(file: BinaryIO, tensors: int) -> tuple[int, int]:
    """(elements of all tensors, bytes from the start of the data to the end of the last tensor)."""
    parameters = end_bytes = 0
    for _ in range(tensors):
        name = _text(file)
        dimensions = _number(file, "I")
        if dimensions > 8:
            raise _BrokenError(f"its tensor {name!r} has {dimensions} dimensions")
        elements = 1
        for _ in range(dimensions):
            elements *= _number(file, "Q")
        kind, offset = _number(file, "I"), _number(file, "Q")
        per_block, block_bytes = _BLOCKS.get(kind, (1, 0))
        parameters += elements
        end_bytes = max(end_bytes, offset + elements // per_block * block_bytes)
    return parameters, end_bytes


def _skip_array(file: BinaryIO) -> None:
    kind, length = _number(file, "I"), _count(file)
    if kind in _FORMATS:
        _exactly(file, length * struct.calcsize(_FORMATS[kind]))
        return
    if kind not in (_STRING, _ARRAY):
        raise _BrokenError(f"it has an array of the unknown type {kind}")
    skip: Callable[[BinaryIO], object] = _skip_array if kind == _ARRAY else _text_bytes
    for _ in range(length):
        skip(file)


def _scalar(file: BinaryIO, fmt: str) -> int | float | bool:
    return struct.unpack("<" + fmt, _exactly(file, struct.calcsize(fmt)))[0]


def _number(file: BinaryIO, fmt: str) -> int:
    return int(_scalar(file, fmt))


def _count(file: BinaryIO) -> int:
    count = _number(file, "Q")
    if count > _MOST_ENTRIES:
        raise _BrokenError(f"it says it has {count:,} entries of one kind")
    return count


def _text(file: BinaryIO) -> str:
    return _text_bytes(file).decode(errors="replace")


def _text_bytes(file: BinaryIO) -> bytes:
    length = _number(file, "Q")
    if length > _LONGEST_TEXT_BYTES:
        raise _BrokenError(f"it has a text of {length:,} bytes")
    return _exactly(file, length)


def _exactly(file: BinaryIO, size: int) -> bytes:
    data = file.read(size)
    if len(data) < size:
        raise EOFError
    return data


def _whole(value: Scalar | None) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
