"""The handshake: what /v1/models lists, and which of it a run is about. Everything the user got wrong shows here, in
plain words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from longproof.engines.json_fields import JsonObject, as_list, as_object, as_text
from longproof.engines.link import Link, Refused
from longproof.errors import EngineProtocolError, EngineUnreachable, TargetError

_HANDSHAKE_TIMEOUT_S = 30.0
_LISTED = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """One entry of /v1/models: `names` are its id and aliases, `server` the response's Server header, `fields` the
    entry itself."""

    id: str
    names: tuple[str, ...]
    owned_by: str | None
    server: str | None
    fields: JsonObject


async def served_models(link: Link) -> tuple[ServedModel, ...]:
    """All models the server lists. Raises TargetError when it cannot be reached, refuses the key, or is no OpenAI
    server."""
    path = "/v1/models"
    try:
        response = await link.get(path, timeout_s=_HANDSHAKE_TIMEOUT_S)
        server = as_text(response.headers.get("server"))
        entries = as_list(link.json_of(response).get("data"))
    except EngineUnreachable as problem:
        raise TargetError(
            f"no answer from {link.url}: {problem.what}",
            advice="check that the server runs, that host and port are right, and that http or https is what it speaks",
        ) from problem
    except Refused as problem:
        raise _refused(link, problem) from problem
    except EngineProtocolError as problem:
        raise _not_openai(link, problem.what) from problem
    models = tuple(
        _model(entry, server) for item in entries or [] if (entry := as_object(item)) and as_text(entry.get("id"))
    )
    if entries is None:
        raise _not_openai(link, f"{path} has no list named data")
    if not models:
        raise TargetError(f"{link.url} serves no model", advice="load a model into it, then try again")
    return models


def choose_model(models: Sequence[ServedModel], asked: str | None, url: str) -> ServedModel:
    """The model that was asked for, or the only one. Raises TargetError naming what is served."""
    if asked is None:
        if len(models) == 1:
            return models[0]
        raise TargetError(
            f"{url} serves {len(models)} models: {_names(models)}", advice="say which one with --model NAME"
        )
    for model in models:
        if asked in model.names:
            return model
    raise TargetError(
        f"{url} does not serve '{asked}'; it serves {_names(models)}", advice="name one of these with --model"
    )


def _model(entry: JsonObject, server: str | None) -> ServedModel:
    name = as_text(entry.get("id")) or ""
    aliases = (as_text(alias) for alias in as_list(entry.get("aliases")) or [])
    return ServedModel(
        id=name,
        names=(name, *(alias for alias in aliases if alias and alias != name)),
        owned_by=as_text(entry.get("owned_by")),
        server=server,
        fields=entry,
    )


def _names(models: Sequence[ServedModel]) -> str:
    names = [model.id for model in models[:_LISTED]]
    more = len(models) - len(names)
    return ", ".join(names) + (f" and {more} more" if more > 0 else "")


def _refused(link: Link, problem: Refused) -> TargetError:
    words = problem.error.message[:300] or "no reason given"
    if problem.status in (401, 403):
        return TargetError(
            f"{link.url} refuses the API key with {problem.status}: {words}",
            advice="put the key into an environment variable and name it: --api-key-env VARIABLE",
        )
    if problem.status == 503 or problem.status == 429:
        return TargetError(
            f"{link.url} is not ready ({problem.status}): {words}",
            advice="wait until it has loaded its model, then try again",
        )
    if 300 <= problem.status < 400:
        return TargetError(f"{link.url}: {problem.what}", advice="give the address that it redirects to")
    return _not_openai(link, problem.what)


def _not_openai(link: Link, what: str) -> TargetError:
    return TargetError(
        f"{link.url} does not answer like an OpenAI-compatible server: {what[:400]}",
        advice="give the base address of an OpenAI-compatible API, the part in front of /v1/chat/completions",
    )
