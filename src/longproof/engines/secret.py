"""Keeps the API key out of everything that is kept: servers repeat it in error messages and headers."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar, cast

from longproof.domain.events import RequestTimeline, ServerError

WITHHELD = "(API key)"
_SHORTEST = 6
"""Shorter keys (``x``, ``none``) protect nothing, and words of answers would be taken for them."""
T = TypeVar("T")


class Secret:
    """One key, and how to strike it out of what a server said. Without a key nothing changes."""

    def __init__(self, key: str | None) -> None:
        self._key = key if key is not None and len(key) >= _SHORTEST else None

    def out_of(self, value: T) -> T:
        """A text, or a JSON value, with the key struck out wherever it stands."""
        return value if self._key is None else cast(T, self._struck(value, self._key))

    def out_of_error(self, error: ServerError) -> ServerError:
        """A server's error."""
        return replace(
            error,
            message=self.out_of(error.message),
            type=self.out_of(error.type),
            code=self.out_of(error.code),
            fields=self.out_of(error.fields),
            body=self.out_of(error.body),
        )

    def out_of_timeline(self, timeline: RequestTimeline) -> RequestTimeline:
        """Everything of an exchange that is in the server's words."""
        if self._key is None:
            return timeline
        return replace(
            timeline,
            headers=self.out_of(timeline.headers),
            text=self.out_of(timeline.text),
            reasoning=self.out_of(timeline.reasoning),
            finish_reason=self.out_of(timeline.finish_reason),
            error=None if timeline.error is None else self.out_of_error(timeline.error),
            transport_error=self.out_of(timeline.transport_error),
            malformed=self.out_of(timeline.malformed),
            engine_timings=self.out_of(timeline.engine_timings),
            engine_request_id=self.out_of(timeline.engine_request_id),
        )

    def _struck(self, value: object, key: str) -> object:
        if isinstance(value, str):
            return value.replace(key, WITHHELD)
        if isinstance(value, dict):
            found = cast("dict[str, object]", value)
            return {name.replace(key, WITHHELD): self._struck(item, key) for name, item in found.items()}
        if isinstance(value, list):
            return [self._struck(item, key) for item in cast("list[object]", value)]
        if isinstance(value, tuple):
            return tuple(self._struck(item, key) for item in cast("tuple[object, ...]", value))
        return value
