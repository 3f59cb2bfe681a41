"""Valkey or Redis between several gateways: one script that says what this one holds and hears what the others do, and
one channel on which they are told at once.

    {fleet}:lives      sorted set    gateway → when its lease ends, by the store's clock
    {fleet}:booked     hash          gateway → its bookings
    {fleet}:told       channel       messages of `shared_codec`

Whoever does not renew its lease is dropped by the next one that comes. Both keys have one hash tag, as a cluster wants.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Iterable
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Any, cast
from urllib.parse import urlsplit

from longproof.errors import UsageError

_SCRIPT = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZADD', KEYS[1], now + ARGV[3], ARGV[1])
redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
for _, gone in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now)) do
  redis.call('ZREM', KEYS[1], gone)
  redis.call('HDEL', KEYS[2], gone)
end
redis.call('PEXPIRE', KEYS[1], ARGV[3] * 10)
redis.call('PEXPIRE', KEYS[2], ARGV[3] * 10)
if ARGV[4] == '1' then
  redis.call('PUBLISH', KEYS[3], 'B' .. string.char(#ARGV[1]) .. ARGV[1] .. ARGV[2])
end
return redis.call('HGETALL', KEYS[2])
"""
_SCHEMES = {"valkey": "redis", "valkeys": "rediss", "redis": "redis", "rediss": "rediss", "unix": "unix"}
_LISTEN_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreAddress:
    """Where the store is. `fleet` keeps fleets on one store apart. `password_env`: the environment variable that holds
    the password, where it is not in the URL. `lease_ms`: how long bookings stay that nobody renews."""

    url: str
    fleet: str
    lease_ms: int
    timeout_s: float
    password_env: str | None = None

    @property
    def shown(self) -> str:
        """Without user and password."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.hostname or ''}{f':{parts.port}' if parts.port else ''}{parts.path}"


class SharedStore:
    """One gateway's connections. Everything that goes wrong comes out as `StoreLost`."""

    def __init__(self, address: StoreAddress, gateway: str) -> None:
        self.address, self.gateway = address, gateway
        tag = "{" + address.fleet + "}"
        self._keys = (f"{tag}:lives", f"{tag}:booked", f"{tag}:told")
        self._client, self._lost = _client(address)
        self._script = self._client.register_script(_SCRIPT)

    async def exchange(self, booked: bytes, *, changed: bool) -> dict[str, bytes]:
        """Renews the lease, says what is booked here (`changed`: to everybody, now), and returns what the other
        gateways with a lease have booked."""
        arguments = [self.gateway, booked, self.address.lease_ms, int(changed)]
        with self._lost:
            found = cast("list[bytes]", await self._script(keys=list(self._keys), args=arguments))
        pairs = zip(found[::2], found[1::2], strict=True)
        return {name.decode(): data for name, data in pairs if name.decode() != self.gateway}

    async def tell(self, messages: Iterable[bytes]) -> None:
        """To everybody, in order."""
        with self._lost:
            async with self._client.pipeline(transaction=False) as pipe:
                for message in messages:
                    pipe.publish(self._keys[2], message)
                await pipe.execute()

    async def listen(self) -> AsyncGenerator[bytes | None, None]:
        """What others tell, from now on; None once when it listens. Ends by StoreLost alone."""
        with self._lost:
            async with self._client.pubsub(ignore_subscribe_messages=False) as channel:
                await channel.subscribe(self._keys[2])
                while True:
                    message = cast("dict[str, Any] | None", await channel.get_message(timeout=_LISTEN_S))
                    if message is None:
                        continue
                    if message["type"] == "subscribe":
                        yield None
                    elif isinstance(message["data"], bytes):
                        yield message["data"]

    async def leave(self, message: bytes) -> None:
        """Nothing is booked here any more; `message` says so to everybody."""
        with self._lost:
            async with self._client.pipeline(transaction=True) as pipe:
                pipe.zrem(self._keys[0], self.gateway)
                pipe.hdel(self._keys[1], self.gateway)
                pipe.publish(self._keys[2], message)
                await pipe.execute()

    async def aclose(self) -> None:
        """Ends all connections; one that is broken is dropped."""
        with suppress(*self._lost.errors):
            await self._client.aclose()


class StoreLost(Exception):  # noqa: N818 - named for the state it reports
    """The store did not answer, or not as a store does; says how."""


@dataclass(frozen=True, slots=True)
class _Lost:
    """Turns every way a store can fail into StoreLost."""

    errors: tuple[type[BaseException], ...]

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, problem: BaseException | None, _: object) -> None:
        if isinstance(problem, self.errors):
            raise StoreLost(str(problem) or type(problem).__name__) from problem


def _client(address: StoreAddress) -> tuple[Any, _Lost]:
    """A client, and what its failures become. UsageError for an address that is none, and where the package is not
    installed."""
    try:
        redis: Any = import_module("redis.asyncio")  # optional: looked for only when it is wanted
        retry: Any = import_module("redis.asyncio.retry")
        backoff: Any = import_module("redis.backoff")
        errors: Any = import_module("redis.exceptions")
    except ImportError:
        raise UsageError(
            "gateways share their books through the package redis, which is not installed",
            advice="pip install 'longproof[shared]'",
        ) from None
    scheme, _, rest = address.url.partition("://")
    if scheme not in _SCHEMES or not rest:
        raise UsageError(
            f"{address.shown} is no address of a Valkey or Redis", advice='write it like "valkey://127.0.0.1:6379/0"'
        )
    secret: dict[str, str] = {}
    if address.password_env is not None:
        password = os.environ.get(address.password_env, "")
        if not password:
            raise UsageError(
                f"[shared]: {address.password_env} is not set", advice=f"export {address.password_env}=… first"
            )
        secret = {"password": password}
    try:
        client = redis.Redis.from_url(
            f"{_SCHEMES[scheme]}://{rest}",
            socket_timeout=address.timeout_s,
            socket_connect_timeout=address.timeout_s,
            retry=retry.Retry(backoff.NoBackoff(), 0),
            **secret,
        )
    except ValueError as problem:
        raise UsageError(f"[shared] url: {problem}", advice='write it like "valkey://127.0.0.1:6379/0"') from None
    return client, _Lost((errors.RedisError, OSError, TimeoutError))
