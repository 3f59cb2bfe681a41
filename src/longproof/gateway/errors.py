"""What the gateway answers when it does not serve: one exception, and its OpenAI form.

    {"error": {"message": …, "type": …, "code": …, "param": …, "limit": …, "actual": …, "unit": …}}

`limit`, `actual` and `unit` stand there where a number was exceeded. Retry-After goes with 429 and 503 and with nothing
else: waiting does not make a prompt shorter.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import orjson

from longproof.clock import NS_PER_S

ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "request_timeout_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    422: "invalid_request_error",
    429: "rate_limit_error",
    502: "upstream_error",
    503: "overloaded_error",
    504: "upstream_error",
}
_RETRIABLE = (429, 503)
_LEAST_RETRY_S = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A refusal or failure, before it has a form on the wire. `retry_after_ns` is rounded up to whole seconds, at least
    one; only 429 and 503 carry it."""

    status: int
    code: str
    message: str
    param: str | None = None
    limit: int | None = None
    actual: int | None = None
    unit: str = ""
    retry_after_ns: int | None = None
    allow: tuple[str, ...] = ()
    """With 405: the methods that there are."""

    @property
    def retry_after_s(self) -> int | None:
        """What Retry-After says; None where there is none."""
        if self.status not in _RETRIABLE:
            return None
        return max(_LEAST_RETRY_S, math.ceil((self.retry_after_ns or 0) / NS_PER_S))

    def body(self) -> bytes:
        """The JSON body, in OpenAI's form."""
        error: dict[str, object] = {
            "message": self.message,
            "type": ERROR_TYPES.get(self.status, "server_error"),
            "code": self.code,
            "param": self.param,
        }
        if self.limit is not None:
            error["limit"] = self.limit
        if self.actual is not None:
            error["actual"] = self.actual
        if self.unit:
            error["unit"] = self.unit
        try:
            return orjson.dumps({"error": error})
        except TypeError:  # it quotes bytes of a client that are no UTF-8
            return orjson.dumps({"error": {**error, "message": self.message.encode("utf-8", "replace").decode()}})


class ApiError(Exception):
    """Carries a problem to where the answer is written."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


def bad_request(message: str, *, param: str | None = None, code: str = "invalid_request") -> ApiError:
    """400: the body cannot be meant."""
    return ApiError(Problem(status=400, code=code, message=message, param=param))
