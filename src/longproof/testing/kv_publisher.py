"""Publishes what a prompt cache holds, as vLLM and SGLang do: ZeroMQ, msgpack, numbered messages, a replay.

    events = KvEvents(replay=True)
    engine = lying_engine(HONEST.but(dialect=VLLM, kv_events=events))      engine.kv_endpoint, engine.kv_replay

`KvEvents` says what may be wrong with them: topic, seed of the hashes, block size, ids of another tokenizer, messages
that are lost or come in another order, nothing at all.
"""

from __future__ import annotations

import hashlib
import threading
import time
from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import zmq

_END = (-1).to_bytes(8, "big", signed=True)
_BIND_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class KvEvents:
    """Honest events of vLLM 0.32 unless told otherwise.

    `wire` "map" is vLLM's form, "list" SGLang's. `hash_seed` changes every hash and nothing else. `block_tokens`: what
    the engine's blocks are (None = the dialect's). `shift_ids`: added to every token id, as if another tokenizer had
    made them. `foreign_parents`: a block that follows another names it by a hash that was never told. `lose`: numbers
    of messages that are only in the replay, `lose_for_ever`: that are not even there. `swap`: messages that are sent
    after the one behind them; `double`: that are sent twice. `silent`: nothing is sent. `replay`: there is one, of
    `buffer_messages`; `deaf`: it takes questions and answers none. `ports`: where it publishes and replays, 0 = any
    free one; a process that takes another one's place needs its ports.
    """

    topic: str = ""
    wire: Literal["map", "list"] = "map"
    hash_seed: int = 0
    block_tokens: int | None = None
    shift_ids: int = 0
    foreign_parents: bool = False
    lose: tuple[int, ...] = ()
    lose_for_ever: tuple[int, ...] = ()
    swap: tuple[int, ...] = ()
    double: tuple[int, ...] = ()
    silent: bool = False
    replay: bool = False
    deaf: bool = False
    buffer_messages: int = 10_000
    ports: tuple[int, int] = (0, 0)


class KvPublisher:
    """One engine's. `open` begins a life: number 0, an empty replay; `close` ends it. The ports stay the same."""

    def __init__(self, events: KvEvents, *, block_tokens: int = 16) -> None:
        self.events = events
        self.sent = 0
        self._block = events.block_tokens or block_tokens
        self._ports = list(events.ports)
        self._lock = threading.Lock()
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._buffer: deque[tuple[int, bytes]] = deque(maxlen=events.buffer_messages)
        self._held: dict[bytes, None] = {}
        self._late: list[bytes] | None = None
        self._replaying: threading.Thread | None = None
        self._leave = threading.Event()
        self._number = 0
        self._subscriptions = 0

    @property
    def next_number(self) -> int:
        """The number of the next message."""
        return self._number

    @property
    def held_blocks(self) -> int:
        """Blocks of the cache it publishes."""
        return len(self._held)

    @property
    def endpoint(self) -> str:
        """Where it publishes; known after the first `open`."""
        return f"tcp://127.0.0.1:{self._ports[0]}"

    @property
    def replay(self) -> str | None:
        """Where it replays, None = nowhere."""
        return f"tcp://127.0.0.1:{self._ports[1]}" if self.events.replay else None

    @property
    def subscriptions(self) -> int:
        """How many have come in this life. What is published before a feed's has come is lost to it, and it comes a
        moment after the feed is connected."""
        with self._lock:
            while self._context is not None and self._live.poll(0):
                self._subscriptions += self._live.recv()[:1] == b"\x01"
            return self._subscriptions

    def open(self) -> None:
        """Begins a life."""
        self.close()
        with self._lock:
            self._context = zmq.Context()
            self._live = self._context.socket(zmq.XPUB)  # a PUB that can be asked who listens
            self._live.setsockopt(zmq.XPUB_VERBOSE, 1)
            self._live.set_hwm(100_000)
            self._ports[0] = _bind(self._live, self._ports[0])
            self._buffer.clear()
            self._held.clear()
            self._number, self._late, self._subscriptions = 0, None, 0
            if self.events.replay:
                router = self._context.socket(zmq.ROUTER)
                self._ports[1] = _bind(router, self._ports[1])
                self._leave.clear()
                self._replaying = threading.Thread(target=self._serve_replay, args=(router,), daemon=True)
                self._replaying.start()

    def close(self) -> None:
        """Ends the life. Safe to call twice."""
        self._leave.set()
        if self._replaying is not None:
            self._replaying.join()
            self._replaying = None
        with self._lock:
            if self._context is not None:
                self._context.destroy(linger=200)
                self._context = None

    def changed(self, kept: Sequence[tuple[str, bytes]]) -> None:
        """The cache holds these sequences now (salt, ids as 32-bit integers): tells the difference."""
        held: dict[bytes, None] = {}
        events: list[Any] = []
        for salt, packed in kept:
            events += self._stored(salt, packed, held)
        gone = [key for key in self._held if key not in held]
        if gone:
            events.append(self._event("BlockRemoved", block_hashes=list(map(_number, gone)), medium="GPU"))
        self._held = held
        if events:
            self.publish(events)

    def publish(self, events: list[Any]) -> None:
        """Sends one message with these events."""
        payload = msgspec.msgpack.encode([time.time(), events, 0])
        with self._lock:
            if self._context is None:
                return
            number, self._number = self._number, self._number + 1
            if number not in self.events.lose_for_ever:
                self._buffer.append((number, payload))
            self.sent += 1
            if self.events.silent or number in self.events.lose or number in self.events.lose_for_ever:
                return
            message = [self.events.topic.encode(), number.to_bytes(8, "big"), payload]
            if number in self.events.swap:
                self._late = message
                return
            for _ in range(2 if number in self.events.double else 1):
                self._live.send_multipart(message)
            if self._late is not None:
                self._live.send_multipart(self._late)
                self._late = None

    def _stored(self, salt: str, packed: bytes, held: dict[bytes, None]) -> list[Any]:
        """Events for what of a sequence is new, one per stretch of new blocks."""
        step = self._block * 4
        found: list[Any] = []
        parent: bytes | None = None
        run: tuple[list[bytes], list[int], bytes | None] = ([], [], None)
        root = f"{self.events.hash_seed}/{salt}".encode()
        for start in range(0, len(packed) - step + 1, step):
            ids = packed[start : start + step]
            key = hashlib.blake2b((parent or root) + ids, digest_size=8).digest()
            if key in self._held or key in held:
                found += self._run(run, salt)
                run = ([], [], key)
            else:
                run[0].append(key)
                run[1].extend(number + self.events.shift_ids for number in array("I", ids))
            held[key] = None
            parent = key
        return [*found, *self._run(run, salt)]

    def _run(self, run: tuple[list[bytes], list[int], bytes | None], salt: str) -> list[Any]:
        keys, ids, parent = run
        if not keys:
            return []
        told = None if parent is None else _number(parent) ^ int(self.events.foreign_parents)
        extra = [[salt], *[None] * (len(keys) - 1)] if salt and parent is None else None
        return [
            self._event(
                "BlockStored",
                block_hashes=list(map(_number, keys)),
                parent_block_hash=told,
                token_ids=ids,
                block_size=self._block,
                lora_id=None,
                medium="GPU",
                lora_name=None,
                extra_keys=extra,
                group_idx=0,
            )
        ]

    def _event(self, kind: str, **fields: Any) -> Any:
        if self.events.wire == "map":
            return {"type": kind, **fields}
        order = ("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium")
        return [kind, *(fields[name] for name in order if name in fields)]

    def _serve_replay(self, router: zmq.Socket[bytes]) -> None:
        while not self._leave.is_set():
            if not router.poll(50):
                continue
            client, _, wanted = router.recv_multipart()
            if self.events.deaf:
                continue
            with self._lock:
                kept = list(self._buffer)
            topic = [self.events.topic.encode()] if self.events.wire == "map" else []
            for number, payload in kept:
                if number >= int.from_bytes(wanted, "big"):
                    router.send_multipart([client, b"", *topic, number.to_bytes(8, "big"), payload])
            router.send_multipart([client, b"", *topic, _END, b""])
        router.close(linger=0)


def _number(key: bytes) -> int:
    return int.from_bytes(key, "big") >> 1


def _bind(socket: zmq.Socket[bytes], port: int) -> int:
    """Binds; the port of an earlier life may take a moment to be free."""
    end = time.monotonic() + _BIND_S
    while True:
        try:
            socket.bind(f"tcp://127.0.0.1:{port or '*'}")
        except zmq.ZMQError:
            if time.monotonic() > end:
                raise
            time.sleep(0.02)
            continue
        return int(socket.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(":")[2])
