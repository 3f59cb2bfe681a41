"""The ``tokenizer.*`` entries of a GGUF file, arrays included.

gguf-py reads a vocabulary of 150,000 tokens and as many merges in six seconds, since it keeps an array for every part
of every string. A gateway that starts has no use for those; this reads them in a fraction of a second. Layout after the
GGUF specification, versions 2 and 3 (see `engines.gguf_header`, which checks files as a whole).
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Any

from longproof.errors import ModelFileError

_STRING, _ARRAY = 8, 9
_FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_MOST_ENTRIES = 1 << 24
_PREFIX = "tokenizer."
_HEAD = struct.Struct("<4sIQQ")
_LENGTH = struct.Struct("<Q")
_TYPE = struct.Struct("<I")


def tokenizer_fields(path: Path) -> dict[str, object]:
    """Values by key: numbers, texts and lists of them. Raises ModelFileError: missing, no GGUF of version 2 or 3, or
    cut short."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Cursor(data).fields()
    except OSError as problem:
        raise ModelFileError(
            f"{path} cannot be read: {problem}", advice="check the path and its permissions"
        ) from problem
    except (ValueError, struct.error, KeyError, UnicodeDecodeError, RecursionError) as problem:
        raise ModelFileError(
            f"{path} is not a usable GGUF file: {problem}", advice="name a whole GGUF of version 2 or 3"
        ) from problem


class _Cursor:
    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._at = 0

    def fields(self) -> dict[str, object]:
        magic, version, _, entries = self._take(_HEAD)
        if magic != b"GGUF" or version not in (2, 3) or entries > _MOST_ENTRIES:
            raise ValueError(f"it begins with {magic!r}, version {version}, {entries} entries")
        found: dict[str, object] = {}
        for _ in range(entries):
            key = self._text().decode()
            (kind,) = self._take(_TYPE)
            value = self._value(kind, wanted=key.startswith(_PREFIX))
            if key.startswith(_PREFIX):
                found[key] = value
        return found

    def _value(self, kind: int, *, wanted: bool) -> object:
        if kind == _STRING:
            return self._text().decode("utf-8", "replace")
        if kind != _ARRAY:
            return self._take(struct.Struct("<" + _FORMATS[kind]))[0]
        (kind,) = self._take(_TYPE)
        count = self._count()
        if kind in _FORMATS:
            return list(self._take(struct.Struct(f"<{count}{_FORMATS[kind]}")))
        if kind == _STRING:
            texts = [self._text() for _ in range(count)]
            return [text.decode("utf-8", "replace") for text in texts] if wanted else None
        return [self._value(kind, wanted=wanted) for _ in range(count)]

    def _take(self, layout: struct.Struct) -> tuple[Any, ...]:
        found = layout.unpack_from(self._data, self._at)
        self._at += layout.size
        return found

    def _count(self) -> int:
        (count,) = _LENGTH.unpack_from(self._data, self._at)
        self._at += 8
        if count > len(self._data):
            raise ValueError(f"it names {count:,} bytes or entries where {len(self._data):,} bytes are")
        return count

    def _text(self) -> bytes:
        start = self._at + 8
        end = start + self._count()
        if end > len(self._data):
            raise ValueError("it is cut short")
        self._at = end
        return self._data[start:end]
