"""How many requests may be in the engine, and how a further one is turned away."""

from __future__ import annotations

from longproof.testing.ask import Ask, Refusal
from longproof.testing.dialects import VLLM
from longproof.testing.engine_state import EngineState
from longproof.testing.lie import Lie, find
from longproof.testing.lies_of_load import BusyInStream, NoRetryAfter
from longproof.testing.replies import Fault

_MESSAGE = (
    "The engine is currently busy and cannot accept new requests. Please try again later or on a different instance."
)
"""vLLM 0.32's own words (exceptions.py, QueueOverflowError)."""


class FullInStream(Exception):  # noqa: N818 - not an error of ours: it becomes the answer
    """The refusal is to come inside a 200 stream."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.message)
        self.fault = fault


def turn_away_when_full(state: EngineState, ask: Ask, lies: tuple[Lie, ...]) -> None:
    """Raises Refusal 503 or FullInStream when the limit is reached; requests that run and wait count."""
    bare, in_stream, behaviour = find(lies, NoRetryAfter), find(lies, BusyInStream), state.behaviour
    limits = (behaviour.queue_limit, bare and bare.limit, in_stream and in_stream.limit)
    here = state.pool.running + state.pool.waiting + state.counters.deferred
    if not any(limit is not None and here >= limit for limit in limits):
        return
    state.counters.rejected += 1
    type_ = "Service Unavailable" if behaviour.dialect is VLLM else "unavailable_error"
    if in_stream is not None and ask.stream:
        raise FullInStream(Fault(message=_MESSAGE, status=503, type=type_))
    honest = bare is None and in_stream is None
    body = behaviour.dialect.error(503, _MESSAGE, type_=type_)
    raise Refusal(503, body, retry_after_s=behaviour.retry_after_s if honest else None)
