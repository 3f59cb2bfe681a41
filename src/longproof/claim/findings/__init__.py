"""One file per probe: `findings/x.py` reads what `probe/x.py` asked. To add one: a module with `read`, and a line
here."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

from longproof.claim.findings import (
    accounting,
    boundary,
    busy,
    conversation,
    disaggregated,
    overload,
    quality,
    reclaim,
    restart,
    speed,
    stream,
    sustained,
    sweep,
    warmth,
)
from longproof.claim.statements import Finding, NotShown, Statement
from longproof.claim.view import EvidenceView

Said: TypeAlias = Statement | Finding | NotShown
Reader: TypeAlias = Callable[[EvidenceView], Iterable[Said]]

READERS: dict[str, Reader] = {
    "stream": stream.read,
    "accounting": accounting.read,
    "boundary": boundary.read,
    "speed": speed.read,
    "warmth": warmth.read,
    "quality": quality.read,
    "busy": busy.read,
    "reclaim": reclaim.read,
    "restart": restart.read,
    "disaggregated": disaggregated.read,
    "sustained": sustained.read,
    "sweep": sweep.read,
    "conversation": conversation.read,
    "overload": overload.read,
}
"""What reads an evidence directory, by what it reads about, in the order in which a claim speaks."""
