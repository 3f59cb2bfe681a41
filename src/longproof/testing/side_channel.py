"""What two engines of a prefill/decode pair know of each other's KV: who offers blocks, and who took them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """Blocks of a finished prefill, kept until they are read. `release` may be called from any thread."""

    tokens: int
    blocks: int
    release: Callable[[], None]


class SideChannel:
    """Offers by engine id and request id. Used by the threads of both engines."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._offers: dict[tuple[str, str], Offer] = {}

    def offer(self, engine_id: str, request_id: str, offer: Offer) -> None:
        with self._lock:
            self._offers[engine_id, request_id] = offer

    def take(self, engine_id: str, request_id: str) -> Offer | None:
        """The offer, once; None when there is none: never made, expired, or of an engine that restarted."""
        with self._lock:
            return self._offers.pop((engine_id, request_id), None)

    def withdraw_all(self, engine_id: str) -> None:
        """The engine is gone, and so is what it offered."""
        with self._lock:
            self._offers = {key: offer for key, offer in self._offers.items() if key[0] != engine_id}
