"""A prefill engine and a decode engine that hand KV on, as vLLM 0.32 with NixlConnector does.

with PdPair() as (prefill_url, decode_url):
    …                       # 1. prefill: {"kv_transfer_params": {"do_remote_decode": true}, "max_tokens": 1, …}
                            # 2. decode: the same request with the kv_transfer_params of that answer
"""

from __future__ import annotations

import asyncio

from longproof.testing.behaviour import Behaviour
from longproof.testing.dialects import VLLM
from longproof.testing.lying_engine import LyingEngine
from longproof.testing.side_channel import SideChannel


class PdPair:
    """Both engines; a context manager, sync and async, that gives their URLs. Lies about the transfer belong to the
    decode side."""

    def __init__(self, prefill: Behaviour | None = None, decode: Behaviour | None = None) -> None:
        channel, plain = SideChannel(), Behaviour(dialect=VLLM)
        self.prefill = LyingEngine((prefill or plain).but(kv_connector=True), side_channel=channel)
        self.decode = LyingEngine((decode or plain).but(kv_connector=True), side_channel=channel)

    def __enter__(self) -> tuple[str, str]:
        return self.prefill.__enter__(), self.decode.__enter__()

    def __exit__(self, *_: object) -> None:
        self.decode.__exit__()
        self.prefill.__exit__()

    async def __aenter__(self) -> tuple[str, str]:
        return await asyncio.to_thread(self.__enter__)

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.__exit__)
