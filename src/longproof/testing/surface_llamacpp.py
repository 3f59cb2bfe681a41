"""llama.cpp's routes around generation, as a server with all of --props --slots --metrics answers them (xllamacpp
2026.10)."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from longproof.testing.ask import chat_ids, chat_text, read_json, token_ids
from longproof.testing.dialects import Json
from longproof.testing.engine_state import EngineState
from longproof.testing.fake_tokenizer import BOS, CHAT_TEMPLATE, SPECIAL_TOKENS, TURN_END, tokenizer
from longproof.testing.lie import find
from longproof.testing.lies import ClaimWindow, WrongCount
from longproof.testing.surface import Surface, json_answer

_TRAINED_TOKENS = 1_048_576
_BUILD = "b7000-fake"


def llamacpp_surface(state: EngineState) -> Surface:
    """Route → endpoint."""

    async def health(_: Request) -> Response:
        return json_answer(state, {"status": "ok"})

    async def models(_: Request) -> Response:
        return json_answer(state, _models(state))

    async def props(_: Request) -> Response:
        return json_answer(state, _props(state))

    async def slots(_: Request) -> Response:
        return json_answer(state, _slots(state))

    async def metrics(_: Request) -> Response:
        headers = {**dict(state.behaviour.dialect.headers), "process-start-time-unix": "1"}
        return PlainTextResponse(_metrics(state), headers=headers, media_type="text/plain; version=0.0.4")

    async def tokenize(request: Request) -> Response:
        return json_answer(state, _tokenize(await _body(state, request), state))

    async def detokenize(request: Request) -> Response:
        ids = token_ids(await _body(state, request), "tokens", state.behaviour)
        return json_answer(state, {"content": tokenizer().decode(ids)})

    async def apply_template(request: Request) -> Response:
        return json_answer(state, {"prompt": chat_text(await _body(state, request), state.behaviour)})

    async def input_tokens(request: Request) -> Response:
        ids = chat_ids(await _body(state, request), state.behaviour)
        off = find(state.behaviour.lies, WrongCount)
        count = len(ids) + (0 if off is None else off.offset)
        return json_answer(state, {"input_tokens": count, "object": "response.input_tokens"})

    return {
        "/health": ("GET", health),
        "/v1/health": ("GET", health),
        "/models": ("GET", models),
        "/v1/models": ("GET", models),
        "/props": ("GET", props),
        "/slots": ("GET", slots),
        "/metrics": ("GET", metrics),
        "/tokenize": ("POST", tokenize),
        "/detokenize": ("POST", detokenize),
        "/apply-template": ("POST", apply_template),
        "/v1/chat/completions/input_tokens": ("POST", input_tokens),
    }


async def _body(state: EngineState, request: Request) -> Json:
    return read_json(await request.body(), state.behaviour)


def _window(state: EngineState) -> int:
    claim = find(state.behaviour.lies, ClaimWindow)
    return state.behaviour.window_tokens if claim is None else claim.tokens


def _models(state: EngineState) -> Json:
    name = state.behaviour.model
    meta = {
        "vocab_type": 2,
        "n_vocab": tokenizer().size,
        "n_ctx": _window(state),
        "n_ctx_train": _TRAINED_TOKENS,
        "n_embd": 576,
        "n_params": 134_515_008,
        "size": 96_576_768,
        "ftype": "Q4_1",
    }
    card = {"id": name, "aliases": [name], "tags": [], "object": "model", "created": 1, "owned_by": "llamacpp"}
    return {"models": [{"name": name, "model": name}], "object": "list", "data": [{**card, "meta": meta}]}


def _props(state: EngineState) -> Json:
    behaviour = state.behaviour
    return {
        "default_generation_settings": {"params": {"n_predict": -1, "temperature": 0.8}, "n_ctx": _window(state)},
        "total_slots": behaviour.slots,
        "model_alias": behaviour.model,
        "model_ftype": "Q4_1",
        "model_path": f"/models/{behaviour.model}.Q4_1.gguf",
        "modalities": {"vision": False, "video": False, "audio": False},
        "endpoint_slots": True,
        "endpoint_props": True,
        "endpoint_metrics": True,
        "chat_template": CHAT_TEMPLATE,
        "bos_token": SPECIAL_TOKENS[BOS],
        "eos_token": SPECIAL_TOKENS[TURN_END],
        "build_info": _BUILD,
        "is_sleeping": False,
    }


def _slots(state: EngineState) -> list[Json]:
    return [
        {
            "id": slot,
            "id_task": -1 if task is None else task,
            "n_ctx": _window(state),
            "speculative": state.behaviour.speculation > 0,
            "is_processing": task is not None,
        }
        for slot, task in enumerate(state.pool.slot_tasks)
    ]


def _tokenize(body: Json, state: EngineState) -> Json:
    ids = tokenizer().encode(str(body.get("content", "")), parse_special=body.get("parse_special") is not False)
    if body.get("add_special") and state.behaviour.adds_bos:
        ids = [BOS, *ids]
    if find(state.behaviour.lies, WrongCount) is not None:
        ids = _stretched(ids, state)
    if body.get("with_pieces"):
        return {"tokens": [{"id": token, "piece": tokenizer().decode([token])} for token in ids]}
    return {"tokens": ids}


def _stretched(ids: list[int], state: EngineState) -> list[int]:
    """Ids in the number that the lie wants: the last one repeated, or the end cut off."""
    off = find(state.behaviour.lies, WrongCount)
    wanted = max(len(ids) + (0 if off is None else off.offset), 0)
    return (ids + ids[-1:] * wanted)[:wanted]


def _metrics(state: EngineState) -> str:
    counted, pool = state.counters, state.pool.gauges
    counters = {
        "prompt_tokens_total": counted.processed_tokens,
        "prompt_tokens_cached_total": counted.cached_tokens,
        "prompt_seconds_total": round(counted.prefill_s, 6),
        "tokens_predicted_total": counted.output_tokens,
        "tokens_predicted_seconds_total": round(counted.decode_s, 6),
        "n_tokens_max": counted.longest_tokens,
    }
    gauges = {
        "prompt_tokens_seconds": counted.processed_tokens / counted.prefill_s if counted.prefill_s else 0,
        "predicted_tokens_seconds": counted.output_tokens / counted.decode_s if counted.decode_s else 0,
        "requests_processing": pool.running,
        "requests_deferred": pool.waiting,
    }
    lines: list[str] = []
    for kind, values in (("counter", counters), ("gauge", gauges)):
        for name, value in values.items():
            lines += [f"# TYPE llamacpp:{name} {kind}", f"llamacpp:{name} {value:g}"]
    return "\n".join(lines) + "\n"
