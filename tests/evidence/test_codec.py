"""Every stored type goes to bytes and back exactly."""

from __future__ import annotations

import types
import typing
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from longproof.claim.statements import Claim, Statement
from longproof.domain.deployment import Deployment, EngineKind
from longproof.domain.measure import Interval, Measured, Provenance, Unknown, reported
from longproof.errors import EvidenceError
from longproof.evidence.codec import decode, encode, format_of
from longproof.evidence.records import Header, NoteBody, Record, RequestBody, Seal
from longproof.testing.builders import build_header, build_record, build_request, build_timeline

LEAVES: dict[object, st.SearchStrategy[Any]] = {
    int: st.integers(-(2**80), 2**80),
    float: st.floats(allow_nan=False, allow_infinity=False),
    bool: st.booleans(),
    str: st.text(max_size=20),
    type(None): st.none(),
}


def anything(hint: Any) -> st.SearchStrategy[Any]:
    """Values of a type as the annotations of the stored dataclasses write it."""
    if hint in LEAVES:
        return LEAVES[hint]
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return st.sampled_from(arguments)
    if origin in (typing.Union, types.UnionType):
        return st.one_of([anything(item) for item in arguments])
    if origin is tuple:
        return st.lists(anything(arguments[0]), max_size=3).map(tuple)
    if origin is list:
        return st.lists(anything(arguments[0]), max_size=3)
    if origin is dict:
        return st.dictionaries(st.text(max_size=8), anything(arguments[1]), max_size=3)
    if origin is Measured:
        return st.builds(
            Measured, value=anything(arguments[0]), provenance=st.sampled_from(Provenance), source=LEAVES[str]
        )
    if isinstance(hint, type) and issubclass(hint, Enum):
        return st.sampled_from(hint)
    assert is_dataclass(hint), hint
    hints = typing.get_type_hints(hint)
    return st.builds(hint, **{item.name: anything(hints[item.name]) for item in fields(hint)})  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [Record, Header, Seal, Claim])
def test_value_comes_back_exactly_when_encoded(kind: type) -> None:
    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
    @given(anything(kind))
    def check(value: Any) -> None:
        data = encode(value)
        again = decode(kind, data, where="here")
        assert again == value
        assert encode(again) == data  # 1, 1.0 and True are equal in Python and different bytes
        assert decode(kind, encode(value, indent=True), where="here") == value

    check()


def test_types_of_cell_values_stay_when_equal_in_python() -> None:
    body = build_request("speed", {"one": 1, "one_point": 1.0, "yes": True, "text": "1"})
    record = decode(Record, encode(build_record(body)), where="here")
    assert isinstance(record.body, RequestBody)
    assert [type(value) for value in record.body.cell.values()] == [int, float, str, bool]  # names are sorted
    assert record.body.cell == body.cell


def test_reading_stays_known_or_unknown_when_encoded() -> None:
    deployment = Deployment(
        engine=EngineKind.VLLM,
        slots=reported(4, "here"),
        kv_dtype=Unknown(reason="not told"),
        kv_unified=reported(True, "x"),
    )
    again = decode(Deployment, encode(deployment), where="here")
    assert again.slots == Measured(value=4, provenance=Provenance.REPORTED, source="here")
    assert again.kv_dtype == Unknown(reason="not told")
    assert type(again.kv_unified.value) is bool  # type: ignore[union-attr]


def test_bytes_are_equal_when_dict_order_differs() -> None:
    assert encode(build_request("speed", {"a": 1, "b": 2})) == encode(build_request("speed", {"b": 2, "a": 1}))


def test_lone_surrogate_becomes_visible_when_a_server_sends_half_an_emoji() -> None:
    body = build_request("speed", timeline=build_timeline(text='half \ud83d "quoted" \\ whole 🙂'))
    record = decode(Record, encode(build_record(body)), where="here")
    assert isinstance(record.body, RequestBody)
    assert record.body.timeline.text == 'half \\ud83d "quoted" \\ whole 🙂'


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_value_error_when_a_number_is_not_finite(number: float) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        encode(Interval(low=0.0, high=number, confidence=0.95, method="none"))


def test_error_names_field_and_place_when_a_file_has_an_unknown_one() -> None:
    data = encode(build_record(NoteBody(probe="p", what="w", detail={})))
    edited = data.replace(b'"what":"w"', b'"what":"w","when":"now"')
    with pytest.raises(EvidenceError, match=r"^records.jsonl line 3 cannot be read: unknown field body.NoteBody.when$"):
        decode(Record, edited, where="records.jsonl line 3")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"n":1', b'"n":"1"'),  # a string is not a number
        (b'"n":1', b'"n":1.5'),
        (b'"n":1', b'"n":true'),
        (b'"n":1,', b""),  # a field that has no default
        (b'"standing":"shown"', b'"standing":"proved"'),
        (b'"n":1', b'"n":NaN'),
    ],
)
def test_error_when_a_value_has_another_type(old: bytes, new: bytes) -> None:
    from longproof.claim.statements import Standing

    statement = Statement(
        id="a", metric="ttft", text="t", standing=Standing.SHOWN, unit="s", value=Unknown(reason="r"), n=1
    )
    data = encode(statement)
    assert decode(Statement, data, where="here") == statement
    assert old in data
    with pytest.raises(EvidenceError, match="here cannot be read"):
        decode(Statement, data.replace(old, new), where="here")


@pytest.mark.parametrize(
    ("data", "words"), [(b"{", "not JSON"), (b"[]", "names no format"), (b'{"format": "1"}', "names no format")]
)
def test_error_when_document_names_no_format(data: bytes, words: str) -> None:
    with pytest.raises(EvidenceError, match=words):
        format_of(data, where="header.json")


def test_format_is_read_when_the_rest_is_of_another_version() -> None:
    assert format_of(encode(replace(build_header(), format=7)), where="header.json") == 7
