"""KV events over ZeroMQ: one thread that listens to every publisher and hands on what changed, in our names.

    SUB (all topics) ──▶ topic ours? ──▶ sequence ──▶ translate ──▶ deliver(replica, events)
                             │no             │ gap, or joined late
                             ▼               ▼
                        counted by name   DEALER → the publisher's replay (a ROUTER), live messages wait meanwhile

Every topic is received and the wrong ones are counted: a subscription to a topic that nobody publishes under looks
exactly like an engine that caches nothing. What could not be had again is a `KvGap`; a new life of the engine is a
`KvCleared`. Reading, decoding and hashing are this thread's work, not the event loop's.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from typing import TypeAlias

import zmq
from zmq.utils.monitor import recv_monitor_message

from longproof.clock import NS_PER_S, Clock, SystemClock
from longproof.domain.kv_event import KvEvent
from longproof.gateway.kv_sequence import Place
from longproof.gateway.kv_stream import FeedState, KvSource, take
from longproof.gateway.kv_translate import Translator
from longproof.gateway.kv_wire import Batch, read_batch

_log = logging.getLogger("longproof.gateway")
Deliver: TypeAlias = Callable[[str, list[KvEvent]], None]
_QUEUE_MESSAGES = 100_000
_POLL_MS = 200
_REPLAY_NS = 5 * NS_PER_S
_MOST_PENDING = 100_000
_END = (-1).to_bytes(8, "big", signed=True)
_LARGEST_BYTES = 256 << 20
_HEARTBEAT_MS, _SILENT_MS = 5_000, 15_000
_CONNECTED = {zmq.Event.HANDSHAKE_SUCCEEDED: True, zmq.Event.DISCONNECTED: False}


class KvFeed:
    """Listens until closed. `deliver` is called in the feed's thread, once per message, in order."""

    def __init__(self, sources: Iterable[KvSource], deliver: Deliver, *, clock: Clock | None = None) -> None:
        self._deliver = deliver
        self._clock: Clock = clock or SystemClock()
        self._context = zmq.Context()
        self._lines = [_Line(source, self._context, self._clock) for source in sources]
        self._leave = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kv-events", daemon=True)

    @property
    def states(self) -> tuple[FeedState, ...]:
        """One per source, in the order given."""
        return tuple(line.state for line in self._lines)

    def start(self) -> None:
        """Connects and listens; a publisher that is not there yet is waited for by ZeroMQ itself."""
        self._thread.start()

    def close(self) -> None:
        """Ends the thread and all connections. Safe to call twice, and before `start`."""
        self._leave.set()
        if self._thread.is_alive():
            self._thread.join()
        self._context.destroy(linger=0)

    def _run(self) -> None:
        poller = zmq.Poller()
        owners = {socket: line for line in self._lines for socket in line.sockets()}
        for socket in owners:
            poller.register(socket, zmq.POLLIN)
        while not self._leave.is_set():
            ready = dict(poller.poll(_POLL_MS))
            for line in {owners[socket] for socket in ready}:
                try:
                    line.receive(ready)
                except Exception:  # one publisher's rubbish must not end the listening to all
                    line.state.unreadable += 1
                    _log.exception("KV events of %s", line.state.source.endpoint)
            for line in self._lines:
                line.wait_no_longer()
                for events in line.take():
                    self._deliver(line.state.source.replica, events)


class _Line:
    """One source's sockets, and its messages on their way through."""

    def __init__(self, source: KvSource, context: zmq.Context[zmq.Socket[bytes]], clock: Clock) -> None:
        translator = Translator(block_tokens=source.block_tokens, most_blocks=source.most_blocks)
        self.state = FeedState(source=source, translator=translator)
        self._clock = clock
        self._out: list[list[KvEvent]] = []
        self._pending: list[tuple[int, bytes]] = []
        """Live messages that came while a replay was under way."""
        self._replaying_until_ns: int | None = None
        self._wanted = 0
        self._live = context.socket(zmq.SUB)
        self._live.set_hwm(_QUEUE_MESSAGES)
        self._live.setsockopt(zmq.RECONNECT_IVL_MAX, 1_000)
        self._live.setsockopt(zmq.MAXMSGSIZE, _LARGEST_BYTES)
        self._live.setsockopt(zmq.HEARTBEAT_IVL, _HEARTBEAT_MS)
        self._live.setsockopt(zmq.HEARTBEAT_TIMEOUT, _SILENT_MS)
        self._live.subscribe(b"")
        self._monitor = self._live.get_monitor_socket(int(zmq.Event.HANDSHAKE_SUCCEEDED | zmq.Event.DISCONNECTED))
        self._live.connect(source.endpoint)
        self._replay: zmq.Socket[bytes] | None = None
        if source.replay is not None:
            self._replay = context.socket(zmq.DEALER)
            self._replay.set_hwm(_QUEUE_MESSAGES)
            self._replay.setsockopt(zmq.MAXMSGSIZE, _LARGEST_BYTES)
            self._replay.connect(source.replay)

    def sockets(self) -> list[zmq.Socket[bytes]]:
        """What to poll."""
        replay = [] if self._replay is None else [self._replay]
        return [self._live, self._monitor, *replay]

    def receive(self, ready: dict[zmq.Socket[bytes], int]) -> None:
        """Reads what is there."""
        if self._monitor in ready:
            event = recv_monitor_message(self._monitor)
            self.state.connected = _CONNECTED.get(zmq.Event(event["event"]), self.state.connected)
        if self._replay is not None and self._replay in ready:
            self._again(self._replay.recv_multipart())
        if self._live in ready:
            self._fresh(self._live.recv_multipart())

    def take(self) -> list[list[KvEvent]]:
        """What has come out, in order."""
        out, self._out = self._out, []
        return out

    def wait_no_longer(self) -> None:
        """Ends a replay that does not come."""
        if self._replaying_until_ns is not None and self._clock.now_ns() > self._replaying_until_ns:
            self._replayed()

    # -- live messages ------------------------------------------------------------------------------------------------

    def _fresh(self, frames: list[bytes]) -> None:
        state = self.state
        if len(frames) != 3 or len(frames[1]) != 8:
            state.unreadable += 1
            return
        topic = frames[0].decode("utf-8", "replace")
        if not topic.startswith(state.source.topic):
            if topic in state.other_topics or len(state.other_topics) < 64:
                state.other_topics[topic] += 1
            return
        state.messages += 1
        state.last_at_ns = self._clock.now_ns()
        number = int.from_bytes(frames[1], "big")
        if self._replaying_until_ns is not None:
            if len(self._pending) < _MOST_PENDING:
                self._pending.append((number, frames[2]))
            return
        self._in_order(number, frames[2], may_ask=True)

    def _in_order(self, number: int, payload: bytes, *, may_ask: bool) -> None:
        batch = read_batch(payload)
        if batch is None:
            self.state.unreadable += 1  # and its number is missing: there may have been removals in it
            return
        place = self.state.sequence.place(number, batch.at_s)
        lost = place is Place.AFTER_GAP or (place in (Place.FIRST, Place.NEW_LIFE) and number > 0)
        if lost and may_ask and self._replay is not None:
            self._ask(place, number, payload)
            return
        self._take(number, batch)

    def _take(self, number: int, batch: Batch) -> None:
        events = take(self.state, number, batch)
        if events:
            self._out.append(events)

    # -- replay -------------------------------------------------------------------------------------------------------

    def _ask(self, place: Place, number: int, payload: bytes) -> None:
        """Asks for what is missing; the message at hand waits."""
        assert self._replay is not None
        last = self.state.sequence.last
        self._wanted = last + 1 if place is Place.AFTER_GAP and last is not None else 0
        self._replay.send_multipart([b"", self._wanted.to_bytes(8, "big")])
        self.state.replays += 1
        self._replaying_until_ns = self._clock.now_ns() + _REPLAY_NS
        self._pending.append((number, payload))

    def _again(self, frames: list[bytes]) -> None:
        """A replayed message: an empty frame, the topic (vLLM) or not (SGLang), number, payload."""
        if len(frames) < 3 or self._replaying_until_ns is None:
            return
        if frames[-2] == _END:
            self._replayed()
            return
        self._replaying_until_ns = self._clock.now_ns() + _REPLAY_NS
        number = int.from_bytes(frames[-2], "big")
        first = self._pending[0][0]
        if self._wanted <= number < first:
            self._in_order(number, frames[-1], may_ask=False)
            self._wanted = number + 1

    def _replayed(self) -> None:
        """What came again is in; now what waited. A part that is still missing is a gap."""
        self._replaying_until_ns = None
        pending, self._pending = self._pending, []
        for number, payload in pending:
            self._in_order(number, payload, may_ask=False)
