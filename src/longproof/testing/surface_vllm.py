"""vLLM's routes around generation, as 0.32.0 answers them (entrypoints/serve, v1/metrics/loggers.py)."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from longproof.testing.ask import chat_ids, read_json, token_ids
from longproof.testing.dialects import Json
from longproof.testing.engine_state import EngineState
from longproof.testing.fake_tokenizer import BOS, tokenizer
from longproof.testing.lies import ClaimWindow, WrongCount, find
from longproof.testing.surface import Surface, json_answer

_LATENCY_BUCKETS_S = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
    160.0, 640.0, 2560.0,
)  # fmt: skip
"""Bucket borders of vllm:time_to_first_token_seconds (v1/metrics/loggers.py)."""


def vllm_surface(state: EngineState) -> Surface:
    """Route → endpoint."""

    async def health(_: Request) -> Response:
        return Response(headers=dict(state.behaviour.dialect.headers))

    async def version(_: Request) -> Response:
        return json_answer(state, {"version": "0.32.0"})

    async def models(_: Request) -> Response:
        return json_answer(state, _models(state))

    async def metrics(_: Request) -> Response:
        kind = "text/plain; version=0.0.4; charset=utf-8"
        return PlainTextResponse(_metrics(state), headers=dict(state.behaviour.dialect.headers), media_type=kind)

    async def tokenize(request: Request) -> Response:
        return json_answer(state, _tokenize(read_json(await request.body(), state.behaviour), state))

    async def detokenize(request: Request) -> Response:
        ids = token_ids(read_json(await request.body(), state.behaviour), "tokens", state.behaviour)
        return json_answer(state, {"prompt": tokenizer().decode(ids)})

    return {
        "/health": ("GET", health),
        "/ping": ("GET", health),
        "/version": ("GET", version),
        "/v1/models": ("GET", models),
        "/metrics": ("GET", metrics),
        "/tokenize": ("POST", tokenize),
        "/detokenize": ("POST", detokenize),
    }


def _window(state: EngineState) -> int:
    claim = find(state.behaviour.lies, ClaimWindow)
    return state.behaviour.window_tokens if claim is None else claim.tokens


def _models(state: EngineState) -> Json:
    name = state.behaviour.model
    card: Json = {
        "id": name,
        "object": "model",
        "created": 1,
        "owned_by": "vllm",
        "root": f"/models/{name}",
        "parent": None,
        "max_model_len": _window(state),
        "permission": [],
    }
    return {"object": "list", "data": [card]}


def _tokenize(body: Json, state: EngineState) -> Json:
    if "messages" in body:
        ids = chat_ids(body, state.behaviour)
    else:
        ids = tokenizer().encode(str(body.get("prompt", "")))
        if state.behaviour.adds_bos and body.get("add_special_tokens") is not False:
            ids = [BOS, *ids]
    off = find(state.behaviour.lies, WrongCount)
    count = len(ids) + (0 if off is None else off.offset)
    return {"count": count, "max_model_len": _window(state), "tokens": ids, "token_strs": None}


def _metrics(state: EngineState) -> str:
    counted, pool, behaviour = state.counters, state.pool, state.behaviour
    label = f'engine="0",model_name="{behaviour.model}"'
    block = behaviour.dialect.cache_block_tokens
    info = ",".join(
        f'{name}="{value}"'
        for name, value in {
            "block_size": block,
            "cache_dtype": "auto",
            "enable_prefix_caching": bool(behaviour.cache_entries),
            "engine": 0,
            "num_gpu_blocks": behaviour.pool_tokens // block,
        }.items()
    )
    queries = counted.processed_tokens + counted.cached_tokens
    lines = [
        f"vllm:cache_config_info{{{info}}} 1.0",
        f"vllm:num_requests_running{{{label}}} {pool.running:.1f}",
        f"vllm:num_requests_waiting{{{label}}} {pool.waiting:.1f}",
        f'vllm:num_requests_waiting_by_reason{{{label},reason="capacity"}} {pool.waiting:.1f}',
        f"vllm:kv_cache_usage_perc{{{label}}} {pool.used_tokens / pool.capacity_tokens}",
        f"vllm:prefix_cache_queries_total{{{label}}} {queries:.1f}",
        f"vllm:prefix_cache_hits_total{{{label}}} {counted.cached_tokens:.1f}",
        f"vllm:prompt_tokens_total{{{label}}} {queries:.1f}",
        f"vllm:generation_tokens_total{{{label}}} {counted.output_tokens:.1f}",
        f"vllm:num_preemptions_total{{{label}}} 0.0",
    ]
    for reason in ("stop", "length", "abort"):
        count = counted.finished.get(reason, 0)
        lines.append(f'vllm:request_success_total{{{label},finished_reason="{reason}"}} {count:.1f}')
    lines += _histogram("vllm:time_to_first_token_seconds", label, counted.ttft_s)
    lines += _histogram("vllm:e2e_request_latency_seconds", label, counted.e2e_s)
    return "\n".join(lines) + "\n"


def _histogram(name: str, label: str, values: list[float]) -> list[str]:
    borders = [(str(border), border) for border in _LATENCY_BUCKETS_S] + [("+Inf", float("inf"))]
    lines = [f"# TYPE {name} histogram"]
    lines += [
        f'{name}_bucket{{{label},le="{text}"}} {sum(value <= border for value in values):.1f}'
        for text, border in borders
    ]
    return [*lines, f"{name}_sum{{{label}}} {sum(values)}", f"{name}_count{{{label}}} {len(values):.1f}"]
