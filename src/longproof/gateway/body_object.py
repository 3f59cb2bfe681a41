"""A body as the JSON object that it must be, however long: a long one in its turn, and in pieces between which the loop
has its own."""

from __future__ import annotations

from longproof.gateway.ask import Json
from longproof.gateway.intake import PIECES_FROM_BYTES, Intake, json_object, long_json_object
from longproof.gateway.turns import LARGE_BYTES


async def body_object(intake: Intake, body: bytes) -> Json:
    """The object. ApiError 400 for what is none."""
    if len(body) < LARGE_BYTES:
        return json_object(body)
    async with intake.lane:
        return await long_json_object(body) if len(body) >= PIECES_FROM_BYTES else json_object(body)
