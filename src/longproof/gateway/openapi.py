"""GET /openapi.json: what this gateway answers, as OpenAPI 3.1, made from its own table of routes and its own limits.

Bodies of engines are open: a field that is not named here goes on to the engine as it is. What is named is what the
gateway itself understands, with the bounds it checks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

import orjson
from aiohttp.web import BaseRequest, Response, StreamResponse

from longproof import __version__
from longproof.gateway.errors import ERROR_TYPES
from longproof.gateway.intake import LONGEST_NAME, MOST_CHOICES, MOST_OUTPUT_TOKENS
from longproof.gateway.prefixes import NAME_PATTERN

ROUTE = "/openapi.json"
Schema: TypeAlias = dict[str, object]
"""A part of the document."""

_TEXT: Schema = {"type": "string"}
_NAME: Schema = {"type": "string", "minLength": 1, "maxLength": LONGEST_NAME}
_FLAG: Schema = {"type": ["boolean", "null"]}
_OPTIONS: Schema = {"type": ["object", "null"], "properties": {"include_usage": _FLAG}}
_CHOICES: Schema = {"type": ["integer", "null"], "minimum": 1, "maximum": MOST_CHOICES}
_ALLOWANCE: Schema = {
    "type": ["integer", "null"],
    "minimum": -1,
    "maximum": MOST_OUTPUT_TOKENS,
    "description": "output tokens; llama.cpp takes -1 for as many as fit",
}
_SALT: Schema = {"type": ["string", "null"], "description": "separates this request's cached prefix from all others"}
_IDS: Schema = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 2**32 - 1}}
_MESSAGES: Schema = {"type": "array", "minItems": 1, "items": {"type": "object"}}
_PROMPT: Schema = {"anyOf": [_TEXT, {"type": "array", "items": _TEXT}, _IDS, {"type": "array", "items": _IDS}]}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _object(required: Iterable[str], properties: Mapping[str, object]) -> Schema:
    return {"type": "object", "required": list(required), "properties": dict(properties)}


def _json_of(schema: Schema, description: str) -> Schema:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


_GENERATED: Schema = {
    "stream": _FLAG,
    "stream_options": _OPTIONS,
    "max_tokens": _ALLOWANCE,
    "n_predict": _ALLOWANCE,
    "n": _CHOICES,
    "best_of": _CHOICES,
    "cache_salt": _SALT,
    "user": {"type": ["string", "null"], "description": "names a conversation, so that it stays where it is cached"},
}
_SCHEMAS: dict[str, Schema] = {
    "Error": _object(
        ["error"],
        {
            "error": {
                "anyOf": [
                    _object(
                        ["message", "type"],
                        {
                            "message": _TEXT,
                            "type": {
                                "type": "string",
                                "examples": sorted({*ERROR_TYPES.values(), "server_error"}),
                                "description": "one of the gateway's own, or the engine's",
                            },
                            "code": {"type": ["string", "integer", "null"]},
                            "param": {"type": ["string", "null"]},
                            "limit": {"type": "integer", "description": "where a number was exceeded: the bound"},
                            "actual": {"type": "integer"},
                            "unit": _TEXT,
                        },
                    ),
                    _TEXT,
                ]
            }
        },
    ),
    "ChatRequest": _object(
        ["model", "messages"],
        {"model": _NAME, "messages": _MESSAGES, "max_completion_tokens": _ALLOWANCE, **_GENERATED},
    ),
    "CompletionRequest": _object(["model", "prompt"], {"model": _NAME, "prompt": _PROMPT, **_GENERATED}),
    "Model": _object(
        ["id", "object", "created", "owned_by"],
        {
            "id": _TEXT,
            "object": {"const": "model"},
            "created": {"type": "integer"},
            "owned_by": _TEXT,
            "max_model_len": {"type": "integer", "description": "the longest sequence, where every replica tells it"},
        },
    ),
    "PrefixRequest": {
        **_object(
            ["model"],
            {
                "model": _NAME,
                "messages": _MESSAGES,
                "prompt": _TEXT,
                "copies": {"type": "integer", "minimum": 1, "description": "on how many replicas it is kept"},
            },
        ),
        "anyOf": [{"required": ["messages"]}, {"required": ["prompt"]}],
    },
    "Prefix": _object(
        ["name", "object", "model", "copies", "replicas"],
        {
            "name": _TEXT,
            "object": {"const": "prefix"},
            "model": _TEXT,
            "tokens": {"type": "integer"},
            "blocks": {"type": "integer"},
            "copies": {"type": "integer"},
            "replicas": {"type": "array", "items": _TEXT},
            "held_tokens": {"type": "object", "additionalProperties": {"type": "integer"}},
            "requests": {"type": "integer"},
            "hits": {"type": "integer"},
            "warmed": {"type": "integer"},
            "moved": {"type": "integer"},
            "problem": {"type": ["string", "null"]},
        },
    ),
    "Health": _object(["status"], {"status": _TEXT}),
}
_ANSWER: Schema = {
    "description": "the engine's answer: in one piece, or as server-sent events where a stream was asked for",
    "content": {
        "application/json": {"schema": {"type": "object"}},
        "text/event-stream": {"schema": _TEXT},
    },
}
_ERROR = _json_of(_ref("Error"), "a refusal or failure; 429 and 503 carry Retry-After, nothing else does")


def _list_of(name: str) -> Schema:
    return _json_of(
        _object(["object", "data"], {"object": {"const": "list"}, "data": {"type": "array", "items": _ref(name)}}),
        "all of them",
    )


def _text(kind: str, description: str) -> Schema:
    return {"description": description, "content": {kind: {"schema": _TEXT}}}


def _body(name: str) -> Schema:
    return {"required": True, "content": {"application/json": {"schema": _ref(name)}}}


def _operation(summary: str, answers: Mapping[str, Schema], body: str | None = None, *, key: bool = True) -> Schema:
    found: Schema = {"summary": summary, "responses": {**answers, "default": _ERROR}}
    if body is not None:
        found["requestBody"] = _body(body)
    if not key:
        found["security"] = []
    return found


_HEALTH = _json_of(_ref("Health"), "it is")
_PREFIX = _json_of(_ref("Prefix"), "as it stands now")
_DESCRIBED: dict[tuple[str, str], Schema] = {
    ("POST", "/v1/chat/completions"): _operation("Answer a conversation", {"200": _ANSWER}, "ChatRequest"),
    ("POST", "/v1/completions"): _operation("Continue a text", {"200": _ANSWER}, "CompletionRequest"),
    ("GET", "/v1/models"): _operation("What is served here", {"200": _list_of("Model")}),
    ("GET", "/v1/models/*"): _operation("One model", {"200": _json_of(_ref("Model"), "it is served here")}),
    ("GET", "/v1/prefixes"): _operation("All pinned prefixes (admin)", {"200": _list_of("Prefix")}),
    ("GET", "/v1/prefixes/*"): _operation("One pinned prefix (admin)", {"200": _PREFIX}),
    ("PUT", "/v1/prefixes/*"): _operation(
        "Pin a prefix, or replace it (admin)", {"200": _PREFIX, "201": _PREFIX}, "PrefixRequest"
    ),
    ("DELETE", "/v1/prefixes/*"): _operation("Pin it no longer (admin)", {"204": {"description": "done"}}),
    ("GET", "/health"): _operation("Does the process answer?", {"200": _HEALTH}, key=False),
    ("GET", "/live"): _operation("The same", {"200": _HEALTH}, key=False),
    ("GET", "/ready"): _operation(
        "Should it get requests?", {"200": _HEALTH, "503": _json_of(_ref("Health"), "not now, and why")}, key=False
    ),
    ("GET", "/metrics"): _operation("Prometheus metrics (admin)", {"200": _text("text/plain", "a scrape")}),
    ("GET", "/dashboard"): _operation("The live page", {"200": _text("text/html", "it has no data in it")}, key=False),
    ("GET", "/dashboard/events"): _operation(
        "What the page shows, every second, without end (admin)", {"200": _text("text/event-stream", "events")}
    ),
    ("GET", ROUTE): _operation("This document", {"200": _json_of({"type": "object"}, "OpenAPI 3.1")}, key=False),
}
_PATH_PARAMETERS: dict[str, tuple[str, Schema]] = {
    "/v1/models/*": ("model", _NAME),
    "/v1/prefixes/*": ("name", {"type": "string", "pattern": f"^(?:{NAME_PATTERN})$"}),
}


def document(routes: Iterable[tuple[str, str]], *, asks_for_keys: bool) -> Schema:
    """The whole document, for these methods and paths. What is not described here is an engine's route."""
    paths: dict[str, dict[str, object]] = {}
    for method, path in routes:
        operation = _DESCRIBED.get((method, path)) or _passed_on(path)
        parameter = _PATH_PARAMETERS.get(path)
        shown = path
        if parameter is not None:
            name, schema = parameter
            shown = path.replace("*", f"{{{name}}}")
            operation = {
                **operation,
                "parameters": [{"name": name, "in": "path", "required": True, "schema": schema}],
            }
        paths.setdefault(shown, {})[method.lower()] = operation
    found: Schema = {
        "openapi": "3.1.0",
        "info": {"title": "longproof gateway", "version": __version__, "license": {"name": "Apache-2.0"}},
        "paths": paths,
        "components": {"schemas": _SCHEMAS, "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
    }
    if asks_for_keys:
        found["security"] = [{"key": []}]
    return found


def _passed_on(path: str) -> Schema:
    body: Schema = {"content": {"application/json": {"schema": _object((), {"model": _NAME})}}}
    answers: dict[str, Schema] = {"200": {"description": "the engine's answer, as it is"}}
    return {**_operation(f"An engine's {path}, passed on to a replica of its model", answers), "requestBody": body}


class Description:
    """Answers GET /openapi.json."""

    def __init__(self, routes: Iterable[tuple[str, str]], *, asks_for_keys: bool) -> None:
        self._body = orjson.dumps(document(routes, asks_for_keys=asks_for_keys))

    async def answer(self, _: BaseRequest) -> StreamResponse:
        """The document. It asks for no key: it says what there is, and nothing of this fleet."""
        return Response(body=self._body, content_type="application/json")
