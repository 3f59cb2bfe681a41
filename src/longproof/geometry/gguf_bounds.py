"""Whether a GGUF header's counts can be meant: gguf-py believes them, and a file of a hundred bytes that names 2^61
entries keeps it busy for ever. Layout after the GGUF specification, versions 2 and 3; offsets only, nothing is kept."""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

_STRING, _ARRAY = 8, 9
_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_DEEPEST = 8
_HEAD = struct.Struct("<4sIQQ")
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
_MOST_DIMENSIONS = 8


def require_bounded(path: Path) -> None:
    """Raises ValueError for a header that is longer than its file, nests too deeply or is of another version; OSError
    for a file that cannot be read."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        try:
            _Walk(data).header()
        except (struct.error, KeyError) as problem:
            raise ValueError(f"its header is cut short or no GGUF header: {problem}") from problem


class _Walk:
    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._at = 0

    def header(self) -> None:
        magic, version, tensors, entries = _HEAD.unpack_from(self._data, 0)
        if magic != b"GGUF" or version not in (2, 3):
            raise ValueError(f"it begins with {magic!r}, version {version}")
        self._at = _HEAD.size
        for _ in range(self._fits(entries, 12)):
            self._text()
            self._value(self._number(_U32), 0)
        for _ in range(self._fits(tensors, 24)):
            self._text()
            dimensions = self._number(_U32)
            if dimensions > _MOST_DIMENSIONS:
                raise ValueError(f"a tensor has {dimensions} dimensions")
            self._at += 8 * dimensions + 12
        self._fits(0, 0)

    def _value(self, kind: int, depth: int) -> None:
        if kind == _STRING:
            self._text()
        elif kind != _ARRAY:
            self._at += _SIZES[kind]
        else:
            self._array(depth)

    def _array(self, depth: int) -> None:
        if depth >= _DEEPEST:
            raise ValueError(f"its arrays nest deeper than {_DEEPEST}")
        kind = self._number(_U32)
        size = 12 if kind == _ARRAY else 8 if kind == _STRING else _SIZES[kind]
        count = self._fits(self._number(_U64), size)
        if kind in _SIZES:
            self._at += count * size
            return
        for _ in range(count):
            self._value(kind, depth + 1)

    def _text(self) -> None:
        size = self._fits(self._number(_U64), 1)
        self._at += size

    def _number(self, layout: struct.Struct) -> int:
        (found,) = layout.unpack_from(self._data, self._at)
        self._at += layout.size
        return found

    def _fits(self, count: int, size: int) -> int:
        if self._at + count * size > len(self._data):
            raise ValueError(f"it names {count:,} entries where {len(self._data):,} bytes are")
        return count
