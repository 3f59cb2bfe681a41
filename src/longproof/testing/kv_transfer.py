"""KV that goes from a prefill engine to a decode engine, as vLLM 0.32's NixlConnector does it (kv_connector/v1/nixl).

1. The prefill side gets {"do_remote_decode": true}, finishes, keeps the blocks, and answers with the parameters below.
2. A router hands these to the decode side, which reads the blocks instead of computing the prompt, and says so to the
   prefill side, which then frees them. Unread blocks are freed after a lease of 30 s.

The parameters come in answers that are not streamed only.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

from longproof.clock import NS_PER_S
from longproof.testing.admission import Admission
from longproof.testing.dialects import Json
from longproof.testing.engine_log import Served
from longproof.testing.engine_state import EngineState
from longproof.testing.lie import Lie, find
from longproof.testing.lies_of_load import PdBootstrapFail, PdRecompute, PdTransferSlow
from longproof.testing.presence import Presence
from longproof.testing.side_channel import Offer

_LEASE_S = 30.0
_SIDE_CHANNEL_PORT = 5600
_NEEDED = ("remote_engine_id", "remote_request_id", "remote_host", "remote_port", "remote_block_ids")


class KvLoadFailed(Exception):  # noqa: N818 - not an error of ours: it becomes the answer
    """The blocks of the other side could not be read. The request ends with an error, which is vLLM 0.32's default
    policy."""


def transfer_asked(options: Json, state: EngineState) -> Json:
    """A request's kv_transfer_params; empty where there are none, or where the engine has no connector."""
    asked: Any = options.get("kv_transfer_params")
    return cast("Json", asked) if state.behaviour.kv_connector and isinstance(asked, dict) else {}


async def load(state: EngineState, served: Served, client: Presence, asked: Json, lies: tuple[Lie, ...]) -> int:
    """Reads the KV that a request names; how many tokens of its prompt need no computing here, by what the answer
    says.

    `served.transferred_tokens` says how many really came. Raises KvLoadFailed, ClientLeft and Aborted.
    """
    if not asked.get("do_remote_prefill") or any(asked.get(name) is None for name in _NEEDED):
        return 0
    counters = state.counters
    counters.deferred += 1
    counters.external_queries += served.read_tokens
    try:
        fails = find(lies, PdBootstrapFail)
        if fails is not None:
            await client.sleep_until(state.clock.now_ns() + round(fails.after_s * NS_PER_S))
        engine_id, request_id = str(asked["remote_engine_id"]), str(asked["remote_request_id"])
        offer = None if fails is not None else state.side_channel.take(engine_id, request_id)
        if offer is None:
            counters.kv_failures += 1
            raise KvLoadFailed
        try:
            await _read(state, served, client, offer, lies)
        finally:
            offer.release()
    finally:
        counters.deferred -= 1
    return served.read_tokens


async def _read(state: EngineState, served: Served, client: Presence, offer: Offer, lies: tuple[Lie, ...]) -> None:
    behaviour, counters = state.behaviour, state.counters
    size = offer.blocks * behaviour.dialect.cache_block_tokens * behaviour.kv_token_bytes
    slow = find(lies, PdTransferSlow)
    takes_s = size / behaviour.transfer_bytes_per_s * state.stretch()
    if slow is not None:
        takes_s = max(takes_s * slow.factor, slow.least_s)
    if find(lies, PdRecompute) is not None:
        return
    await client.sleep_until(state.clock.now_ns() + round(takes_s * NS_PER_S))
    counters.transfer.observe(takes_s)
    counters.transfer_bytes.observe(size)
    served.transferred_tokens = served.read_tokens


def offer(state: EngineState, served: Served, admission: Admission, asked: Json, request_id: str) -> Json | None:
    """Keeps the blocks of a finished prefill for the other side; the parameters for it, None where nobody asked."""
    if not asked.get("do_remote_decode"):
        return None
    blocks, ticket = admission.blocks, admission.park()
    if ticket is None:
        return None
    loop = asyncio.get_running_loop()

    def give_back() -> None:
        lease.cancel()
        state.pool.leave(ticket)

    def release() -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(give_back)

    def expire() -> None:
        if state.side_channel.take(state.engine_id, request_id) is not None:
            state.counters.kv_expired += 1
            give_back()

    lease = loop.call_later(_LEASE_S, expire)
    made = Offer(tokens=served.read_tokens, blocks=blocks, release=release)
    state.side_channel.offer(state.engine_id, request_id, made)
    return {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_block_ids": [list(range(1, blocks + 1))],
        "remote_engine_id": state.engine_id,
        "remote_request_id": request_id,
        "remote_host": "127.0.0.1",
        "remote_port": _SIDE_CHANNEL_PORT,
        "tp_size": 1,
        "dcp_size": 1,
        "pp_size": 1,
        "remote_num_tokens": served.read_tokens,
        "remote_blocks_expiry_time": None,
        "transfer_mode": "pull",
    }
