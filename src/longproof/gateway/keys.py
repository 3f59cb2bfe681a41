"""Who may ask, and how much at once.

    Authorization: Bearer KEY ─▶ sha256 ─▶ the key's rule ─▶ tenant, models, requests open and per minute, largest input

Only digests are kept, so that neither a configuration file that holds digests nor the process's memory gives keys away,
and a look-up by digest takes the same time for every wrong key. Without any key everybody is tenant "" and may ask
everything: that is for a gateway behind somebody else's door.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from longproof.clock import NS_PER_S
from longproof.gateway.errors import ApiError, Problem

_LONGEST_KEY = 1_024
_BEARER = "bearer "


def key_digest(key: str) -> str:
    """What a key is kept as: its SHA-256, in hexadecimal."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()  # headers may hold any bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRule:
    """One key. None = no bound of its own (the tenant's and the fleet's still hold).

    `models`: the names it may use, None = all. `prefix_salt`: its tenant's cached prefixes are its own: requests get a
    salt made of this secret, so that timing tells nobody what other tenants have asked; "" = shared. `admin`: it may
    set pinned prefixes and see the dashboard.
    """

    name: str
    digest: str
    tenant: str
    models: tuple[str, ...] | None = None
    most_open: int | None = None
    per_minute: int | None = None
    most_input_tokens: int | None = None
    most_output_tokens: int | None = None
    priority: int = 0
    prefix_salt: str = ""
    admin: bool = False

    def salt(self, given: str) -> str:
        """What separates a request's prefixes: the client's own salt, made the tenant's where those are separated."""
        return hashlib.sha256(f"{self.prefix_salt} {given}".encode()).hexdigest()[:32] if self.prefix_salt else given


ANYBODY = KeyRule(name="", digest="", tenant="", admin=True)
"""The rule of a gateway without keys."""


@dataclass(slots=True)
class _Use:
    open: int = 0
    allowance: float = 0.0
    filled_ns: int | None = None


@dataclass(slots=True)
class KeyRing:
    """All keys, and what is open of each. Lives on the event loop."""

    rules: dict[str, KeyRule]
    _uses: dict[str, _Use] = field(default_factory=dict[str, _Use])

    @classmethod
    def of(cls, rules: Iterable[KeyRule]) -> KeyRing:
        """Raises ValueError when two rules have one key or one name."""
        found: dict[str, KeyRule] = {}
        names: set[str] = set()
        for rule in rules:
            if rule.digest in found or rule.name in names:
                raise ValueError(f"key '{rule.name}' is there twice")
            found[rule.digest] = rule
            names.add(rule.name)
        return cls(found)

    @property
    def asks_for_keys(self) -> bool:
        """Whether there are any."""
        return bool(self.rules)

    def rule_of(self, authorizations: Sequence[str]) -> KeyRule:
        """The rule behind the Authorization headers of a request. ApiError 401; two headers are no header: what a proxy
        in front and the gateway read must be the same."""
        if not self.rules:
            return ANYBODY
        header = authorizations[0] if len(authorizations) == 1 else ""
        key = header[len(_BEARER) :].strip() if header[: len(_BEARER)].lower() == _BEARER else ""
        rule = self.rules.get(key_digest(key)) if key and len(key) <= _LONGEST_KEY else None
        if rule is None:
            message = (
                "no API key was given: send 'Authorization: Bearer KEY'" if not key else "this API key is not known"
            )
            raise ApiError(Problem(status=401, code="invalid_api_key", message=message))
        return rule

    def enter(self, rule: KeyRule, model: str, now_ns: int) -> None:
        """One more request of this key; give it back with `leave`. ApiError 403 for a model it may not use, 429 with
        the time until the next may come."""
        if rule.models is not None and model not in rule.models:
            message = f"this key may not use '{model[:80]}'; it may use: {', '.join(rule.models[:12]) or 'none'}"
            raise ApiError(Problem(status=403, code="model_not_allowed", message=message, param="model"))
        use = self._uses.setdefault(rule.name, _Use())
        if rule.most_open is not None and use.open >= rule.most_open:
            raise _too_many(
                "key_open_requests",
                f"this key has {use.open} requests open; {rule.most_open} are allowed",
                limit=rule.most_open,
                retry_after_ns=NS_PER_S,
            )
        if rule.per_minute is not None:
            _spend(rule, use, now_ns)
        use.open += 1

    def leave(self, rule: KeyRule) -> None:
        """One request of this key has ended."""
        self._uses[rule.name].open -= 1

    def open_requests(self) -> dict[str, int]:
        """Open requests by the name of the key."""
        return {name: use.open for name, use in self._uses.items() if use.open}


def require_within(rule: KeyRule, input_tokens: int, output_tokens: int, *, known: bool) -> None:
    """ApiError 400 when a request is larger than its key allows. `known`: the input was counted, or estimated closely;
    an upper bound refuses nobody's input."""
    if known and rule.most_input_tokens is not None and input_tokens > rule.most_input_tokens:
        raise _beyond("key_input_tokens", "input", input_tokens, rule.most_input_tokens)
    if rule.most_output_tokens is not None and output_tokens > rule.most_output_tokens:
        raise _beyond("key_output_tokens", "output", output_tokens, rule.most_output_tokens)


def _spend(rule: KeyRule, use: _Use, now_ns: int) -> None:
    """A bucket of one minute's requests that fills steadily: bursts are fine, a rate above it is not."""
    assert rule.per_minute is not None
    rate = rule.per_minute / 60
    if use.filled_ns is None:
        use.allowance = rule.per_minute
    else:
        use.allowance = min(rule.per_minute, use.allowance + rate * (now_ns - use.filled_ns) / NS_PER_S)
    use.filled_ns = now_ns
    if use.allowance < 1:
        raise _too_many(
            "key_rate",
            f"this key may send {rule.per_minute} requests a minute",
            limit=rule.per_minute,
            retry_after_ns=math.ceil((1 - use.allowance) / rate * NS_PER_S),
        )
    use.allowance -= 1


def _too_many(code: str, message: str, *, limit: int, retry_after_ns: int) -> ApiError:
    problem = Problem(
        status=429, code=code, message=message, limit=limit, unit="requests", retry_after_ns=retry_after_ns
    )
    return ApiError(problem)


def _beyond(code: str, what: str, actual: int, limit: int) -> ApiError:
    message = f"{actual:,} {what} tokens were asked for; this key allows {limit:,}"
    return ApiError(Problem(status=400, code=code, message=message, limit=limit, actual=actual, unit="tokens"))
