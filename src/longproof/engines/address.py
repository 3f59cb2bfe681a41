"""What people type for a server's address, turned into one base URL, or one clear message."""

from __future__ import annotations

import ipaddress
from urllib.parse import SplitResult, urlsplit

from longproof.errors import UsageError

_EXAMPLE = "write it like http://127.0.0.1:8000 or https://llm.example.org/v1"
_ROUTES = ("/chat/completions", "/completions", "/models")


def base_url(text: str) -> str:
    """The base URL without a trailing slash or /v1; a pasted route (``…/v1/chat/completions``) is cut off as well.

    ``localhost:8000`` and ``10.0.0.5:8000`` become http. Raises UsageError for what cannot be an HTTP address, and for
    one that carries a password or key: the address is written into the evidence.
    """
    parts = _split(text.strip())
    if parts.username is not None or parts.password is not None:
        raise UsageError(
            "the URL carries a user name or password, and the evidence would keep it",
            advice="take it out of the URL; put the key into an environment variable and name it with --api-key-env",
        )
    if parts.query or parts.fragment:
        raise UsageError(f"'{text}' has a query or fragment", advice=f"give the server's base address only: {_EXAMPLE}")
    host = parts.hostname
    if not host or any(c.isspace() for c in parts.netloc):
        raise UsageError(f"'{text}' names no host", advice=_EXAMPLE)
    if ":" not in host:
        try:
            host.encode("idna")
        except UnicodeError:
            raise UsageError(f"'{host}' is not a host name", advice=_EXAMPLE) from None
    port = _port(parts, text)
    path = parts.path.rstrip("/")
    for route in _ROUTES:
        path = path.removesuffix(route)
    path = path.rstrip("/").removesuffix("/v1").rstrip("/")
    shown = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{shown}{'' if port is None else f':{port}'}{path}"


def is_loopback(url: str) -> bool:
    """Whether a base URL names this machine: no proxy belongs in between."""
    host = urlsplit(url).hostname or ""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _split(text: str) -> SplitResult:
    try:
        if "://" not in text:
            parts = urlsplit(f"http://{text}")
            if _port(parts, text) is None and not is_loopback(f"http://{text}"):
                raise UsageError(f"'{text}' has no http:// or https:// in front", advice=_EXAMPLE)
            return parts
        parts = urlsplit(text)
    except ValueError:
        raise UsageError(f"'{text}' is not a URL", advice=_EXAMPLE) from None
    if parts.scheme not in ("http", "https"):
        raise UsageError(f"'{text}' is neither http nor https but {parts.scheme}", advice=_EXAMPLE)
    return parts


def _port(parts: SplitResult, text: str) -> int | None:
    try:
        return parts.port
    except ValueError:
        raise UsageError(f"'{text}' has a port that is not 0 to 65535", advice=_EXAMPLE) from None
