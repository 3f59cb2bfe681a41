"""How a request ended, in the words of a sentence that counts: ``3 refused as busy, 1 hung without a token``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from longproof.domain.events import RequestTimeline
from longproof.domain.outcome import Outcome, classify

_WORDS = {
    Outcome.COMPLETED: "completed",
    Outcome.SHORT: "completed with less output than asked for",
    Outcome.EMPTY: "ended without a token",
    Outcome.REFUSED_LENGTH: "refused for length",
    Outcome.REFUSED_BUSY: "refused as busy",
    Outcome.REFUSED_OTHER: "refused for another reason",
    Outcome.SERVER_ERROR: "failed with a server error",
    Outcome.ERROR_IN_STREAM: "failed inside a 200 stream",
    Outcome.CUT: "broken off",
    Outcome.ABORTED: "aborted by the server",
    Outcome.HUNG: "hung without a token",
    Outcome.TIMED_OUT: "not finished in time",
    Outcome.CANCELLED: "cancelled by us",
    Outcome.UNREACHABLE: "without any HTTP answer",
    Outcome.NOT_A_STREAM: "answered without a stream",
}


def in_words(outcome: Outcome) -> str:
    """``refused as busy``: what follows "it was" or a number."""
    return _WORDS[outcome]


def counted(timelines: Iterable[RequestTimeline]) -> str:
    """How many ended in which way, the most frequent first; nothing for none."""
    found = Counter(in_words(classify(timeline)) for timeline in timelines)
    return ", ".join(
        f"{count:,} {words}" for words, count in sorted(found.items(), key=lambda item: (-item[1], item[0]))
    )
