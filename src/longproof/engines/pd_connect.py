"""Two addresses as a prefill/decode pair: both sides are vLLM, and two servers."""

from __future__ import annotations

from pathlib import Path

from longproof.engines.address import base_url
from longproof.engines.pd import PdEngine
from longproof.engines.registry import connect
from longproof.engines.vllm import VllmEngine
from longproof.errors import UsageError


async def connect_pair(
    prefill_url: str,
    decode_url: str,
    *,
    model: str | None = None,
    api_key: str | None = None,
    tokenizer: Path | None = None,
    names: tuple[str, str] = ("--prefill", "--decode"),
) -> PdEngine:
    """Connects to both. `names`: what the two are called where they were given. UsageError where one is no vLLM, or
    both are the same server; TargetError where one does not answer."""
    if base_url(prefill_url) == base_url(decode_url):
        raise UsageError(
            f"{names[0]} and {names[1]} are the same server, {base_url(decode_url)}",
            advice="give the URL of each side, or the one server by its URL alone",
        )
    sides: list[VllmEngine] = []
    try:
        for name, url in zip(names, (prefill_url, decode_url), strict=True):
            engine = await connect(url, model=model, api_key=api_key, tokenizer=tokenizer)
            if not isinstance(engine, VllmEngine):
                await engine.aclose()
                raise UsageError(
                    f"{name} {base_url(url)} is no vLLM: how it would hand KV on is not known",
                    advice="use vLLM servers started with --kv-transfer-config and the NixlConnector",
                )
            sides.append(engine)
    except BaseException:
        for side in sides:
            await side.aclose()
        raise
    return PdEngine(*sides)
