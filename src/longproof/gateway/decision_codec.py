"""Decision records as lines of JSON, and back, exactly.

    {"longproof_decisions": 1, "config": …, "routing": …}     first in every file: what a replay starts from
    [number, at_ns, "Arrived", {…}, [["Dispatch", {…}]]]      one per input, with what it was answered
    [number, at_ns, "CacheChanged KvStored", {…}, []]
    ["follow", {…}]                                           how the router follows a replica's cache from now on

Names stand beside the values because values alone do not tell a stored block from a removed one. Block names are
64-bit: read them with something that keeps integers whole.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, TypeAlias, cast

import orjson
from pydantic import TypeAdapter, ValidationError

from longproof.domain.kv_event import KvCleared, KvGap, KvRemoved, KvStored
from longproof.errors import UsageError
from longproof.policy.actions import Dispatch, Refusal, Wait
from longproof.policy.controller_config import ControllerConfig
from longproof.policy.decision_record import (
    Arrived,
    CacheChanged,
    ClaimsChanged,
    CountedLength,
    DecisionRecord,
    EngineRefused,
    Finished,
    FirstToken,
    Input,
    PeersTold,
    Produced,
    ReplicaChanged,
    Sampled,
    Ticked,
)
from longproof.policy.routing import RoutingRule

FORMAT = 1
_INPUTS = (
    Arrived, CountedLength, FirstToken, Produced, EngineRefused, Finished, Sampled, ReplicaChanged, PeersTold,
    ClaimsChanged, Ticked,
)  # fmt: skip
_BY_NAME: dict[str, type[Any]] = {
    kind.__name__: kind for kind in (*_INPUTS, Dispatch, Wait, Refusal, KvStored, KvRemoved, KvCleared, KvGap)
}
_ADVICE = "use a whole log, written by this version of longproof"


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowedReplica:
    """How the router follows a replica's cache from now on; see `PrefixRouter.follow`. Not an input of the controller:
    it changes when an index is found to be unreliable."""

    replica: str
    block_tokens: int
    cache_blocks: int | None
    events: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LogHeader:
    """What a fresh controller and router are made from. `part`: which file of the log it stands in; `followed`: how the
    router followed replicas when that file began."""

    config: ControllerConfig
    routing: RoutingRule
    part: int = 1
    followed: tuple[FollowedReplica, ...] = ()
    longproof_decisions: int = FORMAT


def encode_header(header: LogHeader) -> bytes:
    """The first line."""
    return orjson.dumps(header, default=dict, option=orjson.OPT_APPEND_NEWLINE)


LogEntry: TypeAlias = DecisionRecord | FollowedReplica
"""What a line after the first holds."""


def encode_entry(entry: LogEntry) -> bytes:
    """One line."""
    if isinstance(entry, FollowedReplica):
        return orjson.dumps(["follow", entry], option=orjson.OPT_APPEND_NEWLINE)
    return encode_record(entry)


def encode_record(record: DecisionRecord) -> bytes:
    """One line of a record."""
    told: Any = record.input
    name = type(told).__name__
    if isinstance(told, CacheChanged):
        name = f"{name} {type(told.event).__name__}"
    elif isinstance(told, Sampled):
        told = replace(told, sample=replace(told.sample, values=_finite(told.sample.values)))
    actions = [[type(action).__name__, action] for action in record.actions]
    return orjson.dumps([record.number, record.at_ns, name, told, actions], option=orjson.OPT_APPEND_NEWLINE)


def decode_header(line: bytes, *, where: str) -> LogHeader:
    """UsageError for anything else."""
    found = _json(line, where)
    if not isinstance(found, dict) or "longproof_decisions" not in found:
        raise UsageError(f"{where} is no decision log: its first line names no configuration", advice=_ADVICE)
    fields = cast("dict[str, object]", found)
    if fields["longproof_decisions"] != FORMAT:
        raise UsageError(
            f"{where} has format {fields['longproof_decisions']}, this longproof reads {FORMAT}", advice=_ADVICE
        )
    return cast(LogHeader, _value(LogHeader, fields, where))


def decode_entry(line: bytes, *, where: str) -> LogEntry:
    """UsageError for anything else."""
    parts = cast("list[Any]", _json(line, where))
    try:
        if parts[0] == "follow":
            return cast(FollowedReplica, _value(FollowedReplica, parts[1], where))
        number, at_ns, name, told, actions = parts
        if type(number) is not int or type(at_ns) is not int:
            raise TypeError("its number and time are no whole numbers")
        return DecisionRecord(
            number=number,
            at_ns=at_ns,
            input=_input(name, told, where),
            actions=tuple(_value(_BY_NAME[kind], fields, where) for kind, fields in actions),
        )
    except (KeyError, IndexError, TypeError, ValueError) as problem:
        raise UsageError(f"{where} is no decision record: {problem}", advice=_ADVICE) from problem


def _input(name: str, told: Any, where: str) -> Input:
    kind, _, event = name.partition(" ")
    if not event:
        return _value(_BY_NAME[kind], told, where)
    return CacheChanged(replica=told["replica"], event=_value(_BY_NAME[event], told["event"], where))


def _json(line: bytes, where: str) -> object:
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError as problem:
        raise UsageError(f"{where} is not JSON: {problem}", advice=_ADVICE) from problem


def _value(kind: type[Any], fields: object, where: str) -> Any:
    try:
        return _adapter(kind).validate_python(fields)
    except ValidationError as problem:
        first = problem.errors()[0]
        path = ".".join(str(part) for part in first["loc"])
        raise UsageError(f"{where}: {kind.__name__} {path}: {first['msg']}", advice=_ADVICE) from problem


@cache
def _adapter(kind: type[Any]) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _finite(values: dict[str, float]) -> dict[str, float]:
    """Metrics without NaN and infinity, which JSON has no word for and no decision rests on."""
    return {name: value for name, value in values.items() if math.isfinite(value)}
