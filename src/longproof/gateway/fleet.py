"""The replicas as the shell knows them: where they are reached, and what they call themselves."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from yarl import URL

from longproof.domain.request import Route
from longproof.gateway.errors import ApiError, Problem
from longproof.gateway.upstream import Upstream

_PATHS = {Route.CHAT: "/v1/chat/completions", Route.COMPLETIONS: "/v1/completions"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """One engine. `url` is its base without a trailing slash or /v1. `authorization`: the whole header for its own API
    key, None = it asks for none. `models`: the names it answers to, the first being its own.

    `limit_tokens`: its longest sequence, None = not known. `usage_in_streams`: it takes ``stream_options`` and answers
    them (vLLM, SGLang and llama.cpp do). `prefill_url`: of a prefill/decode pair, whose decode side is at `url`.
    """

    name: str
    url: str
    models: tuple[str, ...]
    authorization: str | None = None
    limit_tokens: int | None = None
    usage_in_streams: bool = True
    salts: bool = True
    """Whether it keeps prefixes of different ``cache_salt`` apart. llama.cpp has one cache for everybody."""
    prefill_url: str | None = None

    @property
    def entry_url(self) -> str:
        """Where a prompt is prefilled, and its prefix cached."""
        return self.prefill_url or self.url


_WHY_CHARACTERS = 300


@dataclass(frozen=True, slots=True)
class Failure:
    """What the last request that failed of a replica met there, and when."""

    why: str
    at_ns: int


@dataclass(slots=True)
class Fleet:
    """All replicas, and the one connection pool to them."""

    replicas: tuple[Replica, ...]
    upstream: Upstream
    created_s: int = 0
    failures: dict[str, Failure] = field(default_factory=dict[str, Failure])
    by_name: dict[str, Replica] = field(init=False)
    _urls: dict[tuple[str, Route], URL] = field(init=False)
    _entries: dict[tuple[str, Route], URL] = field(init=False)
    _models: dict[str, tuple[Replica, ...]] = field(init=False)

    def __post_init__(self) -> None:
        self.take(self.replicas)

    def take(self, replicas: Iterable[Replica]) -> None:
        """From now on these are the replicas."""
        self.replicas = tuple(replicas)
        self.by_name = {replica.name: replica for replica in self.replicas}
        self._urls = {
            (replica.name, route): URL(replica.url + path)
            for replica in self.replicas
            for route, path in _PATHS.items()
        }
        self._entries = {
            (replica.name, route): URL(replica.entry_url + path)
            for replica in self.replicas
            for route, path in _PATHS.items()
        }
        names = dict.fromkeys(name for replica in self.replicas for name in replica.models)
        self._models = {name: tuple(r for r in self.replicas if name in r.models) for name in names}

    def failed(self, replica: str, why: str, now_ns: int) -> None:
        """A request failed of it: for people who want to know why a replica is left alone."""
        self.failures[replica] = Failure(" ".join(why[: 2 * _WHY_CHARACTERS].split())[:_WHY_CHARACTERS], now_ns)

    def url(self, replica: str, route: Route) -> URL:
        """Where a route of a replica is."""
        return self._urls[replica, route]

    def responses_url(self, replica: str) -> URL:
        """Where a replica serves the Responses API."""
        return URL(self.by_name[replica].url + "/v1/responses")

    def entry(self, replica: str, route: Route) -> URL:
        """Where a prompt is prefilled: of a pair the prefill side, else the same as `url`."""
        return self._entries[replica, route]

    def serving(self, model: str) -> tuple[Replica, ...]:
        """The replicas that serve a model. ApiError 404 where none does: a name never becomes an address."""
        found = self._models.get(model)
        if found is None:
            raise ApiError(
                Problem(
                    status=404,
                    code="model_not_found",
                    message=f"the model '{model[:80]}' is not served here; GET /v1/models says what is",
                    param="model",
                )
            )
        return found

    def model_names(self) -> tuple[str, ...]:
        """All names, in the order of the replicas."""
        return tuple(self._models)

    def limit_tokens(self, model: str) -> int | None:
        """The longest sequence any replica of this model takes; None where one of them does not say."""
        limits = [replica.limit_tokens for replica in self.serving(model)]
        return None if None in limits else max(limit for limit in limits if limit is not None)
