"""Bodies as objects, wherever they are wanted: the loop goes on meanwhile."""

from __future__ import annotations

import json

import pytest

from longproof.gateway.body_object import body_object
from longproof.gateway.errors import ApiError
from longproof.gateway.intake import PIECES_FROM_BYTES, Intake
from longproof.testing.loop_turns import loop_turns

INTAKE = Intake(body_limit_bytes=64 << 20, open_limit_bytes=64 << 20, body_timeout_s=60)


@pytest.mark.parametrize("size_bytes", [10, 300 << 10, 4 * PIECES_FROM_BYTES])
async def test_the_object_is_that_of_the_body_when_it_is_of_any_length(size_bytes: int) -> None:
    fields = {"model": "m", "input": ["one \n two" * (size_bytes // 9), 3, None]}
    async with loop_turns() as turns:
        before = turns.count
        assert await body_object(INTAKE, json.dumps(fields).encode()) == fields
        assert (turns.count - before >= 4) == (size_bytes > PIECES_FROM_BYTES)  # four pieces at least, or at once


@pytest.mark.parametrize("size_bytes", [0, 300 << 10, 4 * PIECES_FROM_BYTES])
async def test_a_body_is_refused_when_it_is_no_object(size_bytes: int) -> None:
    for body in (b'["' + b"x" * size_bytes + b'"]', b'{"a":"' + b"x" * size_bytes):
        with pytest.raises(ApiError) as refused:
            await body_object(INTAKE, body)
        assert refused.value.problem.status == 400
    assert not INTAKE.lane.locked()
