"""A request's id is ours where we gave one: an abort before the first chunk has nothing else to name it by."""

from __future__ import annotations

from longproof.domain.request import ChatMessage, ChatPrompt, GenerationRequest
from longproof.engines.registry import connect
from longproof.testing.dialects import VLLM
from longproof.testing.lying_engine import HONEST, lying_engine


async def test_the_server_gets_our_id_when_the_request_names_one() -> None:
    engine = lying_engine(HONEST.but(dialect=VLLM))
    with engine as url:
        adapter = await connect(url)
        prompt = ChatPrompt(messages=(ChatMessage(role="user", content="Hi"),))
        timeline = await adapter.send(GenerationRequest(prompt=prompt, max_tokens=2, request_id="mine"))
        other = await adapter.send(GenerationRequest(prompt=prompt, max_tokens=2))
        await adapter.aclose()
    assert timeline.request_id == "mine"
    assert engine.log.requests[0].headers["x-request-id"] == "mine"
    assert other.request_id != "mine"
