"""The bodies of refusals: the dialect's own form, and the forms that clients meet in the wild."""

from __future__ import annotations

import json

from longproof.testing.dialects import OPENAI, Dialect
from longproof.testing.lies import Refuse

HTML_PAGE = b"<!doctype html><html><head><title>Welcome</title></head><body><h1>It works</h1></body></html>"
Headers = list[tuple[str, str]]


def refusal_body(lie: Refuse, dialect: Dialect) -> tuple[int, Headers, bytes]:
    """Status, headers and body of a refusal."""
    headers: Headers = [*dialect.headers]
    if lie.retry_after_s is not None:
        headers.append(("retry-after", str(lie.retry_after_s)))
    kind, raw = _body(lie, dialect)
    return lie.status, [*headers, ("content-type", kind)], raw


def _body(lie: Refuse, dialect: Dialect) -> tuple[str, bytes]:
    if lie.form == "html":
        page = f"<html><head><title>{lie.status}</title></head><body><center>{lie.message}</center></body></html>"
        return "text/html", page.encode()
    if lie.form == "text":
        return "text/plain; charset=utf-8", lie.message.encode()
    if lie.form == "empty":
        return "text/plain", b""
    form = OPENAI if lie.form == "openai" else dialect
    json_forms: dict[str, object] = {
        "list": [lie.message],
        "string": lie.message,
        "own": form.error(lie.status, lie.message, type_=lie.type),
        "openai": form.error(lie.status, lie.message, type_=lie.type, code=lie.type),
    }
    return dialect.json_type, json.dumps(json_forms[lie.form]).encode()
