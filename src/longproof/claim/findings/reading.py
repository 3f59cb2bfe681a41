"""Whether the prompt of one answer was read whole, by everything in the evidence that speaks of it."""

from __future__ import annotations

from collections.abc import Callable

from longproof.claim.findings.canaries import PLACES, canary_length, places
from longproof.claim.view import EvidenceView
from longproof.domain.events import RequestTimeline
from longproof.domain.request import CountSource

PROVEN_COUNTS = (CountSource.SERVER, CountSource.IDS)
_FAR_TOKENS = 64
_FAR_SHARE = 0.1


def far_apart(sent: int, used: int) -> bool:
    """Whether two counts differ by more than a prediction can be wrong: one-token words are predicted to the token,
    and a template that treats long prompts differently adds some."""
    return abs(sent - used) > max(_FAR_TOKENS, _FAR_SHARE * sent)


def was_cut(view: EvidenceView) -> Callable[[RequestTimeline], bool]:
    """A test for one answered request: was its prompt cut without an error?

    Usage below what was sent says so, unless head, middle and tail were demonstrably read: then usage is wrong. Where
    usage says nothing and the canaries found a place unread, every prompt from the canaries' length on is taken as
    cut.
    """
    unread, read_places = places(view)
    unread_from = canary_length(view) if unread else None

    def cut(timeline: RequestTimeline) -> bool:
        sent = timeline.prompt_tokens_sent
        used = timeline.usage.prompt_tokens if timeline.usage is not None else None
        if sent is None or len(read_places) == len(PLACES):
            return False
        if unread_from is not None and sent >= unread_from:
            return True
        if used is None or used >= sent:
            return False
        return timeline.count_source in PROVEN_COUNTS or far_apart(sent, used)

    return cut
