"""An answer without text: no token at all, or tokens that are not yet a character."""

from __future__ import annotations

import pytest

from longproof.domain.events import EndedBy, RequestTimeline, Usage
from longproof.domain.outcome import Outcome, classify, is_about_length
from longproof.domain.request import Route


def silent(*, finish_reason: str | None, completion_tokens: int | None, max_tokens: int) -> RequestTimeline:
    return RequestTimeline(
        request_id="r",
        route=Route.CHAT,
        submitted_ns=0,
        finished_ns=9,
        ended_by=EndedBy.DONE,
        prompt_tokens_sent=5,
        count_source=None,
        max_tokens=max_tokens,
        body_bytes=2,
        status=200,
        finish_reason=finish_reason,
        usage=Usage(prompt_tokens=5, completion_tokens=completion_tokens),
    )


@pytest.mark.parametrize(
    ("finish_reason", "completion_tokens", "max_tokens", "outcome"),
    [
        ("length", 1, 1, Outcome.COMPLETED),  # half of a two-byte character
        ("length", 3, 3, Outcome.COMPLETED),  # three quarters of an emoji
        ("length", 1, 16, Outcome.SHORT),  # clamped by the window, and half a character
        ("length", 4, 4, Outcome.EMPTY),  # four bytes are a character, whichever
        ("length", 0, 1, Outcome.EMPTY),
        ("length", None, 1, Outcome.EMPTY),
        ("stop", 1, 16, Outcome.EMPTY),  # whoever stops by itself has said it all
        (None, 1, 1, Outcome.CUT),
    ],
)
def test_answer_without_text_is_judged_by_its_tokens_when_it_ends_by_length(
    finish_reason: str | None, completion_tokens: int | None, max_tokens: int, outcome: Outcome
):
    timeline = silent(finish_reason=finish_reason, completion_tokens=completion_tokens, max_tokens=max_tokens)
    assert classify(timeline) is outcome


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("context deadline exceeded", False),
        ("rpc error: context canceled", False),
        ("rate limit exceeded for key", False),
        ("You exceeded your current quota", False),
        ("the request exceeds the available context size", True),
        ("prompt exceeds maximum; context deadline exceeded", True),
        ("Input length exceeds the limit", True),
    ],
)
def test_words_of_deadlines_and_quotas_are_not_about_length(message: str, expected: bool) -> None:
    assert is_about_length(message) is expected
