"""Values to canonical JSON and back, exactly: the edge between frozen dataclasses and files.

Canonical: keys sorted, UTF-8, no NaN or infinity, one spelling per value. Reading is strict: an unknown field, a
missing one or another type is an error, so an int stays an int and a bool a bool.
"""

from __future__ import annotations

import dataclasses
import json
import re
from enum import Enum
from functools import cache
from typing import Any, TypeVar, cast

from pydantic import TypeAdapter, ValidationError

from longproof.errors import EvidenceError

T = TypeVar("T")

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_DAMAGED = "use an undamaged copy of the directory, or prove again into a new one"


def encode(value: object, *, indent: bool = False) -> bytes:
    """Canonical bytes of a dataclass value, without a newline at the end; `indent` for files that people open.

    A lone surrogate, which a server may send as half of an emoji and which UTF-8 cannot hold, is written as its visible
    escape (six characters, ``\\ud83d``). Raises ValueError for NaN and infinity, TypeError for what JSON does not have:
    both our bugs.
    """
    text = json.dumps(
        _tree(value),
        sort_keys=True,
        ensure_ascii=False,
        allow_nan=False,
        separators=(",", ": ") if indent else (",", ":"),
        indent=2 if indent else None,
    )
    return _LONE_SURROGATE.sub(_visible_escape, text).encode()


def decode(kind: type[T], data: bytes, *, where: str) -> T:
    """The value that `encode` wrote. `where` names file and line in the EvidenceError for anything else."""
    try:
        return cast(T, _adapter(kind).validate_json(data, strict=True, extra="forbid"))
    except ValidationError as problem:
        raise EvidenceError(f"{where} cannot be read: {_explain(problem, data)}", advice=_DAMAGED) from problem


def format_of(data: bytes, *, where: str) -> int:
    """The `format` number of a stored document, read before anything else of it is trusted."""
    try:
        document: object = json.loads(data)
    except (ValueError, RecursionError) as problem:
        raise EvidenceError(f"{where} is not JSON: {problem}", advice=_DAMAGED) from problem
    number = cast("dict[str, object]", document).get("format") if isinstance(document, dict) else None
    if not isinstance(number, int):
        raise EvidenceError(f"{where} names no format", advice="name a directory that longproof wrote")
    return number


@cache
def _adapter(kind: type[object]) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _tree(value: object) -> object:
    if isinstance(value, Enum):
        return cast(object, value.value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {item.name: _tree(getattr(value, item.name)) for item in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {name: _tree(item) for name, item in cast("dict[str, object]", value).items()}
    if isinstance(value, tuple | list):
        return [_tree(item) for item in cast("tuple[object, ...]", value)]
    return value


def _visible_escape(found: re.Match[str]) -> str:
    return f"\\\\u{ord(found.group()):04x}"


def _explain(problem: ValidationError, data: bytes) -> str:
    """The first faults in plain words. Only the branch of the record's own kind speaks: the others fail by nature."""
    branch = _branch(data)
    errors = [error for error in problem.errors() if branch is None or _is_of(branch, error["loc"])] or problem.errors()
    said: list[str] = []
    for error in errors[:3]:
        field = ".".join(str(part) for part in error["loc"])
        if error["type"] == "unexpected_keyword_argument":
            said.append(f"unknown field {field}")
        else:
            said.append(f"{field}: {error['msg']}" if field else error["msg"])
    return "; ".join(said)


def _branch(data: bytes) -> str | None:
    try:
        kind: object = json.loads(data)["body"]["kind"]
    except (ValueError, KeyError, TypeError):
        return None
    return f"{kind.capitalize()}Body" if isinstance(kind, str) else None


def _is_of(branch: str, location: tuple[int | str, ...]) -> bool:
    return location[:1] != ("body",) or branch in location
